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
				for n := 0; n < 5; runtime.Gosched() {
					n += s.q.Poll(done)
				}
				total += 1 + 4 + 1 + 2 + 2
				for c.Load() < total {
					runtime.Gosched()
				}
			}
			allocatesNothing(t, round)
		})
	}
}
