package hawser_test

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/imm"
)

// word looks at a mirror as another program would.
func word(t testing.TB, r *hawser.Region, off uint64) *atomic.Uint64 {
	t.Helper()
	w, err := imm.Word(r.Bytes()[off:][:8])
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func TestMirrorShowsTheCount(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		c, r := p.b.Counter(1), w.alloc(t, p.b, 64)
		fill(r.Bytes(), 1)
		around := append([]byte(nil), r.Bytes()...)
		p.signal(t, 1, 3)
		reach(t, c, 3)
		if err := c.Mirror(r.Slice(16, 8)); err != nil {
			t.Fatal(err)
		}
		if n := word(t, r, 16).Load(); n != 3 {
			t.Fatalf("starts with %d, want 3", n)
		}
		p.signal(t, 1, 40)
		eventually(t, "the count is in memory", func() bool { return word(t, r, 16).Load() == 43 })
		if err := r.Close(); !errors.Is(err, hawser.ErrBusy) {
			t.Fatalf("memory with a mirror was freed: %v", err)
		}
		if err := c.Mirror(r.Slice(24, 8)); !errors.Is(err, hawser.ErrBusy) {
			t.Fatalf("a second word: %v", err)
		}
		if err := c.Mirror(hawser.Slice{}); err != nil {
			t.Fatal(err)
		}
		p.signal(t, 1, 1)
		reach(t, c, 44)
		p.sync()
		binary.NativeEndian.PutUint64(around[16:], 43)
		same(t, "region", r.Bytes(), around)
		if err := c.Mirror(r.Slice(24, 8)); err != nil {
			t.Fatal(err)
		}
		c.Close()
		if err := r.Close(); err != nil {
			t.Fatalf("the mirror has ended with its counter: %v", err)
		}
		if err := c.Mirror(w.alloc(t, p.b, 8).All()); !errors.Is(err, hawser.ErrClosed) {
			t.Fatalf("a closed counter: %v", err)
		}
	})
}

func TestMirrorRefusesWhatIsNoWord(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	c := p.b.Counter(1)
	for name, s := range map[string]hawser.Slice{
		"not aligned":    p.dst.Slice(4, 8),
		"too short":      p.dst.Slice(0, 4),
		"too long":       p.dst.Slice(0, 16),
		"beyond the end": p.dst.Slice(4096, 8),
		"wraps":          p.dst.Slice(1<<64-8, 8),
		"another engine": p.src.Slice(0, 8),
	} {
		if err := c.Mirror(s); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := p.dst.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.Mirror(p.dst.Slice(0, 8)); !errors.Is(err, hawser.ErrClosed) {
		t.Fatalf("a closed region: %v", err)
	}
}

// A mirror ends while counts come in, and its memory is unmapped at once: one more write to it would end the test.
func TestMirrorNeverWritesToFreedMemory(t *testing.T) {
	p := newWorld(t, "shm").pair(t, 1, 1, 4096)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		q, ends := p.a.NewQueue(64), make([]hawser.Done, 64)
		for open := 0; ; {
			select {
			case <-stop:
				for open > 0 {
					n, err := q.Wait(testContext(t), ends)
					if err != nil {
						t.Error(err)
						return
					}
					open -= n
				}
				return
			default:
			}
			if q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1}, 0) == nil {
				open++
			}
			open -= q.Poll(ends)
		}
	})
	c, last := p.b.Counter(1), uint64(0)
	for range 300 {
		r, err := p.b.Alloc(4096, hawser.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Mirror(r.Slice(0, 8)); err != nil {
			t.Fatal(err)
		}
		if n := word(t, r, 0).Load(); n < last {
			t.Fatalf("count went back from %d to %d", last, n)
		} else {
			last = n
		}
		if err := c.Mirror(hawser.Slice{}); err != nil {
			t.Fatal(err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	wg.Wait()
}

// An engine closes with its mirrors, whatever its users do with them meanwhile.
func TestMirrorsEndWithTheEngine(t *testing.T) {
	w := newWorld(t, "shm")
	for range 20 {
		p := w.pair(t, 1, 1, 4096)
		var wg sync.WaitGroup
		for v := range uint32(4) {
			wg.Go(func() {
				c := p.b.Counter(v)
				for {
					if err := c.Mirror(p.dst.Slice(uint64(v)*8, 8)); err != nil {
						if !errors.Is(err, hawser.ErrClosed) {
							t.Error(err)
						}
						return
					}
					_ = c.Mirror(hawser.Slice{}) // cannot fail
				}
			})
		}
		p.signal(t, 1, 20)
		if err := p.b.Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		soon(t, "no mirror in a closed engine", wg.Wait)
	}
}
