package moetest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
)

// A routing file, little-endian:
//
//	offset  0  "HWMR"         8  ranks, 4      24  seed, 8
//	        4  version 1, 4  12  tokens, 4     32  distribution, 32, zero-filled
//	                         16  experts, 4    64  tokens of each rank, 4 each
//	                         20  top-k, 4
//
// then ids, 4 bytes each with sign, then weights, as float32, of [ranks][tokens][top-k]. Nothing follows.
const (
	fileMagic   = "HWMR"
	fileVersion = 1
	fileHead    = 64
	distBytes   = 32
)

// ErrFormat: what was read is no routing file.
var ErrFormat = errors.New("not a routing file")

// Write writes the routing as a file.
func (r *Routing) Write(w io.Writer) error {
	b := bufio.NewWriter(w)
	head := make([]byte, fileHead)
	le := binary.LittleEndian
	copy(head, fileMagic)
	le.PutUint32(head[4:], fileVersion)
	for i, v := range []int{r.Ranks, r.Tokens, r.Experts, r.TopK} {
		le.PutUint32(head[8+4*i:], uint32(v))
	}
	le.PutUint64(head[24:], r.Seed)
	copy(head[32:], r.Dist.String())
	_, _ = b.Write(head) // errors stay: Flush returns the first
	var word [4]byte
	put := func(v uint32) {
		le.PutUint32(word[:], v)
		_, _ = b.Write(word[:])
	}
	for _, n := range r.N {
		put(uint32(n))
	}
	for _, id := range r.IDs {
		put(uint32(id))
	}
	for _, g := range r.Weights {
		put(math.Float32bits(g))
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("write routing: %w", err)
	}
	return nil
}

// ReadRouting reads a routing file to its end, and checks every field. Memory is taken only as data comes. Errors wrap ErrFormat, or are
// the reader's.
func ReadRouting(from io.Reader) (*Routing, error) {
	f := &file{r: bufio.NewReader(from)}
	r := f.routing()
	if f.err != nil {
		return nil, fmt.Errorf("read routing: %w", f.err)
	}
	return r, nil
}

// file is a file that is being read, until the first error.
type file struct {
	r   *bufio.Reader
	err error
}

func (f *file) fail(format string, args ...any) {
	if f.err == nil {
		f.err = fmt.Errorf("%w: %s", ErrFormat, fmt.Sprintf(format, args...))
	}
}

func (f *file) routing() *Routing {
	head := f.bytes(fileHead)
	if f.err != nil {
		return nil
	}
	le := binary.LittleEndian
	if string(head[:4]) != fileMagic || le.Uint32(head[4:]) != fileVersion {
		f.fail("it begins with %q, version %d", head[:4], le.Uint32(head[4:]))
		return nil
	}
	var v [4]int
	for i := range v {
		v[i] = int(min(le.Uint32(head[8+4*i:]), math.MaxInt32))
	}
	r := &Routing{Shape: Shape{v[0], v[1], v[2], v[3]}, Seed: le.Uint64(head[24:])}
	name, rest, _ := bytes.Cut(head[32:fileHead], []byte{0})
	d, err := ParseDist(string(name))
	if err = errors.Join(r.check(), err); err != nil || len(bytes.Trim(rest, "\x00")) > 0 {
		f.fail("header: %v, distribution %q", err, head[32:fileHead])
		return nil
	}
	r.Dist = d
	f.words(r.Ranks, func(i int, v uint32) {
		if uint64(v) > uint64(r.Tokens) {
			f.fail("rank %d has %d tokens, want at most %d", i, v, r.Tokens)
		}
		r.N = append(r.N, int(min(v, uint32(r.Tokens))))
	})
	n := r.Ranks * r.Tokens * r.TopK
	f.words(n, func(i int, v uint32) {
		id := int32(v)
		if id < -1 || int(id) >= r.Experts {
			f.fail("id %d is %d, want -1 .. %d", i, id, r.Experts-1)
		}
		r.IDs = append(r.IDs, id)
	})
	f.words(n, func(i int, v uint32) {
		g := math.Float32frombits(v)
		if math.IsNaN(float64(g)) || math.IsInf(float64(g), 0) {
			f.fail("weight %d is %v", i, g)
		}
		r.Weights = append(r.Weights, g)
	})
	if _, err := f.r.ReadByte(); f.err == nil && !errors.Is(err, io.EOF) {
		f.fail("more follows after %d ids and weights", n)
	}
	return r
}

func (f *file) bytes(n int) []byte {
	b := make([]byte, n)
	if f.err == nil {
		f.read(b)
	}
	return b
}

func (f *file) read(b []byte) {
	if _, err := io.ReadFull(f.r, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		f.fail("it is cut off")
	} else if err != nil {
		f.err = err
	}
}

// words hands over so many numbers, until the first error.
func (f *file) words(n int, take func(i int, v uint32)) {
	var block [4096]byte
	for i := 0; i < n && f.err == nil; {
		b := block[:min(len(block), 4*(n-i))]
		f.read(b)
		for ; len(b) > 0 && f.err == nil; b = b[4:] {
			take(i, binary.LittleEndian.Uint32(b))
			i++
		}
	}
}
