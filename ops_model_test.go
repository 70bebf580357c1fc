package hawser_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/hawser-project/hawser"
)

var opsSeed = flag.Uint64("ops.seed", 0, "seed of TestRandomOperationsAgainstAModel, 0 for a new one")

// star is a sender and receivers whose memory the sender has imported, with a naive model of what the receivers must hold.
type star struct {
	*testing.T
	a    *hawser.Engine
	src  *hawser.Region
	ends []*end
	q    *hawser.Queue
}

// end is one receiver. What the model says is written before the operation starts.
type end struct {
	e      *hawser.Engine
	dst    *hawser.Region
	rem    *hawser.Remote
	want   []byte
	counts map[uint32]uint64
}

const starMemory = 256 << 10

// star connects a sender to one receiver per number of rails.
func (w *world) star(t *testing.T, rails int, endRails ...int) *star {
	t.Helper()
	s := &star{T: t, a: w.engine(t, 0, rails)}
	s.src = w.alloc(t, s.a, starMemory)
	fill(s.src.Bytes(), uint64(rails))
	s.q = s.a.NewQueue(8)
	for i, n := range endRails {
		x := &end{e: w.engine(t, 1+i, n), want: make([]byte, starMemory), counts: map[uint32]uint64{}}
		x.dst = w.alloc(t, x.e, starMemory)
		rem, err := s.a.Import(testContext(t), x.dst.Descriptor(x.dst.All(), hawser.RightWrite))
		if err != nil {
			t.Fatal(err)
		}
		x.rem = rem
		s.ends = append(s.ends, x)
	}
	return s
}

func (s *star) end(p *hawser.Peer) *end {
	for _, x := range s.ends {
		if x.rem.Peer() == p {
			return x
		}
	}
	s.Fatalf("no end %s", p)
	return nil
}

// moved is one copy as the model sees it.
func (s *star) moved(r *hawser.Remote, dst, src, n uint64) {
	copy(s.end(r.Peer()).want[dst:], s.src.Bytes()[src:][:n])
}

func (s *star) counted(p *hawser.Peer, imm, n int) {
	if imm >= 0 && n > 0 {
		s.end(p).counts[uint32(imm)] += uint64(n)
	}
}

// job is a request, what it must do, and the same by way of a template that was prepared for something else. The immediates of
// its request are those of imms, -1 for none.
type job struct {
	req   hawser.Request
	imms  int // how many it must send
	model func()
	other hawser.Request
	args  hawser.Args
}

func opt(imm int) hawser.OptImm {
	if imm < 0 {
		return hawser.OptImm{}
	}
	return hawser.Imm(uint32(imm))
}

func many(imm, n int) int {
	if imm < 0 {
		return 0
	}
	return n
}

func (s *star) write(x *end, dst, src, n uint64, imm, parts int) job {
	w := hawser.Write{Src: s.src.Slice(src, n), Dst: x.rem.Slice(dst, n), Imm: opt(imm), Parts: parts}
	all := hawser.Write{Src: s.src.All(), Dst: x.rem.All(), Parts: parts, Imm: hawser.Imm(1000)}
	return job{
		req: w, imms: many(imm, max(parts, 1)), other: all, args: hawser.Args{SrcOff: src, DstOff: dst, Len: n, Imm: opt(imm)},
		model: func() {
			s.moved(x.rem, dst, src, n)
			s.counted(x.rem.Peer(), imm, max(parts, 1))
		},
	}
}

func (s *star) signal(x *end, imm int) job {
	p := x.rem.Peer()
	return job{
		req: hawser.Signal{To: p, Imm: uint32(imm)}, imms: 1, other: hawser.Signal{To: p, Imm: 1000}, args: hawser.Args{Imm: opt(imm)},
		model: func() { s.counted(p, imm, 1) },
	}
}

// layout is where pages lie on one side.
type layout struct {
	idx         []uint32
	stride, off uint64
}

func (l layout) at(i int) uint64 { return l.off + uint64(l.idx[i])*l.stride }

func (s *star) pages(x *end, n uint64, dst, src layout, imm int) job {
	w := hawser.WritePages{
		PageLen: n, Imm: opt(imm),
		Src: hawser.Pages{Region: s.src, Indices: src.idx, Stride: src.stride, Offset: src.off},
		Dst: hawser.RemotePages{Remote: x.rem, Indices: dst.idx, Stride: dst.stride, Offset: dst.off},
	}
	other := w
	other.PageLen, other.Imm = 1, hawser.Imm(1000)
	other.Src.Indices, other.Src.Offset, other.Dst.Indices, other.Dst.Offset = []uint32{0}, 3, []uint32{1}, 4
	args := hawser.Args{SrcOff: src.off, DstOff: dst.off, Len: n, Imm: opt(imm)}
	args.SrcIndices, args.DstIndices = append([]uint32{}, src.idx...), append([]uint32{}, dst.idx...)
	return job{req: w, imms: many(imm, len(src.idx)), other: other, args: args, model: func() {
		for i := range src.idx {
			s.moved(x.rem, dst.at(i), src.at(i), n)
		}
		s.counted(x.rem.Peer(), imm, len(src.idx))
	}}
}

