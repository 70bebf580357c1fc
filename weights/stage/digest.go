package stage

import "github.com/cespare/xxhash/v2"

// Verify says how much of what was pushed is compared.
type Verify uint8

// The zero value is Sampled.
const (
	Sampled Verify = iota // one cell of 16, others with every version: 16 versions compare everything
	All
	Off
)

// Cell is how many bytes of a run are hashed together; the last one of a run may be shorter.
const Cell = 64 << 10

// sampling is one cell in how many Sampled takes.
const sampling = 16

// Digest is what a run adds to the transfer digest of its source, receiver and stage: the sum, modulo 2^64, of XXH64 of its cells, each with
// its offset in the destination's buffer as the seed. So the digest depends neither on the order of runs nor on who computes which.
// Sampled takes the cells whose offset, in cells, is the version modulo 16.
//
// hot: no allocation.
func Digest(v Verify, version uint64, offset int64, run []byte) (sum uint64) {
	if v == Off {
		return 0
	}
	var h xxhash.Digest
	for len(run) > 0 {
		n := min(Cell, len(run))
		if v == All || uint64(offset)/Cell%sampling == version%sampling {
			h.ResetWithSeed(uint64(offset))
			_, _ = h.Write(run[:n])
			sum += h.Sum64()
		}
		run, offset = run[n:], offset+int64(n)
	}
	return sum
}
