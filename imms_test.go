package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
)

func take(t testing.TB, e *hawser.Engine) *hawser.Counter {
	t.Helper()
	c, err := e.Imms().Take()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestTakeLendsEachValueOnceAndTheOldestFirst(t *testing.T) {
	o := newWorld(t, "sim").options(0, 1)
	o.ImmBase, o.ImmBits = 0x40, 3
	e := open(t, o)
	lent := map[uint32]*hawser.Counter{}
	for range 8 {
		c := take(t, e)
		if v := c.Imm(); v < 0x40 || v > 0x47 || lent[v] != nil {
			t.Fatalf("lent %#x, others are %v", v, lent)
		}
		if e.Counter(c.Imm()) != c {
			t.Fatal("a lent value has two counters")
		}
		lent[c.Imm()] = c
	}
	if _, err := e.Imms().Take(); !errors.Is(err, hawser.ErrLimit) {
		t.Fatalf("a ninth value of 8: %v", err)
	}
	order := []uint32{0x45, 0x41, 0x46}
	for _, v := range order {
		if v == 0x41 {
			lent[v].Close() // the same as Put
		} else if err := e.Imms().Put(lent[v]); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Imms().Put(lent[0x45]); !errors.Is(err, hawser.ErrClosed) {
		t.Fatalf("given back twice: %v", err)
	}
	for name, c := range map[string]*hawser.Counter{"none": nil, "open": e.Counter(1), "closed": e.Counter(0x45)} {
		if err := e.Imms().Put(c); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, v := range order {
		if c := take(t, e); c.Imm() != v {
			t.Fatalf("lent %#x, want %#x", c.Imm(), v)
		}
	}
	if _, err := e.Imms().Take(); !errors.Is(err, hawser.ErrLimit) {
		t.Fatalf("a value that was given back twice is lent twice: %v", err)
	}
}

func TestTakeUsesTheValuesWithTwelveOnes(t *testing.T) {
	e := newWorld(t, "sim").engine(t, 0, 1)
	if c := take(t, e); c.Imm()>>20 != 0xfff {
		t.Fatalf("lent %#x", c.Imm())
	}
	_, err := e.Imms().Reserve("somebody else", 0xfff10000, 16, 8)
	if !errors.Is(err, hawser.ErrBusy) || !strings.Contains(err.Error(), "0xfff00000 .. 0xffffffff are held by Imms.Take") {
		t.Fatalf("values of the allocator were reserved: %v", err)
	}
	for _, bits := range []int{-1, 32} {
		o := newWorld(t, "sim").options(0, 1)
		o.ImmBits = bits
		if e, err := hawser.Open(testContext(t), o); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%d bits: %v, %v", bits, e, err)
		}
	}
}

// An immediate for a value that is not lent is counted as stale, shown, and never part of the next use.
func TestStaleImmediatesAreSeenAndNotMixedIn(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		o := w.options(1, 1)
		o.ImmBits, o.ImmBase = 1, 8
		a, b := w.engine(t, 0, 1), open(t, o)
		to, err := a.Connect(testContext(t), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		type stale struct {
			from *hawser.Peer
			imm  uint32
		}
		seen := make(chan stale, 16)
		stop := b.Imms().OnStale(func(p *hawser.Peer, v uint32) { seen <- stale{p, v} })
		send := func(v uint32, n int) {
			for range n {
				tr, err := a.Signal(hawser.Signal{To: to, Imm: v})
				wait(t, tr, err)
			}
		}
		c := take(t, b)
		v := c.Imm()
		send(v, 2)
		reach(t, c, 2)
		if err := b.Imms().Put(c); err != nil {
			t.Fatal(err)
		}
		send(v, 3)
		for range 3 {
			if s := receive(t, "a stale immediate", seen); s.imm != v || s.from.ID() != a.ID() {
				t.Fatalf("%+v", s)
			}
		}
		if err := b.Counter(v).Wait(testContext(t), 1); !errors.Is(err, hawser.ErrClosed) {
			t.Fatalf("wait for a value that is not lent: %v", err)
		}
		other := take(t, b)
		if c = take(t, b); c.Imm() != v || other.Imm() == v {
			t.Fatalf("lent %#x and %#x", other.Imm(), c.Imm())
		}
		send(v, 1)
		reach(t, c, 1)
		if n := c.Load(); n != 1 {
			t.Fatalf("the next use counts %d, want 1", n)
		}
		st := b.Stats()
		if st.StaleImms != 3 || st.Peers[0].RxStale != 3 {
			t.Fatalf("%d stale, %d of the peer, want 3", st.StaleImms, st.Peers[0].RxStale)
		}
		stop()
		if err := b.Imms().Put(c); err != nil {
			t.Fatal(err)
		}
		send(v, 1)
		eventually(t, "it is counted", func() bool { return b.Stats().StaleImms == 4 })
		if len(seen) > 0 {
			t.Fatalf("shown after stop: %+v", <-seen)
		}
	})
}

// A peer that sends stale immediates faster than the handler reads them fills nothing, and does not stop others.
func TestFloodOfStaleImmediatesIsBounded(t *testing.T) {
	p := newWorld(t, "shm").pair(t, 1, 1, 4096)
	c := take(t, p.b)
	if err := p.b.Imms().Put(c); err != nil {
		t.Fatal(err)
	}
	shown, leave := 0, make(chan struct{})
	p.b.Imms().OnStale(func(*hawser.Peer, uint32) { <-leave; shown++ })
	const n = 50000
	q, ends := p.a.NewQueue(256), make([]hawser.Done, 256)
	for sent, ended := 0, 0; ended < n; ended += q.Poll(ends) {
		for sent < n && q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: c.Imm()}, 0) == nil {
			sent++
		}
	}
	eventually(t, "all are counted", func() bool { return p.b.Stats().StaleImms == n })
	p.signal(t, 1, 1)
	reach(t, p.b.Counter(1), 1)
	close(leave)
	after := make(chan struct{})
	p.b.Counter(2).OnReach(0, func() { close(after) })
	receive(t, "what was shown is shown", after)
	if shown == 0 || shown > 3000 { // what waits at most, and as many more that were being shown
		t.Fatalf("%d of %d were kept for the handler", shown, n)
	}
}