// shot is one target; imm -1 is none of its own.
type shot struct {
	end        int
	dst, src   uint64
	n          uint64
	imm, parts int
}

func (s *star) scatter(imm int, shots ...shot) job {
	const skip = 5 // the source begins there
	r := hawser.Scatter{Src: s.src.Slice(skip, starMemory-skip), Imm: opt(imm)}
	other := hawser.Scatter{Src: s.src.All(), Imm: hawser.Imm(1000)}
	args := hawser.Args{Imm: opt(imm), Targets: []hawser.TargetArgs{}}
	total := 0
	value := func(h shot) int { return max(h.imm, imm) } // of tests that use rising values for targets
	for _, h := range shots {
		rem := s.ends[h.end].rem
		r.Targets = append(r.Targets, hawser.Target{Dst: rem.Slice(h.dst, h.n), SrcOff: h.src, Len: h.n, Imm: opt(h.imm), Parts: h.parts})
		other.Targets = append(other.Targets, hawser.Target{Dst: rem.All(), Len: 1, Imm: hawser.Imm(1001), Parts: 9 * (h.parts % 2)})
		args.Targets = append(args.Targets, hawser.TargetArgs{SrcOff: skip + h.src, DstOff: h.dst, Len: h.n, Imm: opt(h.imm), Parts: max(h.parts, 1)})
		total += many(value(h), max(h.parts, 1))
	}
	return job{req: r, imms: total, other: other, args: args, model: func() {
		for _, h := range shots {
			s.moved(s.ends[h.end].rem, h.dst, skip+h.src, h.n)
			s.counted(s.ends[h.end].rem.Peer(), value(h), max(h.parts, 1))
		}
	}}
}

// ways are all ways to submit a request.
var ways = []string{"call", "queue", "template", "template and queue", "as prepared"}

// do submits j one way, waits for its end, and compares.
func (s *star) do(way string, j job) {
	s.Helper()
	if n := j.req.ImmCount(); n != j.imms {
		s.Fatalf("the request announces %d immediates, want %d", n, j.imms)
	}
	j.model()
	switch way {
	case "call":
		tr, err := call(s.a, j.req)
		wait(s, tr, err)
	case "queue":
		s.drain(enqueue(s.q, j.req, 7))
	default:
		req, args := j.other, j.args
		if way == "as prepared" {
			req = j.req
		}
		tmpl, err := s.a.Prepare(req)
		if err != nil {
			s.Fatal(err)
		}
		if way == "as prepared" {
			args = tmpl.Args()
		}
		if way == "template and queue" {
			s.drain(s.q.Submit(tmpl, args, 7))
			return
		}
		tr, err := tmpl.Submit(args)
		wait(s, tr, err)
	}
}

func call(e *hawser.Engine, r hawser.Request) (*hawser.Transfer, error) {
	switch r := r.(type) {
	case hawser.Write:
		return e.Write(r)
	case hawser.WritePages:
		return e.WritePages(r)
	case hawser.Scatter:
		return e.Scatter(r)
	case hawser.Signal:
		return e.Signal(r)
	}
	panic(fmt.Sprintf("a request of type %T", r))
}

func enqueue(q *hawser.Queue, r hawser.Request, cookie uint64) error {
	switch r := r.(type) {
	case hawser.Write:
		return q.Write(r, cookie)
	case hawser.WritePages:
		return q.WritePages(r, cookie)
	case hawser.Scatter:
		return q.Scatter(r, cookie)
	case hawser.Signal:
		return q.Signal(r, cookie)
	}
	panic(fmt.Sprintf("a request of type %T", r))
}

// drain takes the one end that is due.
func (s *star) drain(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
	var out [2]hawser.Done
	n, err := s.q.Wait(testContext(s), out[:])
	if err != nil || n != 1 || out[0].Cookie != 7 || out[0].Err != nil {
		s.Fatalf("%d ends, first %+v: %v", n, out[0], err)
	}
}

