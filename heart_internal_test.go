package hawser

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider/sim"
)

// ticks are those of a duration.
func ticks(d time.Duration) int { return int(d / heartTick) }

// pulseRun plays a pulse until it is dead, or for n ticks, and returns the ticks in which it asked. busy and hears say what happens in a tick.
func pulseRun(p *pulse, n, limit int, busy, hears func(tick int) bool) (asks []int, dead int) {
	for i := 1; i <= n; i++ {
		if hears(i) {
			p.heard.Store(true)
		}
		ask, gone := p.beat(busy(i), limit)
		if ask {
			asks = append(asks, i)
		}
		if gone {
			return asks, i
		}
	}
	return asks, 0
}

func always(int) bool { return true }
func never(int) bool  { return false }

// A peer that is watched closely is asked every 300 ms while it says nothing, and dead after the limit.
func TestWatchedPeerIsDeadAfterTheLimit(t *testing.T) {
	for _, limit := range []int{10, 15, 50} {
		asks, dead := pulseRun(&pulse{}, 1000, limit, always, never)
		if dead != limit+1 {
			t.Errorf("limit %d: dead after %d ticks", limit, dead)
		}
		var want []int
		for i := ticks(beatInterval); i < limit+1; i += ticks(beatInterval) {
			want = append(want, i)
		}
		if !slices.Equal(asks, want) {
			t.Errorf("limit %d: asked at %v, want %v", limit, asks, want)
		}
	}
}

// By default a peer that stops is known within 1.5 s, with a tick to spare: it may stop right after a sign of life, which comes up to a
// tick after the heart has looked, and the look that finds it dead may be late.
func TestDeadPeerIsKnownInTime(t *testing.T) {
	_, dead := pulseRun(&pulse{}, 1000, ticks(defaultPeerTimeout), always, never)
	if dead == 0 || time.Duration(dead)*heartTick > 1400*time.Millisecond {
		t.Errorf("dead after %d ticks of %v", dead, heartTick)
	}
}

// Whoever answers, or says anything else, lives: with one beat every 300 ms when it is watched, one every 10 s when not.
func TestAnswersKeepAPeerAlive(t *testing.T) {
	const n = 10_000
	for _, tc := range []struct {
		name  string
		busy  func(int) bool
		every time.Duration
	}{{"watched", always, beatInterval}, {"at rest", never, restInterval}} {
		p, asked := &pulse{}, 0
		for i := range n {
			ask, dead := p.beat(tc.busy(i), 15)
			if dead {
				t.Fatalf("%s: dead in spite of its answers", tc.name)
			}
			if ask {
				asked++
				p.heard.Store(true) // it answers at once
			}
		}
		if low, high := n/(ticks(tc.every)+1), n/ticks(tc.every); asked < low || asked > high {
			t.Errorf("%s: %d beats in %d ticks, want %d to %d", tc.name, asked, n, low, high)
		}
	}
	if asks, _ := pulseRun(&pulse{}, 1000, 15, always, always); len(asks) > 0 {
		t.Errorf("a peer that talks all the time was asked %d times", len(asks))
	}
}

// A peer at rest that has died is found when it does not answer its rare beat, as fast as any other from then on.
func TestRestingPeerIsFoundDead(t *testing.T) {
	asks, dead := pulseRun(&pulse{}, 1000, 15, never, never)
	if first := ticks(restInterval); len(asks) == 0 || asks[0] != first || dead != first+15+1-ticks(beatInterval) {
		t.Errorf("asked at %v, dead after %d ticks", asks, dead)
	}
}

// When something begins to depend on a peer that has been at rest, its silence until then is not held against it, and from then on it
// has no more time than any other.
func TestPeerThatBecomesImportantIsAskedAtOnce(t *testing.T) {
	for rest := 1; rest < ticks(restInterval); rest++ {
		asks, dead := pulseRun(&pulse{}, 1000, 15, func(tick int) bool { return tick > rest }, never)
		first := max(rest+1, ticks(beatInterval))
		if asks[0] != first || dead != first+15+1-ticks(beatInterval) {
			t.Fatalf("important after %d ticks: asked at %v, dead at %d", rest, asks, dead)
		}
	}
}

// The close watch lasts for a while after its last reason.
func TestCloseWatchOutlastsItsReason(t *testing.T) {
	p := &pulse{}
	p.beat(true, 15)
	last, left := 0, ticks(watchTime)
	for i := 1; i <= 2*left; i++ {
		if ask, _ := p.beat(false, 15); ask {
			last = i
			p.heard.Store(true)
		}
	}
	if last < left-ticks(beatInterval) || last > left+ticks(beatInterval) && last < left+ticks(restInterval)/2 {
		t.Errorf("the last beat of the close watch is that of tick %d of %d", last, left)
	}
}

// Everything that depends on a peer is a reason to watch it closely.
func TestReasonsForACloseWatch(t *testing.T) {
	e := simEngine(t, sim.New(sim.Config{}), "a")
	s := e.newSession(e.peer(ID{1}), nil, false)
	busy := func() bool {
		b, _ := s.busy(e.waits.Load() > 0)
		return b
	}
	if busy() {
		t.Fatal("a session without anything is busy")
	}
	s.asked[1] = nil
	if !busy() {
		t.Error("a question without an answer is no reason")
	}
	delete(s.asked, 1)
	if err := s.bulk.offered(s, 1, 100); err != nil {
		t.Fatal(err)
	}
	if !busy() {
		t.Error("a bulk message that comes is no reason")
	}
	s.bulk.end(s)
	s.bulk.outs = append(s.bulk.outs, &bulkOut{})
	if !busy() {
		t.Error("a bulk message that goes is no reason")
	}
	s.bulk.outs = nil
	s.pulse.talks.Store(true)
	if !busy() {
		t.Error("a message over the control connection is no reason")
	}
	stop := e.Counter(1).OnReach(1, func() {})
	if !busy() {
		t.Error("a wait for a counter is no reason")
	}
	stop()
	if busy() {
		t.Error("it is busy when all of that is over")
	}
	if s.pulse.watch != ticks(watchTime) {
		t.Error("a new session is not watched")
	}
}

// A beat with a number is answered by one without, and that by nothing.
func TestBeatsAreAnswered(t *testing.T) {
	e := simEngine(t, sim.New(sim.Config{}), "a")
	here, far := net.Pipe()
	defer far.Close()
	s := e.newSession(e.peer(ID{1}), here, false)
	for _, request := range []uint64{0, beatAsk, 0, 7} {
		if err := s.handle(wire.Frame{Type: wire.TypeBeat, Request: request}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.out); n != 2 {
		t.Fatalf("%d answers to 2 questions", n)
	}
	f, err := wire.ReadFrame(bytes.NewReader(<-s.out), nil)
	if err != nil || f.Type != wire.TypeBeat || f.Request != 0 {
		t.Fatalf("answer %+v, %v", f, err)
	}
}
