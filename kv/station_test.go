package kv

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/proto"
)

// twoEngines are a station's engine and another one that it is connected to.
func twoEngines(t *testing.T) (s *station, other *hawser.Engine, n proto.Peer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	open := func(name string) *hawser.Engine {
		e, err := hawser.Open(ctx, hawser.Options{Name: name, Require: "shm"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		return e
	}
	eng, other := open("here"), open("there")
	st := newStation(eng, nil)
	t.Cleanup(func() {
		st.stop()
		st.wg.Wait()
	})
	p, err := eng.Connect(ctx, other.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return &st, other, st.number(p)
}

// TestStreamsToOnePeerAreBounded: a peer that asks for long answers and does not take them makes us keep a bounded number of bytes.
func TestStreamsToOnePeerAreBounded(t *testing.T) {
	s, _, n := twoEngines(t) // the other engine does not receive
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := range uint64(100) {
		s.Send(n, proto.Encode(proto.Head{}, &proto.Digest{Seq: seq, Sums: make([]uint64, 1<<20/8)}))
	}
	if len(s.bulks) < 1 || len(s.bulks) > maxStreams>>20 {
		t.Errorf("%d streams of 1 MiB are under way, want at most %d", len(s.bulks), maxStreams>>20)
	}
}

// TestLinksBeginInSessionsThatAreUp: the end of a session may have been told before a link begins in it. Nobody tells it again.
func TestLinksBeginInSessionsThatAreUp(t *testing.T) {
	s, other, n := twoEngines(t)
	if !s.met(n) {
		t.Error("the session is up")
	}
	if err := other.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := s.peer(n)
	for range 6000 {
		if !p.Up() {
			break
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	if s.met(n) {
		t.Error("a link begins in a session that has ended")
	}
}

// knower is a machine that cares for one peer.
type knower struct{ of proto.Peer }

func (knower) Message(proto.Time, proto.Peer, []byte) {}
func (knower) Tick(proto.Time)                        {}
func (knower) Next() (proto.Time, bool)               { return 0, false }
func (k knower) Knows(p proto.Peer) bool              { return p == k.of }
func (knower) Pair([]byte) *proto.Pairing             { return nil }
func (knower) Paired(*proto.Pairing)                  {}

// sleeper is a machine with something that is due at a time.
type sleeper struct {
	knower
	due    proto.Time
	ticked chan proto.Time
}

func (m *sleeper) Next() (proto.Time, bool) { return m.due, m.due > 0 }

func (m *sleeper) Tick(now proto.Time) {
	m.due = 0
	m.ticked <- now
}

// TestLateTimersHearFirst: before what was due long ago is done, what came meanwhile is taken.
func TestLateTimersHearFirst(t *testing.T) {
	s, _, _ := twoEngines(t)
	s.origin = s.origin.Add(-time.Minute)
	m := &sleeper{due: s.now() - 2*lateLimit, ticked: make(chan proto.Time, 1)}
	var rests atomic.Int32
	s.rest = func() {
		if len(m.ticked) > 0 {
			t.Error("it was done before")
		}
		rests.Add(1)
	}
	s.begin(m, func(proto.Time, proto.Peer, error) {})
	t.Cleanup(s.end)
	select {
	case <-m.ticked:
	case <-time.After(time.Minute):
		t.Fatal("what is due is not done")
	}
	if n := rests.Load(); n != 1 {
		t.Errorf("rested %d times, want once", n)
	}
}

// comparer is a machine that takes long to compare topologies.
type comparer struct {
	knower
	goOn  chan struct{} // Pair waits for it
	heard chan proto.Kind
	last  *proto.Pairing
}

func (c *comparer) Pair([]byte) *proto.Pairing {
	<-c.goOn
	return &proto.Pairing{}
}

func (c *comparer) Paired(x *proto.Pairing) { c.last = x }

func (c *comparer) Message(_ proto.Time, _ proto.Peer, data []byte) {
	kind, _ := proto.Peek(data)
	c.heard <- kind
}

// TestTopologiesAreComparedWithoutTheLock: a Hello that takes long holds up no other message, also not of its sender, and nobody who wants
// the lock. When it repeats itself meanwhile, it is worked on once.
func TestTopologiesAreComparedWithoutTheLock(t *testing.T) {
	s, other, _ := twoEngines(t)
	c := &comparer{goOn: make(chan struct{}), heard: make(chan proto.Kind, 10)}
	s.begin(c, func(proto.Time, proto.Peer, error) {})
	t.Cleanup(s.end)
	to, err := other.Connect(t.Context(), s.eng.Addr())
	if err != nil {
		t.Fatal(err)
	}
	say := func(b proto.Body) {
		t.Helper()
		if _, err := other.Send(to, proto.Encode(proto.Head{}, b)); err != nil {
			t.Fatal(err)
		}
	}
	hear := func(want proto.Kind) {
		t.Helper()
		select {
		case kind := <-c.heard:
			if kind != want {
				t.Fatalf("%v, want %v", kind, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("no %v", want)
		}
	}
	say(&proto.Hello{})
	say(&proto.Hello{})
	say(&proto.Beat{})
	hear(proto.KindBeat)
	close(c.goOn)
	hear(proto.KindHello)
	say(&proto.Drain{})
	hear(proto.KindDrain) // no second Hello before it
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.last == nil {
		t.Error("the machine was not told the result")
	}
}

// TestPeersThatAreGoneAreForgotten: each process that was started again is another peer, and a prefiller lives longer than its decoders.
func TestPeersThatAreGoneAreForgotten(t *testing.T) {
	s, _, up := twoEngines(t)
	s.mu.Lock()
	defer s.mu.Unlock()
	var known *hawser.Peer
	for range 1000 {
		p := &hawser.Peer{} // one that has no session
		if n := s.number(p); known == nil {
			known = p
			s.m = knower{n}
		}
	}
	if len(s.numbers) > 2*sweepFirst {
		t.Errorf("%d peers have numbers, all but 2 are gone", len(s.numbers))
	}
	if s.number(known) != s.m.(knower).of || s.numbers[s.peer(up)] != up {
		t.Error("a peer that is up, or that the machine knows, has another number")
	}
}