func TestReservedRangesNameTheirHolder(t *testing.T) {
	e := newWorld(t, "sim").engine(t, 0, 1)
	r, err := e.Imms().Reserve("layer exchange", 0x10000, 16, 8)
	if err != nil {
		t.Fatal(err)
	}
	if r.Len() != 256 {
		t.Fatalf("%d blocks, want 256", r.Len())
	}
	if _, err := e.Imms().Reserve("other", 0x10100, 8, 8); !errors.Is(err, hawser.ErrBusy) || !strings.Contains(err.Error(), "layer exchange") {
		t.Fatalf("overlap: %v", err)
	}
	e.Counter(0x20001)
	if _, err := e.Imms().Reserve("other", 0x20000, 8, 8); !errors.Is(err, hawser.ErrBusy) || !strings.Contains(err.Error(), "0x20001") {
		t.Fatalf("a value in use: %v", err)
	}
	for name, bad := range map[string][3]int{"base": {1, 8, 8}, "bits": {0, 32, 8}, "block": {0, 8, 9}, "negative": {0, 8, -1}, "large block": {0, 20, 17}} {
		if _, err := e.Imms().Reserve("other", uint32(bad[0]), bad[1], bad[2]); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r.Close()
	r.Close()
	if _, err := r.Open(0); !errors.Is(err, hawser.ErrClosed) {
		t.Fatalf("open a block of a closed range: %v", err)
	}
	if _, err := e.Imms().Reserve("other", 0x10100, 8, 8); err != nil {
		t.Fatal(err)
	}
	if err := e.Counter(0x10000).Wait(done(), 1); !errors.Is(err, context.Canceled) {
		t.Fatalf("a value of a range that was closed is not open: %v", err)
	}
}

func TestBlocksCountWhileTheyAreOpen(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		r, err := p.b.Imms().Reserve("test", 0x100, 8, 4)
		if err != nil {
			t.Fatal(err)
		}
		p.signal(t, 0x123, 1)
		eventually(t, "it is stale", func() bool { return p.b.Stats().StaleImms == 1 })
		for round := range 3 {
			b, err := r.Open(2)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := r.Open(2); !errors.Is(err, hawser.ErrBusy) {
				t.Fatalf("opened twice: %v", err)
			}
			any := make(chan int, 1)
			go func() {
				i, err := hawser.WaitAny(testContext(t), b.Reach(2)...)
				if err != nil {
					t.Error(err)
				}
				any <- i
			}()
			p.signal(t, 0x123, 2)
			if i := receive(t, "any", any); i != 3 {
				t.Fatalf("value %d of the block, want 3", i)
			}
			for i := range b.Len() {
				if b.Counter(i) != p.b.Counter(0x120+uint32(i)) {
					t.Fatal("a value of a block has two counters")
				}
				if i != 3 {
					p.signal(t, b.Counter(i).Imm(), 2)
				}
			}
			if err := hawser.WaitAll(testContext(t), b.Reach(2)...); err != nil {
				t.Fatal(err)
			}
			if n := b.Counter(3).Load(); n != 2 {
				t.Fatalf("round %d counts %d, want 2", round, n)
			}
			b.Counter(3).Close() // its block's business
			waits := make(chan error, 1)
			go func() { waits <- b.Counter(3).Wait(testContext(t), 3) }()
			b.Close()
			b.Close()
			if err := receive(t, "wait", waits); !errors.Is(err, hawser.ErrClosed) {
				t.Fatal(err)
			}
		}
		for _, i := range []int{-1, 16} {
			if _, err := r.Open(i); !errors.Is(err, hawser.ErrInvalid) {
				t.Errorf("block %d: %v", i, err)
			}
		}
		if n := p.b.Stats().Counters; n != 0 {
			t.Fatalf("%d counters are left", n)
		}
	})
}