// check compares every end with the model.
func (s *star) check() {
	s.Helper()
	for i, x := range s.ends {
		total := uint64(0)
		for imm, n := range x.counts {
			reach(s, x.e.Counter(imm), n)
			total += n
		}
		eventually(s, "all immediates counted", func() bool {
			st := x.e.Stats()
			return total == 0 || st.Peers[0].RxImms >= total
		})
		for imm, n := range x.counts {
			if got := x.e.Counter(imm).Load(); got != n {
				s.Fatalf("end %d: immediate %d counted %d times, want %d", i, imm, got, n)
			}
		}
		if got := x.e.Stats().Peers[0].RxImms; got != total { // and as pair.sync: what was written is before what is read
			s.Fatalf("end %d: %d immediates, want %d", i, got, total)
		}
		same(s, fmt.Sprintf("memory of end %d", i), x.dst.Bytes(), x.want)
		x.e.Stats() // as pair.sync: what comes next is after what was read
	}
}

// Every operation, submitted in every way over every network, does what a loop of copies does, and sends exactly the immediates that
// its request announces.
func TestOperationsAgainstAModel(t *testing.T) {
	few := layout{idx: []uint32{4, 0, 9, 2}, stride: 1000, off: 17}
	cases := []struct {
		name string
		job  func(s *star) job
	}{
		{"write", func(s *star) job { return s.write(s.ends[0], 100, 77, 70001, 1, 0) }},
		{"plain write", func(s *star) job { return s.write(s.ends[1], 3, 4, 200_000, -1, 0) }},
		{"immediate 0", func(s *star) job { return s.write(s.ends[2], 0, 0, 1, 0, 0) }},
		{"16385 bytes", func(s *star) job { return s.write(s.ends[0], 0, 0, 16385, -1, 2) }},
		{"parts", func(s *star) job { return s.write(s.ends[1], 9, 8, 100_003, 2, 7) }},
		{"parts beyond the length", func(s *star) job { return s.write(s.ends[2], 50, 60, 3, 3, 10) }},
		{"parts of nothing", func(s *star) job { return s.write(s.ends[2], starMemory, starMemory, 0, 3, 4) }},
		{"zero length", func(s *star) job { return s.write(s.ends[0], 0, 0, 0, 4, 0) }},
		{"plain zero length", func(s *star) job { return s.write(s.ends[0], 0, 0, 0, -1, 0) }},
		{"signal", func(s *star) job { return s.signal(s.ends[1], 5) }},
		{"pages", func(s *star) job {
			return s.pages(s.ends[0], 900, layout{idx: []uint32{3, 8, 1, 0}, stride: 900, off: 5}, few, 6)
		}},
		{"plain pages, adjacent", func(s *star) job {
			l := layout{idx: []uint32{1, 2, 3, 4, 5, 6}, stride: 4096}
			return s.pages(s.ends[1], 4096, l, l, -1)
		}},
		{"pages adjacent on one side", func(s *star) job {
			return s.pages(s.ends[1], 64, layout{idx: []uint32{1, 2, 3}, stride: 64}, layout{idx: []uint32{3, 1, 2}, stride: 64}, -1)
		}},
		{"overlapping source pages", func(s *star) job {
			return s.pages(s.ends[2], 500, few, layout{idx: []uint32{0, 1, 2, 3}, stride: 7}, 7)
		}},
		{"one source page, stride 0", func(s *star) job {
			return s.pages(s.ends[2], 100, few, layout{idx: []uint32{0, 77, 1 << 31, 3}, off: 11}, 8)
		}},
		{"stride 0 on both sides", func(s *star) job {
			return s.pages(s.ends[0], 100, layout{idx: []uint32{1, 2}, off: 9}, layout{idx: []uint32{7, 8}, off: 12}, 8)
		}},
		{"zero pages", func(s *star) job { return s.pages(s.ends[0], 100, layout{stride: 1}, layout{stride: 1}, 8) }},
		{"pages of 0 bytes", func(s *star) job { return s.pages(s.ends[1], 0, few, few, 9) }},
		{"a page that ends with the memory", func(s *star) job {
			l := layout{idx: []uint32{63}, stride: 4096, off: 1}
			return s.pages(s.ends[1], 4095, l, l, 9)
		}},
		{"scatter", func(s *star) job {
			return s.scatter(10, shot{0, 1, 2, 30000, -1, 0}, shot{1, 4, 0, 70000, -1, 0}, shot{2, 9, 100_000, 5, -1, 0})
		}},
		{"scatter with empty targets, parts and own immediates", func(s *star) job {
			return s.scatter(10, shot{2, 0, 0, 0, -1, 0}, shot{0, 100, 40, 999, 11, 3}, shot{0, 2000, 41, 2, 12, 5}, shot{1, 7, 7, 0, 13, 2})
		}},
		{"scatter with some immediates", func(s *star) job {
			return s.scatter(-1, shot{0, 0, 0, 100, -1, 0}, shot{1, 0, 0, 100, 0, 0}, shot{2, 0, 0, 70000, -1, 4})
		}},
		{"scatter to one target", func(s *star) job { return s.scatter(-1, shot{1, 4, 2, 200_000, -1, 0}) }},
		{"scatter to nobody", func(s *star) job { return s.scatter(1) }},
		{"scatter to 100 targets", func(s *star) job {
			var shots []shot
			for i := range uint64(100) {
				shots = append(shots, shot{int(i % 3), i * 700, i * 650, 7 * i, -1, int(i % 4)})
			}
			return s.scatter(14, shots...)
		}},
	}
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 2, 1, 2, 3)
		for _, c := range cases {
			for _, way := range ways {
				ok := t.Run(c.name+"/"+way, func(t *testing.T) {
					s.T = t
					s.do(way, c.job(s))
					s.check()
				})
				if !ok {
					return
				}
			}
		}
	})
}

