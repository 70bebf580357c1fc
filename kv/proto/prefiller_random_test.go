package proto

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"pgregory.net/rapid"
)

// chaos is a Prefiller between decoders and an inference engine that do whatever is allowed, in any order: messages come twice, late
// or not at all. The rig judges.
type chaos struct {
	*serveRig
	t      *rapid.T
	links  []*rigLink
	asked  []askedOf      // that may come again
	queued map[JobID]bool // have no source pages
	passes []PassID
	words  []uint64
}

type askedOf struct {
	d     *rigLink
	epoch uint64
	b     Body
}

func (c *chaos) pick(n int) int { return rapid.IntRange(0, n-1).Draw(c.t, "pick") }

func (c *chaos) chance(percent int) bool { return rapid.IntRange(0, 99).Draw(c.t, "chance") < percent }

func newChaos(t *rapid.T) *chaos {
	cfg := PrefillerConfig{
		Topology: shape(t, tiny, 1, layout.Spec{TP: rapid.IntRange(1, 2).Draw(t, "ranks")}), Jobs: 5, JoinWait: 3 * time.Second, Verify: true,
		SharedProgress: rapid.Bool().Draw(t, "shared"),
	}
	cfg.Window.Writes = rapid.IntRange(1, 20).Draw(t, "window")
	c := &chaos{serveRig: newServeRig(t, cfg), t: t, queued: map[JobID]bool{}}
	c.words = make([]uint64, len(c.p.own.Ranks))
	two := shape(t, tiny, 2, layout.Spec{TP: 2, Pages: 48, PageTokens: 2})
	for _, d := range []*rigLink{c.decoder(1, "one", nil, 0), c.decoder(2, "two", two, 0), c.decoder(3, "two", two, 1)} {
		d.connect()
		c.links = append(c.links, d)
	}
	c.admit = c.engine
	return c
}

// engine is Admit.
func (c *chaos) engine(j JobID, info *JobInfo) Admission {
	switch k := c.pick(10); {
	case k == 0:
		return Admission{Verdict: AdmitRefused, Text: "chance"}
	case k == 1 && !info.Expected:
		return Admission{Verdict: AdmitUnknown}
	case k < 4:
		c.queued[j] = true
		return Admission{Verdict: AdmitQueued}
	}
	return c.admitNow(info.Prompt.Tokens, c.pick(info.Prompt.Tokens+1))
}

// request is one of few ids, which always has the same prompt.
func (c *chaos) request() (string, int) {
	n := c.pick(6)
	return fmt.Sprint("r", n), 3 + 7*n
}

// up picks a decoder whose link is up, if there is one.
func (c *chaos) up() *rigLink {
	d := c.links[c.pick(len(c.links))]
	for _, m := range c.take(d.peer) {
		switch b := m.Body.(type) {
		case *HelloAck:
			if m.Epoch == d.head.Epoch {
				d.head.Ticket, d.granted = m.Ticket, max(d.granted, b.Granted)
			}
		case *Accept:
			d.granted = max(d.granted, b.Granted)
		case *Beat:
			d.granted = max(d.granted, b.Granted)
		}
	}
	if d.head.Ticket == 0 {
		return nil
	}
	return d
}

// say sends a message, sometimes twice, sometimes not, and keeps it for later.
func (c *chaos) say(d *rigLink, b Body) {
	c.asked = append(c.asked, askedOf{d, d.head.Epoch, b})
	for range c.pick(3) {
		d.send(b)
	}
}

func (c *chaos) dispatchAny(*rapid.T) {
	d := c.up()
	if d == nil {
		return
	}
	request, tokens := c.request()
	first := d.top.Members[0].Groups[0].PageTokens * c.pick(3)
	m := d.ask(request, min(first, tokens/4*4), tokens, func(m *Dispatch) {
		m.Priority = int8(c.pick(3))
		m.Tail = c.chance(30)
		m.Remaining = time.Duration(1+c.pick(20)) * time.Second
		if c.chance(20) {
			m.Try = 2
		}
		m.Cost = min(m.Cost, d.granted-d.used)
	})
	c.say(d, m)
}