// A peer that uses 65,537 open values that nobody asked for loses its session; managed ones are no such values.
func TestOnlyOpenValuesAreLimited(t *testing.T) {
	p := newWorld(t, "shm").pair(t, 1, 1, 4096)
	from := p.back(t)
	if _, err := p.b.Imms().Reserve("test", 1<<24, 18, 8); err != nil {
		t.Fatal(err)
	}
	q, ends := p.a.NewQueue(256), make([]hawser.Done, 256)
	send := func(base uint32, n int) {
		for sent, ended := 0, 0; ended < n; ended += q.Poll(ends) {
			for sent < n && q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: base + uint32(sent)}, 0) == nil {
				sent++
			}
		}
	}
	send(1<<24, 1<<17)
	eventually(t, "all are stale", func() bool { return p.b.Stats().StaleImms == 1<<17 })
	send(0, 1<<16)
	eventually(t, "all are counted", func() bool { return p.b.Stats().Counters == 1<<16 })
	if !from.Up() {
		t.Fatal("the limit is too low")
	}
	tr, err := p.a.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	<-tr.Done() // whether it was placed before the session ended is left to chance
	eventually(t, "the session has ended", func() bool { return !from.Up() })
	if err := p.b.Stats().Peers[0].Down; !errors.Is(err, hawser.ErrLimit) {
		t.Fatal(err)
	}
}

// Many users take, count, wait and give back at once; each sees its own immediates and no others.
func TestTakenValuesDoNotMix(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		o := w.options(1, 1)
		o.ImmBits, o.ImmBase = 3, 1<<10
		a, b := w.engine(t, 0, 1), open(t, o)
		to, err := a.Connect(testContext(t), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for user := range uint64(6) {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(user, 3))
				for round := range 40 {
					c, err := b.Imms().Take()
					if err != nil {
						t.Error(err)
						return
					}
					n := 1 + rng.Uint64N(5)
					for range n {
						if _, err := a.Signal(hawser.Signal{To: to, Imm: c.Imm()}); err != nil {
							t.Error(err)
							return
						}
					}
					if err := c.Wait(testContext(t), n); err != nil || c.Load() != n {
						t.Error(fmt.Errorf("user %d, round %d: %d of %d: %w", user, round, c.Load(), n, err))
						return
					}
					if err := b.Imms().Put(c); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := b.Stats().StaleImms; n != 0 {
			t.Fatalf("%d stale", n)
		}
	})
}
