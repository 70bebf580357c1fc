// Package dl loads shared libraries at run time, so that one binary runs where a library is missing and says which one it is.
//
// A user declares a C struct that has nothing but function pointers, in the order of the names that it hands to [Load]:
//
//	var names = []string{"ibv_get_device_list", "ibv_free_device_list", "?ibv_reg_mr_iova2"}
//	lib, err := dl.Load(unsafe.Pointer(&C.api), names, "libibverbs.so.1")
//
// A library is never unloaded: it may have threads, and pointers into it are kept. Without cgo Load says that the binary was
// built so.
package dl

import (
	"path/filepath"
	"strings"
	"unsafe"

	"github.com/hawser-project/hawser/provider"
)

// Library is a shared library that was loaded.
type Library struct {
	Name string // as it was asked for
	Path string // the file that the dynamic linker found, empty when it does not tell

	handle unsafe.Pointer // of the dynamic linker
}

// Version is what the name of the library's file says beyond ".so.", such as 1.14.44.0; empty when that is not known.
func (l *Library) Version() string {
	file, err := filepath.EvalSymlinks(l.Path)
	if err != nil {
		return ""
	}
	_, version, _ := strings.Cut(filepath.Base(file), ".so.")
	return version
}

// optional before a symbol's name: its pointer stays nil where the library lacks it.
const optional = '?'

var errUnavailable = provider.ErrUnavailable
