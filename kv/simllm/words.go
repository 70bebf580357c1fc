package simllm

import (
	"encoding/binary"
	"math/bits"
)

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

// fillWords writes the words w, w+golden, w+2*golden ... to dst, little endian; the last may be cut.
//
// hot: once per row on the prefill side.
func fillWords(dst []byte, w uint64) {
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

// wrongBytes counts the bytes in which src differs from what fillWords writes.
//
// hot: once per row on the decode side.
func wrongBytes(src []byte, w uint64) (wrong int) {
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
			wrong += wrongWords(b[:], w)
		}
		w += golden8
		src = src[block:]
	}
	return wrong + wrongWords(src, w)
}

// wrongWords is wrongBytes word by word, from word w on.
func wrongWords(src []byte, w uint64) (wrong int) {
	for ; len(src) >= word; src = src[word:] {
		wrong += differingBytes(binary.LittleEndian.Uint64(src) ^ w)
		w += golden
	}
	for i, b := range src {
		if b != byte(w>>(8*i)) {
			wrong++
		}
	}
	return wrong
}

// differingBytes counts the bytes of x that are not zero.
func differingBytes(x uint64) int {
	x |= x >> 4
	x |= x >> 2
	x |= x >> 1
	return bits.OnesCount64(x & 0x0101010101010101)
}

// firstWrong is the first byte in which src differs from what fillWords writes. There must be one.
func firstWrong(src []byte, w uint64) (offset int, want, got byte) {
	for i, b := range src {
		if want := byte((w + uint64(i/word)*golden) >> (8 * (i % word))); b != want {
			return i, want, b
		}
	}
	panic("simllm: no wrong byte")
}
