//go:build cgo

package verbs

/*
#include <stdlib.h>
#include "shim.h"
*/
import "C"

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/hawser-project/hawser/internal/dl"
	"github.com/hawser-project/hawser/provider"
)

// libraryName is what the packages libibverbs1 (Debian), libibverbs (Fedora) and rdma-core (Alpine) install.
const libraryName = "libibverbs.so.1"

// symbols fill struct hv_table, in its order.
var symbols = []string{
	"ibv_get_device_list", "ibv_free_device_list", "ibv_open_device", "ibv_close_device", "ibv_query_device", "ibv_query_port",
	"ibv_query_gid", "ibv_alloc_pd", "ibv_dealloc_pd", "ibv_reg_mr", "ibv_dereg_mr", "ibv_create_comp_channel",
	"ibv_destroy_comp_channel", "ibv_create_cq", "ibv_destroy_cq", "ibv_get_cq_event", "ibv_ack_cq_events", "ibv_create_srq",
	"ibv_destroy_srq", "ibv_create_qp", "ibv_modify_qp", "ibv_destroy_qp", "ibv_get_async_event", "ibv_ack_async_event",
	"?ibv_reg_mr_iova2", "?ibv_reg_dmabuf_mr", "?_ibv_query_gid_table",
}

// A library that cannot be loaded is tried again at the next call: somebody may have installed it.
var (
	librariesMu sync.Mutex
	libraries   = map[string]*library{} // by name; guarded by librariesMu
)

// library is one loaded libibverbs. It is never freed.
type library struct{ table *C.struct_hv_table }

// load loads libibverbs by its name or path, once.
func load(name string) (*library, error) {
	librariesMu.Lock()
	defer librariesMu.Unlock()
	if l := libraries[name]; l != nil {
		return l, nil
	}
	table := (*C.struct_hv_table)(C.calloc(1, C.sizeof_struct_hv_table))
	if want := uintptr(len(symbols)) * unsafe.Sizeof(unsafe.Pointer(nil)); want != C.sizeof_struct_hv_table {
		panic(fmt.Sprintf("verbs: table of %d bytes for %d symbols", C.sizeof_struct_hv_table, len(symbols)))
	}
	// safe: the table is C's, and has as many pointers as there are symbols.
	if _, err := dl.Load(unsafe.Pointer(table), symbols, name); err != nil {
		C.free(unsafe.Pointer(table))
		return nil, fmt.Errorf("load libibverbs: %w (install libibverbs1 and ibverbs-providers, or rdma-core)", err)
	}
	l := &library{table}
	libraries[name] = l
	return l, nil
}

// deviceNames lists the devices that libibverbs has a driver for.
func (l *library) deviceNames() ([]string, error) {
	var names []string
	for i := 0; ; i++ {
		var name [C.ABI_NAME_MAX]C.char
		n := int(C.hv_device(l.table, C.int(i), &name[0]))
		if n < 0 {
			return nil, fmt.Errorf("ibv_get_device_list: %w: %w", provider.ErrUnavailable, errno(-n))
		}
		if i >= n {
			return names, nil
		}
		names = append(names, C.GoString(&name[0]))
	}
}
