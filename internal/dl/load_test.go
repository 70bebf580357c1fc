//go:build cgo

package dl

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// table is room for n pointers outside of the Go heap.
func table(t *testing.T, n int) []unsafe.Pointer {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(b) })
	// safe: n pointers are less than a page.
	return unsafe.Slice((*unsafe.Pointer)(unsafe.Pointer(&b[0])), n)
}

func TestLoad(t *testing.T) {
	for _, tc := range []struct {
		name      string
		symbols   []string
		libraries []string
		want      string // in the error; empty: none
	}{
		{"the second library is there", []string{"malloc", "free"}, []string{"libnone.so.1", "libc.so.6"}, ""},
		{"optional and missing", []string{"malloc", "?no_such_function"}, []string{"libc.so.6"}, ""},
		{"no library", []string{"malloc"}, []string{"libnone.so.1", "libnone.so.2"}, "libnone.so.2: cannot open"},
		{"no symbol", []string{"malloc", "no_such_function"}, []string{"libc.so.6"}, "no_such_function"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			slots := table(t, len(tc.symbols))
			lib, err := Load(unsafe.Pointer(&slots[0]), tc.symbols, tc.libraries...)
			if tc.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				if lib.Name != "libc.so.6" || !strings.Contains(lib.Path, "libc") {
					t.Errorf("library %+v", lib)
				}
				for i, s := range tc.symbols {
					if (slots[i] == nil) != (s[0] == optional) {
						t.Errorf("%s is at %p", s, slots[i])
					}
				}
				return
			}
			if !errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want unavailable with %q", err, tc.want)
			}
		})
	}
}

func TestCall(t *testing.T) {
	lib, err := Load(nil, nil, "libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	if pid, ok := lib.Call("getpid"); !ok || int(pid) != unix.Getpid() {
		t.Errorf("getpid returned %d, %v, want %d", pid, ok, unix.Getpid())
	}
	if _, ok := lib.Call("no_such_function"); ok {
		t.Error("a function that is not there was called")
	}
}
