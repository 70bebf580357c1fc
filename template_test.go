package hawser_test

import (
	"errors"
	"math"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
)

func (s *star) prepare(r hawser.Request) *hawser.Template {
	s.Helper()
	t, err := s.a.Prepare(r)
	if err != nil {
		s.Fatal(err)
	}
	return t
}

// What Submit is given is checked against what was prepared, and against nothing less.
func TestTemplateArgumentErrors(t *testing.T) {
	s := newWorld(t, "sim").star(t, 1, 1)
	rem := s.ends[0].rem
	write := s.prepare(hawser.Write{Src: s.src.Slice(100, 50), Dst: rem.Slice(200, 70)})
	if a := write.Args(); a.Len != 50 {
		t.Fatalf("length %d, want that of the shorter side", a.Len)
	}
	idx := []uint32{1, 7, 3}
	pages := s.prepare(hawser.WritePages{
		PageLen: 10, Src: hawser.Pages{Region: s.src, Indices: idx, Stride: 10}, Dst: hawser.RemotePages{Remote: rem, Indices: idx, Stride: 20},
	})
	idx[0] = 1 << 31 // the template has its own
	targets := []hawser.Target{{Dst: rem.Slice(0, 10), Len: 1}, {Dst: rem.Slice(50, 20), Len: 1}}
	scatter := s.prepare(hawser.Scatter{Src: s.src.Slice(7, 60), Targets: targets})
	targets[0] = hawser.Target{}
	signal := s.prepare(hawser.Signal{To: rem.Peer(), Imm: 1})
	bad := hawser.TargetArgs{SrcOff: 61, Parts: -1}
	for name, c := range map[string]struct {
		t    *hawser.Template
		a    hawser.Args
		text string // empty: it is right
	}{
		"write at the end":         {write, hawser.Args{SrcOff: 40, DstOff: 60, Len: 10}, ""},
		"write beyond its source":  {write, hawser.Args{SrcOff: 41, Len: 10}, "source: invalid: [41, +10) is not inside the slice's 50"},
		"write beyond":             {write, hawser.Args{DstOff: 61, Len: 10}, "destination: invalid: [61, +10) is not inside the slice's 70"},
		"write of too much":        {write, hawser.Args{Len: 51}, "source"},
		"write that wraps":         {write, hawser.Args{SrcOff: math.MaxUint64 - 90, Len: 5}, "source"},
		"pages at the end":         {pages, hawser.Args{SrcOff: starMemory - 80, DstOff: starMemory - 150, Len: 10}, ""},
		"page beyond its source":   {pages, hawser.Args{SrcOff: starMemory - 79, Len: 10}, "source: invalid: page 1 (index 7)"},
		"page beyond":              {pages, hawser.Args{DstOff: starMemory - 149, Len: 10}, "destination: invalid: page 1 (index 7)"},
		"page too long":            {pages, hawser.Args{Len: starMemory}, "source: invalid: page 0 (index 1)"},
		"other page beyond":        {pages, hawser.Args{Len: 10, SrcIndices: []uint32{0, 0, 1 << 31}}, "source: invalid: page 2"},
		"other destination beyond": {pages, hawser.Args{Len: 10, DstIndices: []uint32{0, starMemory / 20, 0}}, "destination: invalid: page 1"},
		"lists of two lengths":     {pages, hawser.Args{Len: 10, DstIndices: []uint32{0}}, "3 source pages, 1 destination pages"},
		"scatter":                  {scatter, hawser.Args{Targets: []hawser.TargetArgs{{SrcOff: 50, Len: 10}, {DstOff: 20}}}, ""},
		"target beyond its source": {scatter, hawser.Args{Targets: []hawser.TargetArgs{{}, {SrcOff: 51, Len: 10}}}, "target 1: source"},
		"target beyond":            {scatter, hawser.Args{Targets: []hawser.TargetArgs{{DstOff: 1, Len: 10}, {}}}, "target 0: destination: invalid: [1, +10) is not inside the slice's 10"},
		"too few targets":          {scatter, hawser.Args{Targets: make([]hawser.TargetArgs, 1)}, "targets: invalid: 1, 2 were prepared"},
		"target of negative parts": {scatter, hawser.Args{Targets: []hawser.TargetArgs{{}, {Parts: -1}}}, "target 1: parts: invalid: -1"},
		"target of many parts":     {scatter, hawser.Args{Targets: []hawser.TargetArgs{{Parts: hawser.MaxParts + 1}, {}}}, "target 0: parts: invalid"},
		"masked target":            {scatter, hawser.Args{Targets: []hawser.TargetArgs{{}, bad}, Mask: []uint64{1}}, ""},
		"target not masked":        {scatter, hawser.Args{Targets: []hawser.TargetArgs{{}, bad}, Mask: []uint64{2}}, "target 1: source"},
		"empty mask":               {scatter, hawser.Args{Mask: []uint64{}}, "mask: invalid: 0 words, 2 targets need 1"},
		"long mask":                {scatter, hawser.Args{Mask: []uint64{3, 0}}, "mask: invalid: 2 words"},
		"signal of nothing":        {signal, hawser.Args{}, "immediate"},
	} {
		_, err := c.t.Submit(c.a)
		twin := s.q.Submit(c.t, c.a, 7)
		if c.text == "" {
			if err != nil || twin != nil {
				t.Errorf("%s: %v, %v", name, err, twin)
			} else if err := s.end1(nil); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		for _, err := range []error{err, twin} {
			if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%s: %v, want %q", name, err, c.text)
			}
		}
	}
	eventually(t, "everything ends", func() bool { return s.a.Stats().Inflight == 0 })
	if err := s.q.Submit(nil, hawser.Args{}, 0); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("no template: %v", err)
	}
	other := newWorld(t, "sim").star(t, 1, 1)
	if err := other.q.Submit(write, write.Args(), 0); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("a template of another engine: %v", err)
	}
	if _, err := s.a.Prepare(nil); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("no request: %v", err)
	}
}

