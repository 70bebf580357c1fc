package stage

import (
	"crypto/sha256"
	"encoding/binary"
	"hash"

	"github.com/cespare/xxhash/v2"
)

// RootCell is how many bytes of a fragment are hashed together for a content root.
const RootCell = 1 << 20

// Root computes a content root: SHA-256 over, of each fragment, the name and the XXH64 of its cells of 1 MiB, and the lengths of both. Two ranks, or a rank and a
// checkpoint, that hold the same fragments have the same root, wherever these lie. Fragments are added in the order of their names.
type Root struct {
	Cell func(sum uint64, n int) // told each cell's hash and length; nil: nobody wants to know

	sum  hash.Hash
	cell xxhash.Digest
	in   int    // bytes of the cell so far
	size uint64 // bytes of the fragment so far
	open bool
}

// NewRoot has no fragments.
func NewRoot() *Root { return &Root{sum: sha256.New()} }

// Begin begins a fragment; its bytes follow in row-major order, in any number of calls of Add.
func (r *Root) Begin(name string) {
	r.end()
	r.number(uint64(len(name)))
	r.sum.Write([]byte(name))
	r.open = true
}

// Add adds bytes to the fragment.
func (r *Root) Add(b []byte) {
	for len(b) > 0 {
		if r.in == 0 {
			r.cell.Reset()
		}
		n := min(RootCell-r.in, len(b))
		_, _ = r.cell.Write(b[:n])
		b, r.in, r.size = b[n:], r.in+n, r.size+uint64(n)
		if r.in == RootCell {
			r.flush()
		}
	}
}

// Sum is the root of what was added. The next Begin goes on behind it.
func (r *Root) Sum() (root [32]byte) {
	r.end()
	r.sum.Sum(root[:0])
	return root
}

func (r *Root) end() {
	if r.in > 0 {
		r.flush()
	}
	if r.open {
		r.number(r.size)
	}
	r.open, r.size = false, 0
}

func (r *Root) flush() {
	sum := r.cell.Sum64()
	if r.Cell != nil {
		r.Cell(sum, r.in)
	}
	r.number(sum)
	r.in = 0
}

func (r *Root) number(v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	r.sum.Write(b[:])
}
