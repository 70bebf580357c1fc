package simllm

import (
	"encoding/binary"
	"math/bits"
)

// Key names the content of one plane of one page in one layer. Two different keys have different content, so a page that
// is swapped, stale, shifted or empty is found corrupt.
type Key struct {
	Request uint64 // RequestKey
	Layer   int
	Plane   int
	Page    int // logical number in the prompt
}

// RequestKey derives Key.Request from a request id.
func RequestKey(id string) uint64 {
	h := mix64(uint64(len(id)))
	for ; len(id) >= 8; id = id[8:] {
		h = mix64(h ^ binary.LittleEndian.Uint64([]byte(id[:8])))
	}
	var tail [8]byte
	copy(tail[:], id)
	return mix64(h ^ binary.LittleEndian.Uint64(tail[:]))
}

// mix64 is the finalizer of splitmix64: each bit of x changes half of the bits of the result.
func mix64(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// golden is 2^64 divided by the golden ratio: an odd number whose multiples are spread evenly.
const golden = 0x9e3779b97f4a7c15

// Multiples of golden modulo 2^64: constants do not wrap by themselves.
const (
	golden2 = 2 * golden % (1 << 64)
	golden3 = 3 * golden % (1 << 64)
	golden4 = 4 * golden % (1 << 64)
	golden5 = 5 * golden % (1 << 64)
	golden6 = 6 * golden % (1 << 64)
	golden7 = 7 * golden % (1 << 64)
	golden8 = 8 * golden % (1 << 64)
)

// word is the size of the unit of content, block the number of bytes that the loops below take at a time: a cache line.
const (
	word  = 8
	block = 8 * word
)

// seed is the first word of the content. Word i is seed + i*golden: strong between pages, where accidents happen, and one
// addition within a page, so that making and checking content does not hide the speed of moving it.
func (k Key) seed() uint64 {
	return mix64(mix64(mix64(k.Request)^uint64(k.Page)) ^ uint64(k.Layer)<<8 ^ uint64(k.Plane))
}

// Fill writes the content of k to dst.
//
// hot: once per page on the prefill side.
func Fill(dst []byte, k Key) {
	w := k.seed()
	for len(dst) >= block {
		b := (*[block]byte)(dst)
		binary.LittleEndian.PutUint64(b[0:], w)
		binary.LittleEndian.PutUint64(b[8:], w+golden)
		binary.LittleEndian.PutUint64(b[16:], w+golden2)
		binary.LittleEndian.PutUint64(b[24:], w+golden3)
		binary.LittleEndian.PutUint64(b[32:], w+golden4)
		binary.LittleEndian.PutUint64(b[40:], w+golden5)
		binary.LittleEndian.PutUint64(b[48:], w+golden6)
		binary.LittleEndian.PutUint64(b[56:], w+golden7)
		w += golden8
		dst = dst[block:]
	}
	for ; len(dst) >= word; dst = dst[word:] {
		binary.LittleEndian.PutUint64(dst, w)
		w += golden
	}
	for i := range dst {
		dst[i] = byte(w >> (8 * i))
	}
}

// Corrupt returns how many bytes of src differ from the content of k.
//
// hot: once per page on the decode side.
func Corrupt(src []byte, k Key) (corrupt int) {
	w := k.seed()
	for len(src) >= block {
		b := (*[block]byte)(src)
		diff := binary.LittleEndian.Uint64(b[0:]) ^ w
		diff |= binary.LittleEndian.Uint64(b[8:]) ^ (w + golden)
		diff |= binary.LittleEndian.Uint64(b[16:]) ^ (w + golden2)
		diff |= binary.LittleEndian.Uint64(b[24:]) ^ (w + golden3)
		diff |= binary.LittleEndian.Uint64(b[32:]) ^ (w + golden4)
		diff |= binary.LittleEndian.Uint64(b[40:]) ^ (w + golden5)
		diff |= binary.LittleEndian.Uint64(b[48:]) ^ (w + golden6)
		diff |= binary.LittleEndian.Uint64(b[56:]) ^ (w + golden7)
		if diff != 0 {
			corrupt += corruptWords(b[:], w)
		}
		w += golden8
		src = src[block:]
	}
	return corrupt + corruptWords(src, w)
}

// corruptWords is Corrupt word by word, from word w on.
func corruptWords(src []byte, w uint64) (corrupt int) {
	for ; len(src) >= word; src = src[word:] {
		corrupt += differingBytes(binary.LittleEndian.Uint64(src) ^ w)
		w += golden
	}
	for i, b := range src {
		if b != byte(w>>(8*i)) {
			corrupt++
		}
	}
	return corrupt
}

// differingBytes counts the bytes of x that are not zero.
func differingBytes(x uint64) int {
	x |= x >> 4
	x |= x >> 2
	x |= x >> 1
	return bits.OnesCount64(x & 0x0101010101010101)
}