// A template lives as long as the session; then it says so, also when the peer is back.
func TestTemplateGoesStale(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 1, 1)
		x := s.ends[0]
		requests := s.requests(hawser.OptRail{})
		var templates []*hawser.Template
		for _, r := range requests {
			templates = append(templates, s.prepare(r))
		}
		stale := func() {
			t.Helper()
			for i, tmpl := range templates {
				tr, err := tmpl.Submit(tmpl.Args())
				if _, scatter := requests[i].(hawser.Scatter); scatter && err == nil {
					err = tr.Wait(testContext(t))
				}
				if !errors.Is(err, hawser.ErrStale) {
					t.Errorf("%T: %v", requests[i], err)
				}
			}
		}
		writer, err := x.e.Connect(testContext(t), s.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := x.e.Fence(testContext(t), writer); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the writer learns that it was cut off", func() bool { return !x.rem.Peer().Up() })
		stale()
		if x.rem, err = s.a.Import(testContext(t), x.dst.Descriptor(x.dst.All(), hawser.RightWrite)); err != nil {
			t.Fatal(err)
		}
		stale()
		for _, r := range s.requests(hawser.OptRail{}) {
			tmpl := s.prepare(r)
			tr, err := tmpl.Submit(tmpl.Args())
			wait(t, tr, err)
		}
	})
}

// Anybody may submit a template while others do.
func TestTemplateIsShared(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 2, 1, 2)
		const routines, each, cell = 8, 100, starMemory / 8
		r := hawser.Scatter{Src: s.src.All()}
		for _, x := range s.ends {
			r.Targets = append(r.Targets, hawser.Target{Dst: x.rem.All()}, hawser.Target{Dst: x.rem.All()})
		}
		tmpl := s.prepare(r)
		var wg sync.WaitGroup
		for g := range uint64(routines) {
			wg.Go(func() {
				a := tmpl.Args()
				a.Imm = hawser.Imm(uint32(g))
				a.Targets = make([]hawser.TargetArgs, 4)
				for i := range uint64(each) {
					for k := range a.Targets {
						off := g*cell + i*300 + uint64(k%2)*150
						a.Targets[k] = hawser.TargetArgs{SrcOff: off, DstOff: off, Len: 150}
					}
					tr, err := tmpl.Submit(a)
					if err != nil {
						t.Error(err)
						return
					}
					if i%10 == 0 {
						wait(t, tr, nil)
					}
				}
			})
		}
		wg.Wait()
		for _, x := range s.ends {
			for g := range uint32(routines) {
				x.counts[g] = 2 * each
				copy(x.want[g*cell:], s.src.Bytes()[g*cell:][:each*300])
			}
		}
		s.check()
	})
}

// A template does not keep its source from closing, and cannot be submitted afterwards.
func TestTemplateOfAClosedRegion(t *testing.T) {
	s := newWorld(t, "sim").star(t, 1, 1)
	var templates []*hawser.Template
	for _, r := range s.requests(hawser.OptRail{})[:3] {
		templates = append(templates, s.prepare(r))
	}
	if err := s.src.Close(); err != nil {
		t.Fatal(err)
	}
	for i, tmpl := range templates {
		if _, err := tmpl.Submit(tmpl.Args()); !errors.Is(err, hawser.ErrClosed) {
			t.Errorf("template %d: %v", i, err)
		}
	}
}

