//go:build cgo

package dl

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>

static uint32_t call(void *f) { return ((uint32_t(*)(void))f)(); }

static const char *path_of(void *handle) {
	struct link_map *map;
	return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : NULL;
}
*/
import "C"

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// Available says whether this binary was built with cgo, so that it can load libraries.
const Available = true

// Load loads the first of libraries that the dynamic linker finds and fills table, a C struct of len(symbols) function pointers that
// lies outside of the Go heap; nil without symbols. The errors wrap provider.ErrUnavailable and carry the words of the dynamic linker.
func Load(table unsafe.Pointer, symbols []string, libraries ...string) (*Library, error) {
	runtime.LockOSThread() // dlerror is the thread's
	defer runtime.UnlockOSThread()
	var faults []string
	for _, name := range libraries {
		handle := open(name)
		if handle == nil {
			faults = append(faults, C.GoString(C.dlerror()))
			continue
		}
		return fill(table, symbols, &Library{Name: name, Path: C.GoString(C.path_of(handle)), handle: handle}, handle)
	}
	return nil, fmt.Errorf("dlopen: %w: %s", errUnavailable, strings.Join(faults, "; "))
}

// Call calls a function of the library that takes nothing and returns 32 bits, such as fi_version; false when the library has none of that
// name.
func (l *Library) Call(symbol string) (uint32, bool) {
	name := C.CString(symbol)
	defer C.free(unsafe.Pointer(name))
	f := C.dlsym(l.handle, name)
	if f == nil {
		return 0, false
	}
	return uint32(C.call(f)), true
}

func open(name string) unsafe.Pointer {
	cname := C.CString(name)
	defer C.free(unsafe.Pointer(cname))
	return C.dlopen(cname, C.RTLD_NOW|C.RTLD_LOCAL)
}

func fill(table unsafe.Pointer, symbols []string, lib *Library, handle unsafe.Pointer) (*Library, error) {
	// safe: the caller promises a C struct of as many pointers.
	slots := unsafe.Slice((*unsafe.Pointer)(table), len(symbols))
	for i, symbol := range symbols {
		name := strings.TrimPrefix(symbol, string(optional))
		cname := C.CString(name)
		slots[i] = C.dlsym(handle, cname)
		C.free(unsafe.Pointer(cname))
		if slots[i] == nil && symbol == name {
			return nil, fmt.Errorf("%s: %w: it has no %s: the library is too old or not what its name says", lib.Name, errUnavailable, name)
		}
	}
	return lib, nil
}
