package kv

import (
	"fmt"

	"github.com/hawser-project/hawser"
)

// The Decoder counts each attempt under an immediate value of its own, from the range whose top 12 bits are ones.
const (
	immBase  = 0xfff << 20
	immCount = 1 << 20
)

// imms lends the values. They come back in the order in which they were given back, so that a value rests as long as
// possible before its next use. Owned by the Decoder, under its lock.
type imms struct {
	size  uint32   // values that there are
	fresh uint32   // values that have never been used begin at immBase + fresh
	back  []uint32 // given back, oldest first
}

func (f *imms) take() (uint32, error) {
	if f.fresh < f.size {
		f.fresh++
		return immBase + f.fresh - 1, nil
	}
	if len(f.back) == 0 {
		return 0, fmt.Errorf("immediate values: %w: %d attempts at once", hawser.ErrLimit, f.size)
	}
	v := f.back[0]
	f.back = f.back[1:]
	return v, nil
}

func (f *imms) put(v uint32) { f.back = append(f.back, v) }