// Submitting scatters and templates allocates nothing, on both sides together.
func TestPreparedRequestsAllocateNothing(t *testing.T) {
	for _, name := range hostWorlds() {
		t.Run(name, func(t *testing.T) {
			s := newWorld(t, name).star(t, 1, 1, 1)
			l := layout{idx: []uint32{3, 1, 2, 0}, stride: 4096}
			scatter := s.scatter(1, shot{0, 0, 0, 100, -1, 2}, shot{1, 0, 0, 100, -1, 0})
			jobs := []job{s.write(s.ends[0], 1, 2, 64, 1, 0), s.pages(s.ends[0], 4096, l, l, 1), s.signal(s.ends[0], 1), scatter}
			var templates []*hawser.Template
			for _, j := range jobs {
				templates = append(templates, s.prepare(j.other))
			}
			plain := scatter.req.(hawser.Scatter)
			bound, err := templates[3].Rebind(func(r *hawser.Remote) *hawser.Remote { return r })
			if err != nil {
				t.Fatal(err)
			}
			masked := hawser.Args{Targets: []hawser.TargetArgs{{Len: 9, Imm: hawser.Imm(1), Parts: 3}, {}}, Mask: []uint64{1}}
			c, total := s.ends[0].e.Counter(1), uint64(0)
			done := make([]hawser.Done, 8)
			round := func() {
				for i, tmpl := range templates {
					if err := s.q.Submit(tmpl, jobs[i].args, 7); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.q.Scatter(plain, 7); err != nil {
					t.Fatal(err)
				}
				if err := s.q.Submit(bound, masked, 7); err != nil {
					t.Fatal(err)
				}
				for n := 0; n < 6; runtime.Gosched() {
					n += s.q.Poll(done)
				}
				total += 1 + 4 + 1 + 2 + 2 + 3
				for c.Load() < total {
					runtime.Gosched()
				}
			}
			allocatesNothing(t, round)
		})
	}
}

// Targets that the mask leaves out get nothing and count as nothing, whatever is in flight at once.
func TestTemplateMask(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 2, 1, 2)
		const targets, cell = 130, 64 // more than two words of mask
		r := hawser.Scatter{Src: s.src.All(), Imm: hawser.Imm(1)}
		for i := range uint64(targets) {
			r.Targets = append(r.Targets, hawser.Target{Dst: s.ends[i%2].rem.Slice(i*cell, cell), SrcOff: i * cell, Len: cell})
		}
		tmpl := s.prepare(r)
		for name, mask := range map[string][]uint64{
			"none": {0, 0, 0}, "none, with bits beyond": {0, 0, ^uint64(3)}, "first": {1, 0, 0}, "last": {0, 0, 2}, "some": {0xf0f0f, 1 << 63, 1},
		} {
			a := tmpl.Args()
			a.Mask = mask
			model := func() {
				for i := range uint64(targets) {
					if mask[i/64]>>(i%64)&1 != 0 {
						s.moved(r.Targets[i].Dst.Remote, i*cell, i*cell, cell)
						s.counted(r.Targets[i].Dst.Remote.Peer(), 1, 1)
					}
				}
			}
			for range 3 { // scatters are used again, and what a mask left in them must not count
				model()
				tr, err := tmpl.Submit(a)
				wait(t, tr, err)
				model()
				s.drain(s.q.Submit(tmpl, a, 7))
			}
			if n := s.a.Stats().Inflight; n != 0 {
				t.Fatalf("%s: %d operations in flight", name, n)
			}
			s.check()
		}
		for i := range r.Targets {
			s.moved(r.Targets[i].Dst.Remote, uint64(i)*cell, uint64(i)*cell, cell)
			s.counted(r.Targets[i].Dst.Remote.Peer(), 1, 1)
		}
		tr, err := tmpl.Submit(tmpl.Args()) // with no mask all of them again
		wait(t, tr, err)
		s.check()
	})
}

// Masked targets take no room among the operations in flight.
func TestMaskedTargetsTakeNoRoom(t *testing.T) {
	s := newWorld(t, "sim").star(t, 1, 1)
	r := hawser.Scatter{Src: s.src.All()}
	for range hawser.MaxTargets {
		r.Targets = append(r.Targets, hawser.Target{Dst: s.ends[0].rem.All(), Len: 1})
	}
	tmpl := s.prepare(r)
	a := tmpl.Args()
	a.Mask = make([]uint64, hawser.MaxTargets/64)
	a.Mask[5] = 1
	q := s.a.NewQueue(64)
	for range 64 { // 64 times 4096 targets are more than an engine has room for
		if err := q.Submit(tmpl, a, 0); err != nil {
			t.Fatal(err)
		}
	}
	ends := make([]hawser.Done, 64)
	for n := 0; n < 64; {
		k, err := q.Wait(testContext(t), ends)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range ends[:k] {
			if d.Err != nil {
				t.Fatal(d.Err)
			}
		}
		n += k
	}
	eventually(t, "everything ends", func() bool { return s.a.Stats().Inflight == 0 })
}

