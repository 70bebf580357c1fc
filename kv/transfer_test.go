package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

func TestFetchBringsEveryByte(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		p := newPrefillSide(t, network, small, 200, nil)
		d := newDecodeSide(t, network, small, 150)
		for _, tokens := range []int{1, 4, 5, 31, 32, 33, 100, 600} {
			d.fetch(t, p, fmt.Sprintf("r%d", tokens), tokens)
		}
		if s := d.d.Stats(); s != (DecoderStats{}) {
			t.Errorf("decoder: %+v, want all 0", s)
		}
		eventually(t, func() error {
			if s := p.p.Stats(); s.Live != 0 || s.Done != 8 || s.Rejected != 0 || s.Unexpected != 0 {
				return fmt.Errorf("prefiller: %+v, want 8 jobs done, none live", s)
			}
			return nil
		})
	})
}

func TestManyFetchesShareThePools(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		// Pools so small that requests wait for pages on both sides.
		p := newPrefillSide(t, network, small, 60, nil)
		d := newDecodeSide(t, network, small, 90)
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				if err := d.try(limit(t), p.eng.Addr(), fmt.Sprintf("r%d", i), 1+(i*37)%200); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestLinkComesUpEachTime(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		p := newPrefillSide(t, network, small, 20, nil)
		for i := range 20 {
			d := newDecodeSide(t, network, small, 20)
			d.fetch(t, p, fmt.Sprintf("r%d", i), 7)
			if err := d.d.Close(limit(t)); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestDispatchInParts has a page list that does not fit into one message.
func TestDispatchInParts(t *testing.T) {
	g := Geometry{"tiny", 1, Group{PageTokens: 1, KVHeads: 1, HeadDim: 8, ElemSize: 2, Planes: 1}}
	p := newPrefillSide(t, "shm", g, 14000, func(h *toy, _ *PrefillerConfig) { h.chunk = 4096 })
	d := newDecodeSide(t, "shm", g, 14000)
	d.fetch(t, p, "long", 13000)
}

func TestHelloNamesTheDifference(t *testing.T) {
	other := small
	other.Group.KVHeads = 1
	p := newPrefillSide(t, "shm", small, 20, nil)
	d := newDecodeSide(t, "shm", other, 20)
	_, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 5, From: p.eng.Addr()})
	var m *MismatchError
	if !errors.As(err, &m) || m.Field != "kv heads" || m.Here != "1" || m.There != "2" {
		t.Fatalf("got %v, want a MismatchError of kv heads, 1 here, 2 there", err)
	}
	// The prefiller is as healthy as before, and the refused decoder may try again.
	d2 := newDecodeSide(t, "shm", small, 20)
	d2.fetch(t, p, "r2", 5)
	if _, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 5, From: p.eng.Addr()}); !errors.As(err, &m) {
		t.Fatalf("got %v, want the same again", err)
	}
}

func TestFetchRefusesWhatCanNeverFit(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 10, func(_ *toy, c *PrefillerConfig) { c.Jobs = 2 })
	d := newDecodeSide(t, "shm", small, 20)
	for _, c := range []struct {
		r    FetchRequest
		is   error
		text string
	}{
		{FetchRequest{ID: "r", Tokens: 81}, hawser.ErrLimit, "kv: request r: limit reached: prompt needs 21 pages, pool has 20: raise the pool"},
		{FetchRequest{ID: "r", Tokens: 0}, hawser.ErrInvalid, "prompt of 0 tokens"},
		{FetchRequest{ID: "", Tokens: 5}, hawser.ErrInvalid, "the id has 0 bytes"},
		{FetchRequest{ID: strings.Repeat("x", 129), Tokens: 5}, hawser.ErrInvalid, "the id has 129 bytes"},
	} {
		c.r.From = p.eng.Addr()
		if _, err := d.d.Fetch(limit(t), c.r); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v: got %v, want %q", c.r, err, c.text)
		}
	}
}