func (c *chaos) cancelAny(*rapid.T) {
	d := c.up()
	if d == nil {
		return
	}
	if c.chance(30) { // detach
		request, _ := c.request()
		d.head.Next++
		c.say(d, &Cancel{Seq: d.head.Next - 1, Request: request})
		return
	}
	if n := len(c.asked); n > 0 {
		if a := c.asked[c.pick(n)]; a.epoch == a.d.head.Epoch && a.d.head.Ticket != 0 {
			if m, ok := a.b.(*Dispatch); ok {
				c.say(a.d, &Cancel{Seq: m.Seq, Request: m.Request, Cost: m.Cost})
			}
		}
	}
}

// again brings a message once more, with the head that it had or the one of now.
func (c *chaos) again(*rapid.T) {
	if n := len(c.asked); n > 0 {
		a := c.asked[c.pick(n)]
		d := *a.d
		if d.head.Ticket == 0 {
			return
		}
		if a.epoch == d.head.Epoch {
			d.send(a.b)
			return
		}
		d.head.Epoch = a.epoch
		d.send(a.b)
	}
}

func (c *chaos) speak(*rapid.T) {
	d := c.up()
	if d == nil {
		return
	}
	switch c.pick(5) {
	case 0:
		d.head.LowWater = max(d.head.LowWater, d.head.Next-min(d.head.Next, uint64(c.pick(10))))
		d.send(&Beat{Wants: uint64(c.pick(100))})
	case 1:
		d.send(&Query{[]uint64{d.head.LowWater, d.head.Next - 1, 77}})
	case 2:
		d.send(&Beat{})
	case 3:
		d.send(&Drain{})
	case 4:
		d.send(&Query{})
	}
}

// relink ends a link one way or another, or goes on with a Hello.
func (c *chaos) relink(*rapid.T) {
	d := c.links[c.pick(len(c.links))]
	switch c.pick(6) {
	case 0:
		c.p.PeerDown(c.now, d.peer)
		c.check()
	case 1:
		if d.head.Ticket != 0 {
			d.send(&Bye{"chance"})
		}
	case 2:
		if c.chance(30) {
			c.p.Message(c.now, d.peer, []byte("garbage"))
			c.check()
		}
	case 3:
		c.imported(map[bool]error{true: errInjected}[c.chance(20)])
	default:
		d.send(d.hello())
		return
	}
	c.take(d.peer)
	d.head.Epoch++
	d.head.Ticket, d.granted, d.used = 0, 0, 0
	d.send(d.hello())
}

func (c *chaos) finishPosts(*rapid.T) {
	for range c.pick(6) {
		if n := len(c.open); n > 0 {
			c.completeOne(c.pick(n), map[bool]error{true: errInjected}[c.chance(3)])
		}
	}
}

// room takes the engine's room away, or gives it back.
func (c *chaos) room(*rapid.T) {
	c.refuse = nil
	switch c.pick(8) {
	case 0:
		c.refuse = ErrRoom
	case 1:
		c.refuse = errInjected
	default:
		c.p.Room(c.now)
		c.check()
	}
}

func (c *chaos) time(*rapid.T) {
	c.advance(time.Duration(rapid.IntRange(0, 1500).Draw(c.t, "ms")) * time.Millisecond)
}

// live are the jobs that the engine knows.
func (c *chaos) live() (ids []JobID) {
	for j := range c.p.jobs {
		if c.p.jobs[j].known {
			ids = append(ids, j)
		}
	}
	slices.Sort(ids)
	return ids
}

func (c *chaos) compute(*rapid.T) {
	if len(c.passes) > 0 && c.chance(80) {
		c.progress()
		return
	}
	var spans []PassSpan
	for _, id := range c.live() {
		if j := c.p.jobs[id]; c.chance(60) {
			first := 0
			if len(j.computed) > 0 {
				first = int(slices.Min(j.computed))
			}
			spans = append(spans, PassSpan{id, Span{First: first, N: first + c.pick(j.prompt.Tokens-first+1)}})
		}
	}
	id, _, err := c.p.Begin(c.now, spans)
	if err != nil {
		if !errors.Is(err, hawser.ErrBusy) {
			c.fatalf("%v", err)
		}
		return
	}
	c.check()
	c.passes = append(c.passes, id)
}