// A peer that is down fails no scatter that leaves it out.
func TestMaskLeavesOutWhoIsDown(t *testing.T) {
	s := newWorld(t, "sim").star(t, 1, 1, 1)
	tmpl := s.prepare(s.scatter(1, shot{0, 0, 0, 100, -1, 0}, shot{1, 0, 0, 100, -1, 0}).req)
	s.leave(0)
	a := tmpl.Args()
	failures(t, s.end1(s.q.Submit(tmpl, a, 7)), 0)
	a.Mask = []uint64{2}
	if err := s.end1(s.q.Submit(tmpl, a, 7)); err != nil {
		t.Fatal(err)
	}
}

// The requests of a template go on with other remotes: of a peer that has granted anew, or of other memory.
func TestTemplateRebind(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		s := w.star(t, 1, 1, 1)
		x := s.ends[0]
		l := layout{idx: []uint32{3, 1, 2, 0}, stride: 4096}
		jobs := []job{
			s.write(x, 1, 2, 64, 1, 3), s.pages(x, 4096, l, l, 1),
			s.scatter(1, shot{0, 0, 0, 100, -1, 2}, shot{1, 0, 0, 100, -1, 0}, shot{0, 9000, 5, 10, 2, 0}),
		}
		var templates []*hawser.Template
		for _, j := range jobs {
			templates = append(templates, s.prepare(j.other))
		}
		writer, err := x.e.Connect(testContext(t), s.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := x.e.Fence(testContext(t), writer); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the writer learns that it was cut off", func() bool { return !x.rem.Peer().Up() })
		old := x.rem
		if x.rem, err = s.a.Import(testContext(t), x.dst.Descriptor(x.dst.All(), hawser.RightWrite)); err != nil {
			t.Fatal(err)
		}
		for i, tmpl := range templates {
			fresh, err := tmpl.Rebind(func(r *hawser.Remote) *hawser.Remote {
				if r == old {
					return x.rem
				}
				return r
			})
			if err != nil {
				t.Fatalf("%T: %v", jobs[i].other, err)
			}
			jobs[i].model()
			s.drain(s.q.Submit(fresh, jobs[i].args, 7))
			jobs[i].model()
			tr, err := fresh.Submit(jobs[i].args)
			wait(t, tr, err)
			if tr, err := tmpl.Submit(jobs[i].args); err == nil { // the old one stays what it is
				if err = tr.Wait(testContext(t)); !errors.Is(err, hawser.ErrStale) {
					t.Errorf("%T: the old template: %v", jobs[i].other, err)
				}
			} else if !errors.Is(err, hawser.ErrStale) {
				t.Errorf("%T: the old template: %v", jobs[i].other, err)
			}
		}
		for _, j := range jobs[2].other.(hawser.Scatter).Targets { // what the old scatter still wrote to the other end
			if p := j.Dst.Remote.Peer(); p == s.ends[1].rem.Peer() {
				s.moved(j.Dst.Remote, 0, 5, 100)
				s.counted(p, 1, 1)
			}
		}
		s.check()
	})
}

// A remote that is too short, or none, is refused, and the template is as before.
func TestTemplateRebindErrors(t *testing.T) {
	w := newWorld(t, "sim")
	s := w.star(t, 1, 1)
	x := s.ends[0]
	short, err := s.a.Import(testContext(t), x.dst.Descriptor(x.dst.Slice(0, 1000), hawser.RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	foreign := newWorld(t, "sim").star(t, 1, 1).ends[0].rem
	l := layout{idx: []uint32{3, 1}, stride: 400}
	requests := map[string]hawser.Request{
		"write":   hawser.Write{Src: s.src.Slice(0, 10), Dst: x.rem.Slice(991, 10)},
		"pages":   s.pages(x, 300, l, l, 1).req,
		"scatter": hawser.Scatter{Src: s.src.All(), Targets: []hawser.Target{{Dst: short.All(), Len: 1}, {Dst: x.rem.Slice(991, 10), Len: 1}}},
	}
	for name, r := range requests {
		tmpl := s.prepare(r)
		for text, with := range map[string]*hawser.Remote{"inside": short, "no remote": nil, "another engine": foreign} {
			_, err := tmpl.Rebind(func(*hawser.Remote) *hawser.Remote { return with })
			if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), text) && !strings.Contains(err.Error(), "belongs") {
				t.Errorf("%s, %s: %v", name, text, err)
			}
		}
		if tr, err := tmpl.Submit(tmpl.Args()); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := tr.Wait(testContext(t)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	signal := s.prepare(hawser.Signal{To: x.rem.Peer(), Imm: 1})
	if _, err := signal.Rebind(func(r *hawser.Remote) *hawser.Remote { return r }); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("a signal: %v", err)
	}
}
