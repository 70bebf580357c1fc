package bench

import (
	"encoding/binary"
	"math/rand/v2"
)

// order is the sequence of blocks that a run uses: both sides derive it from the seed. Sample after sample goes on where the one
// before ended, so that a cold block stays cold until the whole pool has been used.
type order struct {
	src, dst []uint32 // two independent permutations of all blocks
}

func newOrder(slots int, seed uint64) order {
	return order{permutation(slots, seed, 1), permutation(slots, seed, 2)}
}

func permutation(n int, seed, stream uint64) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(i)
	}
	r := rand.New(rand.NewPCG(seed, stream))
	r.Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// runs calls f for the pairs of up to batch consecutive blocks of a sample that starts at block number first. A run ends at the end
// of the permutation, too.
func (o order) runs(first uint64, count, batch int, f func(src, dst []uint32) error) error {
	n := len(o.src)
	for at := int(first % uint64(n)); count > 0; {
		k := min(batch, count, n-at)
		if err := f(o.src[at:at+k], o.dst[at:at+k]); err != nil {
			return err
		}
		count -= k
		at = (at + k) % n
	}
	return nil
}

// away is half a pool away from a block number: neither side finds in the caches what the other has just used.
func (o order) away(first uint64) uint64 { return first + uint64(len(o.src)/2) }

// block is where the k-th block comes from and goes to, as offsets in the pools.
func (o order) block(k int, size uint64) (src, dst uint64) {
	return uint64(o.src[k]) * size, uint64(o.dst[k]) * size
}

// stamp fills the source pool: each word says which block and offset it belongs to.
func stamp(pool []byte, size uint64, seed uint64) {
	for i := range uint64(len(pool)) / size {
		block := pool[i*size : (i+1)*size]
		for o := uint64(0); o+8 <= size; o += 8 {
			binary.LittleEndian.PutUint64(block[o:], word(seed, i, o))
		}
	}
}

// corrupt counts the bytes of the destination that are not what stamp wrote into the source, over the blocks that were moved.
func (o order) corrupt(pool []byte, size, seed, moved uint64) uint64 {
	var bad uint64
	for k := range min(moved, uint64(len(o.dst))) {
		src, dst := uint64(o.src[k]), uint64(o.dst[k])
		block := pool[dst*size:][:size]
		for at := uint64(0); at+8 <= size; at += 8 {
			if binary.LittleEndian.Uint64(block[at:]) != word(seed, src, at) {
				bad += 8
			}
		}
	}
	return bad
}

// word is the content at an offset of a block: different for each block, cheap to make.
func word(seed, block, offset uint64) uint64 {
	return (seed + block<<32 + offset + 1) * 0x9e3779b97f4a7c15 // odd multiplier: distinct inputs stay distinct
}
