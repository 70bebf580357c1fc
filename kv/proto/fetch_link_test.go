package proto

import (
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

func TestWarm(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	k.hosts["b"].down = true
	a, b := k.d.Warm(k.now, "a"), k.d.Warm(k.now, "b")
	if up, err := k.d.LinkState(a); up || err != nil {
		t.Errorf("before the answer: %v, %v", up, err)
	}
	k.run()
	if up, err := k.d.LinkState(a); !up || err != nil {
		t.Errorf("a: %v, %v", up, err)
	}
	if up, err := k.d.LinkState(b); up || !errors.Is(err, hawser.ErrPeerDown) {
		t.Errorf("b: %v, %v", up, err)
	}
	k.hosts["b"].down = false
	k.pass(time.Second)
	if up, _ := k.d.LinkState(b); !up {
		t.Error("b does not come up")
	}
	if again := k.d.Warm(k.now, "a"); again != a || len(of[*Hello](k.hosts["a"])) != 1 {
		t.Error("a second link to the same address")
	}
	if k.d.Warm(k.now, "b"); k.d.Stats().Links != 2 {
		t.Errorf("%+v", k.d.Stats())
	}
	k.idle()
}

// TestPausesBetweenConnects: nobody is called all the time, and a request that wants the link does not wait for long.
func TestPausesBetweenConnects(t *testing.T) {
	k := newDesk(t, nil)
	calls := 0
	k.d.out = &connectOut{k, &calls}
	l := k.d.Warm(k.now, "nowhere")
	k.pass(10 * time.Minute)
	if calls < 20 || calls > 40 {
		t.Errorf("%d calls in 10 minutes, want one each 30 s in the end", calls)
	}
	h := k.host("nowhere", k.d.cfg.Topology, 0)
	k.pass(3 * time.Second)
	r := k.fetch("r1", 1, nil, "nowhere")
	k.pass(1100 * time.Millisecond)
	if up, err := k.d.LinkState(l); !up || len(of[*Dispatch](h)) != 1 {
		t.Fatalf("not up a second after the request: %v", err)
	}
	h.finish(h.lastSeq())
	k.d.Release(k.now, r)
	k.idle()
}

type connectOut struct {
	DecoderOut
	calls *int
}

func (o *connectOut) Connect(l Link, addr string) {
	*o.calls++
	o.DecoderOut.Connect(l, addr)
}

func TestTwoAddressesOfOnePrefiller(t *testing.T) {
	k := newDesk(t, nil, "a", "b")
	k.hosts["b"].peer = k.hosts["a"].peer
	k.fetch("r1", 1, nil, "a")
	r := k.fetch("r2", 1, nil, "b")
	if !errors.Is(k.ended[r], hawser.ErrBusy) {
		t.Errorf("ended with %v", k.ended[r])
	}
}

// TestMalformedMessageEndsOneLink: with a fence, and nobody else notices.
func TestMalformedMessageEndsOneLink(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a", "b")
	a, b := k.hosts["a"], k.hosts["b"]
	one := k.fetch("r1", 3, nil, "a")
	two := k.fetch("r2", 3, nil, "b")
	k.d.Message(k.now, 99, []byte("a stranger"))
	k.d.Message(k.now, a.peer, []byte("nonsense"))
	k.run()
	b.finish(b.lastSeq())
	if _, ok := k.ready[two]; !ok || !errors.Is(k.ended[one], ErrProtocol) || k.d.Stats().Malformed != 1 {
		t.Errorf("ended with %v and %v", k.ended[one], k.ended[two])
	}
	k.d.Release(k.now, two)
	k.idle()
}

// TestMessagesOfAnEndedEpochAreDropped: they would speak of attempts that they know nothing about.
func TestMessagesOfAnEndedEpochAreDropped(t *testing.T) { endedEpoch(t) }

func endedEpoch(t tb) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	seq := h.lastSeq()
	h.sendAs(h.epoch-1, &Failed{CancelAck{seq, 0, true, 0}, CodeEngine, ""})
	h.sendAs(h.epoch+1, &Bye{})
	k.run()
	if k.d.Stats().Dropped != 2 || k.d.Stats().Live != 1 {
		t.Errorf("%+v", k.d.Stats())
	}
	h.finish(seq)
	k.d.Release(k.now, r)
	k.idle()
}

func TestByeFencesWhatIsLive(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 3, nil, "a")
	a := k.attempts[h.lastSeq()]
	h.send(&Bye{"closing"})
	a.landed[h.peer] = 12 // Bye overtook the last immediates
	k.run()
	if _, ok := k.ready[r]; !ok {
		t.Errorf("ended with %v", k.ended[r])
	}
	k.d.Release(k.now, r)
	k.idle()
}

// TestDrainingPrefillerHearsAtOnce that nothing is live any more: it waits for that.
func TestDrainingPrefillerHearsAtOnce(t *testing.T) {
	k := newDesk(t, nil, "a")
	a := k.hosts["a"]
	k.fetch("r", 1, nil, "a")
	a.send(&Drain{})
	k.run()
	a.finish(a.lastSeq())
	if h := a.heads[len(a.heads)-1]; len(of[*Beat](a)) != 2 || h.LowWater != h.Next {
		t.Errorf("%d beats, the last message says %+v: want one when it drains, and one that says that nothing is live", len(of[*Beat](a)), h)
	}
}

// TestStuckFenceEndsWhatHasNoAlternative: in bounded time, and not only at its deadline; and a new link comes with the proof.
func TestStuckFenceEndsWhatHasNoAlternative(t *testing.T) {
	k := newDesk(t, nil, "a")
	a := k.hosts["a"]
	one := k.fetch("r1", 3, nil, "a")
	a.unproven = true
	k.d.PeerDown(k.now, a.peer, nil) // frozen: the next session is with the same peer
	k.run()
	two := k.fetch("r2", 3, nil, "a")
	k.pass(20 * time.Second)
	if !errors.Is(k.ended[one], hawser.ErrUnfenced) || !errors.Is(k.ended[two], hawser.ErrUnfenced) {
		t.Errorf("ended with %v and %v", k.ended[one], k.ended[two])
	}
	if k.quiet[one] || !k.quiet[two] {
		t.Errorf("quiet: %v and %v", k.quiet[one], k.quiet[two])
	}
	a.unproven = false
	three := k.fetch("r3", 3, nil, "a")
	k.pass(2 * time.Second)
	a.finish(a.lastSeq())
	if _, ok := k.ready[three]; !ok {
		t.Errorf("ended with %v", k.ended[three])
	}
	k.d.Release(k.now, three)
	k.idle()
}
