package shm

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// hangGuard ends a test that waits for something that never comes.
const hangGuard = time.Minute

// side is an open domain of a test. One goroutine owns it.
type side struct {
	t    testing.TB
	d    *domain
	bell *cpu.Parker
	peer provider.Peer // the connection that most tests use
	cs   [64]provider.Completion
	got  []provider.Completion // everything that came and was not taken yet
}

func newSide(t testing.TB) *side {
	t.Helper()
	bell, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	dev, err := device()
	if err != nil {
		t.Fatal(err)
	}
	d, err := open(dev, provider.Config{Bell: bell})
	if err != nil {
		t.Fatal(err)
	}
	s := &side{t: t, d: d, bell: bell}
	t.Cleanup(func() {
		if err := d.Close(); err != nil && !errors.Is(err, provider.ErrClosed) {
			t.Error(err)
		}
		if err := bell.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// poll keeps what comes in s.got.
func (s *side) poll() {
	s.t.Helper()
	n, err := s.d.Poll(s.cs[:])
	if err != nil {
		s.t.Fatal(err)
	}
	s.got = append(s.got, s.cs[:n]...)
}

// find takes the first completion of a kind out of what came.
func (s *side) find(k provider.Kind) (provider.Completion, bool) {
	for i, c := range s.got {
		if c.Kind == k {
			s.got = append(s.got[:i], s.got[i+1:]...)
			return c, true
		}
	}
	return provider.Completion{}, false
}

// until polls the sides until cond holds.
func until(t testing.TB, what string, cond func() bool, sides ...*side) {
	t.Helper()
	for deadline := time.Now().Add(hangGuard); !cond(); {
		for _, s := range sides {
			s.poll()
		}
		runtime.Gosched() // to goroutines that the condition waits for
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", hangGuard, what)
		}
	}
}

// wait polls the sides until s has a completion of a kind, and takes it.
func (s *side) wait(k provider.Kind, others ...*side) provider.Completion {
	s.t.Helper()
	var c provider.Completion
	until(s.t, "a completion "+k.String(), func() (ok bool) { c, ok = s.find(k); return ok }, append(others, s)...)
	return c
}

// connect joins two sides, the first is active.
func connect(t testing.TB, a, b *side) {
	t.Helper()
	pa, addrA, errA := a.d.Offer()
	pb, addrB, errB := b.d.Offer()
	if err := errors.Join(errA, errB, a.d.Connect(pa, addrB, true), b.d.Connect(pb, addrA, false)); err != nil {
		t.Fatal(err)
	}
	a.peer, b.peer = pa, pb
	a.wait(provider.KindPeerUp, b)
	b.wait(provider.KindPeerUp, a)
}

func newPair(t testing.TB) (a, b *side) {
	t.Helper()
	a, b = newSide(t), newSide(t)
	connect(t, a, b)
	return a, b
}

// memory registers new shared memory with s.
func (s *side) memory(size int) (*mem.Span, provider.Key) {
	s.t.Helper()
	return s.memoryOf(mem.Shared, size)
}

func (s *side) memoryOf(kind mem.Kind, size int) (*mem.Span, provider.Key) {
	s.t.Helper()
	span, err := mem.New(uint64(size), kind)
	if err != nil {
		s.t.Fatal(err)
	}
	k, err := s.d.Register(provider.Memory{Bytes: span.Bytes(), FD: span.FD()}, provider.AccessRemoteWrite)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := span.Free(); err != nil {
			s.t.Error(err)
		}
	})
	return span, k
}

// grant grants all of s's memory k to its peer.
func (s *side) grant(k provider.Key) provider.Key {
	s.t.Helper()
	g, err := s.d.Grant(k, s.peer, 0, 0)
	if err != nil {
		s.t.Fatal(err)
	}
	return g
}

// post posts WRs to s's peer.
func (s *side) post(wrs ...provider.WR) {
	s.t.Helper()
	for i := range wrs {
		wrs[i].Peer = s.peer
	}
	if n, err := s.d.Post(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("post accepted %d of %d WRs, %v", n, len(wrs), err)
	}
}
