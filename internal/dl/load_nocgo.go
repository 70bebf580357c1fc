//go:build !cgo

package dl

import (
	"fmt"
	"unsafe"
)

// Available says whether this binary was built with cgo, so that it can load libraries.
const Available = false

// Call calls nothing: there is no library.
func (l *Library) Call(string) (uint32, bool) { return 0, false }

// Load fails: a binary that was built without cgo cannot load libraries.
func Load(_ unsafe.Pointer, _ []string, libraries ...string) (*Library, error) {
	return nil, fmt.Errorf("%s: %w: this binary was built without cgo (CGO_ENABLED=0)", libraries[0], errUnavailable)
}
