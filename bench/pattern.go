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

// runs calls f for the pairs of up to batch consecutive blocks of a sample that starts at block number first; at is the position of the
// first pair in the order. A run ends at the end of the order, too.
func (o order) runs(first uint64, count, batch int, f func(at int, src, dst []uint32) error) error {
	n := len(o.src)
	for at := int(first % uint64(n)); count > 0; {
		k := min(batch, count, n-at)
		if err := f(at, o.src[at:at+k], o.dst[at:at+k]); err != nil {
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
		o := uint64(0)
		for ; o+8 <= size; o += 8 {
			binary.LittleEndian.PutUint64(block[o:], word(seed, i, o))
		}
		for ; o < size; o++ {
			block[o] = tail(seed, i, o)
		}
	}
}

// wrongBytes counts the bytes that are not what stamp wrote into a block: whole words, and each byte of the tail.
func wrongBytes(block []byte, seed, number uint64) (bad uint64) {
	size, o := uint64(len(block)), uint64(0)
	for ; o+8 <= size; o += 8 {
		if binary.LittleEndian.Uint64(block[o:]) != word(seed, number, o) {
			bad += 8
		}
	}
	for ; o < size; o++ {
		if block[o] != tail(seed, number, o) {
			bad++
		}
	}
	return bad
}

// corrupt counts the bytes of a receiver's pool that are not what was sent, over its part of the blocks that were moved.
func (o order) corrupt(pool []byte, size, seed, moved uint64, index, peers int) (bad uint64) {
	for k := range int(min(moved, uint64(len(o.dst)))) {
		if owner(k, peers) == index {
			bad += wrongBytes(pool[uint64(o.dst[k])*size:][:size], seed, uint64(o.src[k]))
		}
	}
	return bad
}

// strayBytes counts the bytes of a message that do not belong to the block which its first word names; all, if that is none of the blocks. A message
// too short for a word is taken for right.
func strayBytes(data []byte, seed uint64, slots int) uint64 {
	if len(data) < 8 {
		return 0
	}
	number := (binary.LittleEndian.Uint64(data)*unmix - seed - 1) >> 32
	if number >= uint64(slots) {
		return uint64(len(data))
	}
	return wrongBytes(data, seed, number)
}

const (
	mix   = 0x9e3779b97f4a7c15 // odd: distinct inputs stay distinct
	unmix = 0xf1de83e19937733d // mix * unmix = 1 modulo 2^64
)

// word is the content at an offset of a block: different for each block, cheap to make.
func word(seed, block, offset uint64) uint64 { return (seed + block<<32 + offset + 1) * mix }

// tail is that of a byte behind the last word.
func tail(seed, block, offset uint64) byte { return byte(word(seed, block, offset) >> 56) }