func TestRefusedRequestsSayWhy(t *testing.T) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	p := newPrefillSide(t, "shm", small, 40, func(h *toy, c *PrefillerConfig) {
		c.Jobs = 2
		h.step = func(*Job, int, int) { <-hold }
	})
	defer release()
	d := newDecodeSide(t, "shm", small, 40)
	var held []*Pending
	for i := range 2 {
		x, err := d.d.Fetch(limit(t), FetchRequest{ID: fmt.Sprintf("held%d", i), Tokens: 5, From: p.eng.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, x)
	}
	eventually(t, func() error {
		if n := p.p.Stats().Live; n != 2 {
			return fmt.Errorf("%d jobs, want 2", n)
		}
		return nil
	})
	var rejected *RejectedError
	err := d.try(limit(t), p.eng.Addr(), "one too many", 5)
	if !errors.As(err, &rejected) || rejected.Code != CodeBusy {
		t.Fatalf("got %v, want a RejectedError, busy", err)
	}
	var attempt *AttemptError
	if !errors.As(err, &attempt) || attempt.Request != "one too many" || attempt.Arrived != 0 || attempt.Expected != small.Writes(5) {
		t.Fatalf("got %+v, want an AttemptError of the request with 0 of %d writes", attempt, small.Writes(5))
	}
	release()
	for _, x := range held {
		r, err := x.Wait(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		r.Release()
	}

	p2 := newPrefillSide(t, "shm", small, 40, func(h *toy, _ *PrefillerConfig) { h.refuse = errors.New("no such model") })
	err = d.try(limit(t), p2.eng.Addr(), "refused", 5)
	if !errors.As(err, &rejected) || rejected.Code != CodeInfeasible || rejected.Text != "no such model" {
		t.Fatalf("got %v, want a RejectedError with the engine's text", err)
	}
}

func TestEngineFailureReachesTheCaller(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, func(h *toy, _ *PrefillerConfig) {
		h.step = func(j *Job, first, layer int) {
			if j.ID() == "bad" && first > 0 && layer == 1 {
				j.Fail(errors.New("out of luck"))
			}
		}
	})
	d := newDecodeSide(t, "shm", small, 40)
	err := d.try(limit(t), p.eng.Addr(), "bad", 100)
	var failed *FailedError
	if !errors.As(err, &failed) || failed.Code != CodeEngine || failed.Text != "out of luck" {
		t.Fatalf("got %v, want a FailedError with the engine's text", err)
	}
	d.fetch(t, p, "good", 100)
}

// TestCorruptionIsSeen flips one byte on its way; otherwise the other tests prove nothing.
func TestCorruptionIsSeen(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, func(h *toy, _ *PrefillerConfig) {
		h.step = func(_ *Job, first, layer int) {
			if first == 0 && layer == 2 {
				for i := range 40 {
					h.mem.page(5, uint32(i))[17] ^= 1
				}
			}
		}
	})
	d := newDecodeSide(t, "shm", small, 40)
	err := d.try(limit(t), p.eng.Addr(), "r", 4)
	if err == nil || err.Error() != "r: 1 corrupt bytes" {
		t.Fatalf("got %v, want 1 corrupt byte", err)
	}
}

// TestCancelAtEveryLayer cancels a request when a given layer of a given pass is ready, and checks that the pages are reusable at
// once when Quiesced says so, on both sides.
func TestCancelAtEveryLayer(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		const tokens = 96 // three passes
		var reached atomic.Pointer[func(j *Job, first, layer int)]
		p := newPrefillSide(t, network, small, 24, func(h *toy, _ *PrefillerConfig) {
			h.step = func(j *Job, first, layer int) {
				if f := reached.Load(); f != nil {
					(*f)(j, first, layer)
				}
			}
		})
		d := newDecodeSide(t, network, small, 24)
		n := 0
		for first := 0; first < tokens; first += 32 {
			for layer := range small.Layers {
				n++
				id := fmt.Sprintf("c%d", n)
				at := make(chan struct{})
				goOn := make(chan struct{})
				resume := sync.OnceFunc(func() { close(goOn) })
				t.Cleanup(resume)
				f := func(j *Job, a, b int) {
					if j.ID() == id && a == first && b == layer {
						close(at)
						<-goOn
					}
				}
				reached.Store(&f)
				x, err := d.d.Fetch(limit(t), FetchRequest{ID: id, Tokens: tokens, From: p.eng.Addr()})
				if err != nil {
					t.Fatal(err)
				}
				<-at
				x.Cancel("test")
				if n%2 == 0 {
					resume() // the engine goes on while the cancel is on its way
				}
				if _, err := x.Wait(limit(t)); !errors.Is(err, ErrCancelled) {
					t.Fatalf("%s: got %v, want ErrCancelled", id, err)
				}
				select {
				case <-x.Quiesced():
				case <-limit(t).Done():
					t.Fatalf("%s: pages are not reusable", id)
				}
				if free := d.mem.pool.Free(); free != 24 {
					t.Fatalf("%s: %d pages free after Quiesced, want 24", id, free)
				}
				if n%2 == 1 {
					resume()
				}
				// The next request gets the same pages: a late write of the cancelled one would spoil it.
				d.fetch(t, p, id+" next", tokens)
			}
		}
	})
}