func (c *chaos) progress() {
	i := c.pick(len(c.passes))
	id, rank := c.passes[i], c.pick(len(c.words))
	switch k := c.pick(20); {
	case k < 8:
		c.p.LayerReady(c.now, id, rank, c.pick(3))
	case k < 15:
		if c.p.cfg.SharedProgress {
			rank = 0
		}
		word := max(c.words[rank], uint64(id)<<16+uint64(c.pick(4)))
		c.words[rank] = word
		c.p.Progress(c.now, rank, word)
	case k == 15:
		c.p.PassAbort(c.now, id)
		c.passes = slices.Delete(c.passes, i, i+1)
	case k == 16 && c.chance(20):
		c.p.Progress(c.now, c.pick(3), uint64(c.pick(8))<<16+uint64(c.pick(6)))
	default:
		c.p.PassEnd(c.now, id)
		c.passes = slices.Delete(c.passes, i, i+1)
	}
	c.check()
}

// engineSays is everything else that the inference engine does.
func (c *chaos) engineSays(*rapid.T) {
	ids := c.live()
	if len(ids) == 0 || c.chance(20) {
		request, tokens := c.request()
		if _, err := c.p.Expect(c.now, request, Prompt{Tokens: tokens}); err != nil && !errors.Is(err, hawser.ErrClosed) {
			c.fatalf("%v", err)
		}
		c.check()
		return
	}
	id := ids[c.pick(len(ids))]
	j := c.p.jobs[id]
	switch c.pick(5) {
	case 0:
		if j.pinned && !j.pausing {
			c.queued[id] = true
			c.p.Preempt(c.now, id)
		}
	case 1, 2:
		if c.queued[id] && !j.pinned && j.step.state == jobLive {
			delete(c.queued, id)
			c.give(id, j.prompt.Tokens, c.pick(j.prompt.Tokens+1))
		}
	case 3:
		if j.pinned && !j.pausing {
			if err := c.p.Tail(c.now, id); err != nil {
				c.fatalf("%v", err)
			}
		}
	case 4:
		if c.chance(20) {
			c.p.Fail(c.now, id, CodeEngine, "chance")
		}
	}
	c.check()
}

// rest lets everything come to its end, and looks that nothing is left.
func (c *chaos) rest() {
	c.refuse = nil
	c.imported(nil)
	for range 20 { // writes in flight, deadlines, silent members
		c.complete(-1)
		c.advance(5 * time.Second)
	}
	s := c.p.Stats()
	if s.Jobs+s.Waiting+s.Attempts+s.Outstanding > 0 || len(c.p.named) > 0 || s.AfterClose > 0 {
		c.fatalf("after the end: %+v", s)
	}
	for j, n := range c.pinned {
		if n != 0 {
			c.fatalf("job %d holds source pages after the end", j)
		}
	}
	for j := range c.started {
		if c.started[j] != 1 || c.stopped[j] != 1 {
			c.fatalf("job %d was started %d and stopped %d times", j, c.started[j], c.stopped[j])
		}
	}
	if at, ok := c.p.Next(); ok {
		c.fatalf("alarm at %v after the end", at)
	}
	c.p.Unexpected(func(machine, state, event string, n uint64) {
		c.fatalf("%d unexpected events of a kind: %s of %s in state %s", n, event, machine, state)
	})
	c.p.Close(c.now)
	c.check()
	c.advance(5 * time.Second)
	if !c.p.Done() || len(c.p.detached) > 0 {
		c.fatalf("closed, and not done: %d jobs, %d links, %d detachments", len(c.p.jobs), len(c.p.links), len(c.p.detached))
	}
}

// TestAnythingMayHappen: the rig and Check judge after each event; in the end everything has ended.
func TestAnythingMayHappen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newChaos(t)
		t.Repeat(map[string]func(*rapid.T){
			"dispatch": c.dispatchAny, "cancel": c.cancelAny, "again": c.again, "speak": c.speak, "relink": c.relink, "posts": c.finishPosts,
			"room": c.room, "time": c.time, "compute": c.compute, "compute more": c.compute, "engine": c.engineSays, "more posts": c.finishPosts,
		})
		c.rest()
	})
}