// The same for requests that chance makes.
func TestRandomOperationsAgainstAModel(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		seed := *opsSeed
		if seed == 0 {
			seed = rand.Uint64()
		}
		t.Logf("repeat with -ops.seed %d", seed)
		rng := rand.New(rand.NewPCG(seed, 1))
		s := w.star(t, 1+rng.IntN(4), 1+rng.IntN(4), 1+rng.IntN(4), 1+rng.IntN(4))
		for i := range 150 {
			s.do(ways[rng.IntN(len(ways))], s.random(rng))
			if i%10 == 0 {
				s.check()
			}
		}
		s.check()
	})
}

func (s *star) random(rng *rand.Rand) job {
	x := s.ends[rng.IntN(len(s.ends))]
	imm, parts := rng.IntN(6)-1, rng.IntN(6)
	length := func(limit int) uint64 { // short, empty, or up to the limit
		return uint64(rng.IntN([]int{1, 10, limit, limit}[rng.IntN(4)]))
	}
	switch rng.IntN(4) {
	case 0:
		return s.signal(x, rng.IntN(5))
	case 1:
		n := length(starMemory)
		room := starMemory - int(n) + 1
		return s.write(x, uint64(rng.IntN(room)), uint64(rng.IntN(room)), n, imm, parts)
	case 2:
		n := length(2000)
		dst := layout{stride: n + uint64(rng.IntN(100)), off: uint64(rng.IntN(1000))}
		src := layout{stride: uint64(rng.IntN(3000)), off: uint64(rng.IntN(1000))}
		for _, i := range rng.Perm(64)[:rng.IntN(64)] {
			dst.idx, src.idx = append(dst.idx, uint32(i)), append(src.idx, uint32(rng.IntN(64)))
		}
		return s.pages(x, n, dst, src, imm)
	}
	var shots []shot
	const cell = starMemory / 64
	for _, i := range rng.Perm(64)[:rng.IntN(64)] {
		own := -1
		if rng.IntN(2) == 0 {
			own = 6 + rng.IntN(3) // above the common ones
		}
		shots = append(shots, shot{rng.IntN(len(s.ends)), uint64(i) * cell, uint64(rng.IntN(starMemory / 2)), length(cell), own, rng.IntN(4)})
	}
	return s.scatter(imm, shots...)
}

// The number of immediates is that of the request, with any number of rails on either side.
func TestImmediatesDoNotDependOnRails(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for a := 1; a <= 4; a++ {
			for b := 1; b <= 4; b++ {
				t.Run(fmt.Sprintf("%dx%d", a, b), func(t *testing.T) {
					s := w.star(t, a, b)
					x := s.ends[0]
					s.do("call", s.write(x, 0, 1, starMemory-1, 1, hawser.PartsFor(starMemory)))
					s.do("queue", s.write(x, 1, 0, 16385, 2, 5))
					l := layout{idx: []uint32{0, 1, 2, 3, 4, 5, 6}, stride: 4096}
					s.do("template", s.pages(x, 4096, l, l, 3))
					s.do("call", s.scatter(4, shot{0, 9, 7, 70000, -1, 3}, shot{0, 100_000, 1, 0, 5, 0}))
					s.do("call", s.signal(x, 6))
					s.check()
				})
			}
		}
	})
}

func TestPartsFor(t *testing.T) {
	for _, c := range []struct {
		length uint64
		parts  int
	}{
		{0, 1},
		{1, 1},
		{64 << 10, 1},
		{64<<10 + 1, 2},
		{256 << 10, 4},
		{1 << 20, 16},
		{1<<20 + 1, 16},
		{64 << 20, 16},
		{64<<20 + 1, 17},
		{1 << 30, 256},
		{1<<64 - 1, hawser.MaxParts},
	} {
		if got := hawser.PartsFor(c.length); got != c.parts {
			t.Errorf("%d bytes: %d parts, want %d", c.length, got, c.parts)
		}
	}
}