// TestCancelAtRandomTimes has many requests under way while a third of them is cancelled.
func TestCancelAtRandomTimes(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		seed := rand.Uint64()
		t.Logf("seed %d", seed)
		random := rand.New(rand.NewPCG(seed, 0))
		p := newPrefillSide(t, network, small, 100, nil)
		d := newDecodeSide(t, network, small, 120)
		var wg sync.WaitGroup
		var done, cancelled atomic.Int64
		for i := range 150 {
			tokens, after := 1+random.IntN(300), time.Duration(random.IntN(20000))*time.Microsecond
			cancel := random.IntN(3) == 0
			wg.Go(func() {
				id := fmt.Sprintf("x%d", i)
				ctx, stop := context.WithCancel(limit(t))
				defer stop()
				if cancel {
					timer := time.AfterFunc(after, stop)
					defer timer.Stop()
				}
				x, err := d.d.Fetch(ctx, FetchRequest{ID: id, Tokens: tokens, From: p.eng.Addr()})
				if err != nil {
					if !cancel {
						t.Error(err)
					}
					return
				}
				r, err := x.Wait(limit(t))
				if err != nil {
					if !cancel || !errors.Is(err, ErrCancelled) {
						t.Errorf("%s: %v", id, err)
					}
					cancelled.Add(1)
					<-x.Quiesced()
					return
				}
				if n := d.mem.corrupt(id, r.Pages); n != 0 {
					t.Errorf("%s: %d corrupt bytes", id, n)
				}
				done.Add(1)
				r.Release()
			})
		}
		wg.Wait()
		t.Logf("%d done, %d cancelled", done.Load(), cancelled.Load())
		if done.Load() < 50 {
			t.Errorf("only %d done", done.Load())
		}
	})
}

func TestCloseOfEitherSideEndsRequests(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		at, hold := make(chan struct{}), make(chan struct{})
		p := newPrefillSide(t, network, small, 40, func(h *toy, _ *PrefillerConfig) {
			h.step = func(_ *Job, first, layer int) {
				if first == 0 && layer == 1 {
					at <- struct{}{}
					<-hold
				}
			}
		})
		defer close(hold)
		d := newDecodeSide(t, network, small, 40)
		x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r1", Tokens: 50, From: p.eng.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		<-at
		if err := d.d.Close(limit(t)); err != nil {
			t.Fatal(err)
		}
		if _, err := x.Wait(limit(t)); !errors.Is(err, hawser.ErrClosed) {
			t.Errorf("after Decoder.Close: got %v, want ErrClosed", err)
		}
		if _, err := d.d.Fetch(limit(t), FetchRequest{ID: "r2", Tokens: 5, From: p.eng.Addr()}); !errors.Is(err, hawser.ErrClosed) {
			t.Errorf("Fetch after Close: got %v, want ErrClosed", err)
		}
		hold <- struct{}{}

		d2 := newDecodeSide(t, network, small, 40)
		x, err = d2.d.Fetch(limit(t), FetchRequest{ID: "r3", Tokens: 50, From: p.eng.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		<-at
		if err := p.p.Close(limit(t)); err != nil {
			t.Fatal(err)
		}
		var failed *FailedError
		_, err = x.Wait(limit(t))
		if !(errors.As(err, &failed) && failed.Code == CodeClosed) && !errors.Is(err, hawser.ErrPeerDown) {
			t.Errorf("after Prefiller.Close: got %v, want a FailedError, closed", err)
		}
		select {
		case <-x.Quiesced():
		case <-limit(t).Done():
			t.Error("pages are not reusable after Prefiller.Close")
		}
	})
}

func TestTimingComesWithTheResult(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	d := newDecodeSide(t, "shm", small, 40)
	before := time.Now()
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 70, From: p.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.Wait(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Release()
	for range 2 {
		m, err := r.Timing(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		if !m.SameHost || m.Layers != 9 || m.Late != 0 || m.Begun.Before(before) || m.Computed.Before(m.Begun) || r.Stats.Ready.Before(m.Computed) {
			t.Errorf("got %+v, ready %v; want 9 layers of this host, in order", m, r.Stats.Ready)
		}
	}
	if r.Stats.Writes != small.Writes(70) || r.Stats.Bytes != small.Bytes(70) {
		t.Errorf("got %+v", r.Stats)
	}
}
