package reshard

import (
	"encoding/binary"
	"fmt"
	"math"
)

// reader takes the canonical encoding apart. After the first fault everything reads as zero, so that only the end must be checked.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail(what string) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s, %d bytes before the end", ErrFormat, what, len(r.b))
		r.b = nil
	}
}

func (r *reader) uint() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("a number is cut off or too long")
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) int() int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("a number is cut off or too long")
		return 0
	}
	r.b = r.b[n:]
	return v
}

// small is an int that other code uses as an index: it fits 31 bits.
func (r *reader) small() int {
	v := r.int()
	if v < math.MinInt32 || v > math.MaxInt32 {
		r.fail("a number is out of range")
		return 0
	}
	return int(v)
}

func (r *reader) byte() byte {
	if len(r.b) == 0 {
		r.fail("the end")
		return 0
	}
	v := r.b[0]
	r.b = r.b[1:]
	return v
}

func (r *reader) bool() bool {
	v := r.byte()
	if v > 1 {
		r.fail("a flag is neither 0 nor 1")
	}
	return v == 1
}

func (r *reader) want(b byte) {
	if r.byte() != b {
		r.fail("a mark is missing")
	}
}

// count is the length of a list whose entries have at least size bytes: no more than could be there.
func (r *reader) count(size int) int {
	n := r.uint()
	if n > uint64(len(r.b)/size) {
		r.fail(fmt.Sprintf("a list of %d entries", n))
		return 0
	}
	return int(n)
}

func (r *reader) string() string {
	n := r.count(1)
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
}

func (r *reader) strings() (out []string) {
	for range r.count(1) {
		out = append(out, r.string())
	}
	return out
}

func (r *reader) int64s() []int64 {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	out := make([]int64, n)
	for i := range out {
		out[i] = r.int()
	}
	return out
}

func (r *reader) ints() []int {
	n := r.count(1)
	if n == 0 {
		return nil
	}
	out := make([]int, n)
	for i := range out {
		out[i] = r.small()
	}
	return out
}

func (r *reader) bits() []bool {
	n := r.uint()
	if n > uint64(len(r.b))*8 {
		r.fail(fmt.Sprintf("%d bits", n))
		return nil
	}
	out := make([]bool, n)
	for i := range out {
		out[i] = r.b[i/8]>>(i%8)&1 == 1
	}
	r.b = r.b[(n+7)/8:]
	return out
}

func (r *reader) codec() Codec {
	c := Codec{Kind: r.string(), Block: [2]int{r.small(), r.small()}, Scale: DType(r.byte())}
	if len(r.b) < 4 {
		r.fail("the end")
		return c
	}
	c.Floor = math.Float32frombits(binary.LittleEndian.Uint32(r.b))
	r.b = r.b[4:]
	c.Recip = r.bool()
	return c
}

func (r *reader) layout() *Layout {
	l := &Layout{Side: r.string()}
	for range r.count(3) {
		l.Tensors = append(l.Tensors, Tensor{Name: r.string(), Shape: r.int64s(), DType: DType(r.byte())})
	}
	for range r.count(8) {
		l.Grids = append(l.Grids, r.grid())
	}
	for range r.count(8) {
		l.Fragments = append(l.Fragments, r.fragment())
	}
	for range r.count(5) {
		if x := r.int64s(); len(x) == 4 {
			l.Pads = append(l.Pads, Range{int(x[0]), int(x[1]), x[2], x[3]})
		} else {
			r.fail("a pad has no four numbers")
		}
	}
	for range r.count(1) {
		l.Buffers = append(l.Buffers, r.int64s())
	}
	for range r.count(2) {
		if l.Aliases == nil {
			l.Aliases = map[string]string{}
		}
		name := r.string()
		l.Aliases[name] = r.string()
	}
	for range r.count(3) {
		d := Derived{From: r.strings()}
		d.Name, d.Hook = r.string(), r.string()
		l.Derived = append(l.Derived, d)
	}
	l.Topo = Topology{Node: r.ints(), Rail: r.ints(), Instance: r.ints()}
	return l
}

func (r *reader) grid() (g Grid) {
	g.Mesh.Dims = r.strings()
	g.Tensors, g.Offsets = r.ints(), r.int64s()
	places := r.count(2)
	r.want('g')
	g.Mesh.Shape, g.Mesh.Ranks = r.ints(), r.ints()
	for range places {
		p := Placement{Kind: r.string()}
		p.Dim = r.small()
		g.Place = append(g.Place, p)
	}
	g.Buffer, g.Strides, g.Scales = r.small(), r.int64s(), r.bool()
	g.Codec = r.codec()
	return g
}

func (r *reader) fragment() (f Fragment) {
	f.Tensor, f.Offset = r.small(), r.int()
	r.want('f')
	f.Lo, f.Hi = r.int64s(), r.int64s()
	f.Rank, f.Buffer = r.small(), r.small()
	for range r.count(2) {
		d := Digit{Extent: r.int()}
		d.Stride = r.int()
		f.Digits = append(f.Digits, d)
	}
	f.Scales = r.bool()
	f.Codec = r.codec()
	return f
}

func (r *reader) rules() (out []Rule) {
	for range r.count(6) {
		x := Rule{Match: r.string(), Into: r.string(), View: r.int64s(), Slot: r.small()}
		x.Codec = r.codec()
		out = append(out, x)
	}
	return out
}

func (r *reader) options() (o Options) {
	o.Split = r.bool()
	if x := r.int64s(); len(x) == 3 {
		o.MaxWrite, o.SmallTensor, o.MaxRegions = x[0], x[1], x[2]
	} else {
		r.fail("options have no three numbers")
	}
	o.Seed = r.uint()
	return o
}
