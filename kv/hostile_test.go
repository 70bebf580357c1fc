package kv

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser"
)

// foe is a decoder without manners, on the network of a script.
type foe struct {
	t  *testing.T
	h  *host
	p  *chaosPrefiller
	to *hawser.Peer
}

// withFoe runs f with a prefiller and a foe that is connected to it.
func withFoe(t *testing.T, f func(t *testing.T, x *foe)) {
	synctest.Test(t, func(t *testing.T) {
		r := newChaosRig(t, 1)
		r.c.calm = true
		defer r.end()
		x := &foe{t: t, p: r.prefiller()}
		x.h, _ = r.birth("d")
		defer x.die()
		x.h.owner = make([]uint64, chaosPages)
		var err error
		if x.to, err = x.h.Connect(t.Context(), x.p.h.name); err != nil {
			t.Fatal(err)
		}
		f(t, x)
	})
}

func (x *foe) die() {
	x.h.c.mu.Lock()
	defer x.h.c.mu.Unlock()
	if !x.h.dead {
		x.h.die()
	}
}

// say sends a message, and waits until it has been taken.
func (x *foe) say(h head, b body) {
	x.t.Helper()
	x.bytes(encode(h, b))
	time.Sleep(10 * time.Millisecond) // virtual
}

func (x *foe) bytes(b []byte) {
	x.t.Helper()
	if _, err := x.h.Send(x.to, b); err != nil {
		x.t.Fatal(err)
	}
}

// hears is the next message to the foe, nil when there is none.
func (x *foe) hears() (head, body) {
	ctx, cancel := context.WithTimeout(x.t.Context(), 2*linkLimit)
	defer cancel()
	m, err := x.h.Receive(ctx)
	if err != nil {
		return head{}, nil
	}
	h, b, err := decode(m.Data)
	if err != nil {
		x.t.Error(err)
	}
	return h, b
}

// hello is a proper one, of a decoder with pages pages.
func (x *foe) hello(pages uint32) *hello {
	x.t.Helper()
	b, err := x.h.Describe(nil)
	if err != nil {
		x.t.Fatal(err)
	}
	m := &hello{geometry: chaosGeometry, descriptors: [][]byte{b}}
	size := chaosGeometry.Group.PageBytes()
	for v := range uint64(chaosGeometry.Views()) {
		m.views = append(m.views, wireView{pages: pages, base: v * uint64(pages) * size, stride: size})
	}
	return m
}

// greet makes a link and returns what messages on it begin with.
func (x *foe) greet(epoch uint64) head {
	x.t.Helper()
	x.say(head{epoch: epoch}, x.hello(chaosPages))
	for {
		switch h, b := x.hears(); b.(type) {
		case *helloAck:
			return head{epoch: epoch, ticket: h.ticket, lowWater: 1, next: 1 << 40}
		case *bye: // about what was said before
		default:
			x.t.Fatalf("got %+v, want a hello-ack", b)
		}
	}
}

// part is a Dispatch of which parts are missing. Each page is an extent of its own.
func (x *foe) part(seq uint64, pages, part, parts int) *dispatch {
	tokens := pages * chaosGeometry.Group.PageTokens
	return &dispatch{seq: seq, id: "r", tokens: tokens, expected: chaosGeometry.Writes(tokens), parts: parts, part: part, extents: []extent{{0, 0, 1}}}
}

// TestHelloFloodStartsOneImport: each Hello makes a link, and the import of its memory takes as long as the decoder likes.
func TestHelloFloodStartsOneImport(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		x.p.h.set(func() { x.p.h.slowImport = time.Hour })
		for epoch := range uint64(100) {
			x.say(head{epoch: epoch + 1}, x.hello(chaosPages))
			if epoch%2 == 0 {
				x.bytes([]byte("garbage"))
			}
		}
		x.h.c.mu.Lock()
		most := x.p.h.mostImports
		x.h.c.mu.Unlock()
		if most != 1 {
			t.Errorf("%d imports at once, want 1", most)
		}
		x.p.h.set(func() { x.p.h.slowImport = 0 })
		for b := body(&bye{}); b != nil; { // until the last import has been given up
			_, b = x.hears()
		}
		x.greet(1000)
	})
}

// TestImportEndsWithItsLink: a newer Hello does not wait for the import of an older one.
func TestImportEndsWithItsLink(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		x.p.h.set(func() { x.p.h.slowImport = time.Hour })
		x.say(head{epoch: 1}, x.hello(chaosPages))
		x.p.h.set(func() { x.p.h.slowImport = 0 })
		x.say(head{epoch: 2}, x.hello(chaosPages))
		start := time.Now()
		x.greet(2) // a repetition, which finds the other import ended
		if took := time.Since(start); took > time.Second {
			t.Errorf("the link was up after %v", took)
		}
	})
}

// TestNothingBeforeTheLinkIsUp: the ticket can be guessed, but there is nothing to write to yet.
func TestNothingBeforeTheLinkIsUp(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		x.p.h.set(func() { x.p.h.slowImport = time.Second })
		x.say(head{epoch: 1}, x.hello(chaosPages))
		x.p.p.mu.Lock()
		ticket := x.p.p.links[x.p.h.peer(x.h)].ticket
		x.p.p.mu.Unlock()
		x.say(head{1, ticket, 1, 100}, x.part(1, 1, 0, 1))
		if _, b := x.hears(); b.kind() != kindBye {
			t.Errorf("got %v %+v, want a bye", b.kind(), b)
		}
		if n := x.p.p.Stats().Accepted; n != 0 {
			t.Errorf("%d jobs, want none", n)
		}
	})
}

// TestOldHelloIsDropped: it comes after a newer one.
func TestOldHelloIsDropped(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		h := x.greet(7)
		x.say(head{epoch: 6}, x.hello(chaosPages))
		x.say(h, &cancel{1, "still there?"})
		if _, b := x.hears(); b.kind() != kindCancelAck {
			t.Errorf("got %v %+v, want a cancel-ack", b.kind(), b)
		}
	})
}

// TestComplaintsAreForgotten: what a prefiller knows of peers that speak garbage ends with them, also when the garbage is taken
// after they have gone.
func TestComplaintsAreForgotten(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		for i := range 20 {
			x.bytes([]byte("garbage"))
			if i == 10 {
				x.die()
				break
			}
		}
		time.Sleep(time.Second)
		x.p.p.mu.Lock()
		defer x.p.p.mu.Unlock()
		if n := len(x.p.p.complained); n != 0 {
			t.Errorf("%d peers are remembered, want none", n)
		}
	})
}

// TestDispatchPartsAreBounded: a decoder that never sends the last part.
func TestDispatchPartsAreBounded(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		h := x.greet(1)
		for seq := uint64(1); seq <= 2*maxPartial; seq++ {
			x.say(h, x.part(seq, chaosPages, 0, 10))
		}
		x.p.p.mu.Lock()
		defer x.p.p.mu.Unlock()
		l := x.p.p.links[x.p.h.peer(x.h)]
		if len(l.partial) != maxPartial || l.buffered != maxPartial {
			t.Errorf("%d dispatches with %d extents are kept, want %d with as many", len(l.partial), l.buffered, maxPartial)
		}
		l.forget(2*maxPartial + 1)
		if len(l.partial) != 0 || l.buffered != 0 {
			t.Errorf("%d dispatches with %d extents are kept, want none", len(l.partial), l.buffered)
		}

		x.p.p.pages = MaxPages // so that there can be many extents
		most := 0
		for part := range maxParts - 1 {
			for seq := range uint64(4) {
				m := x.part(1000+seq, MaxPages, part, maxParts)
				m.extents = slices.Repeat(m.extents, maxExtents)
				if err := x.p.p.dispatch(l, m); err != nil {
					t.Fatal(err)
				}
				most = max(most, l.buffered)
			}
		}
		if most > maxBuffered || x.p.p.stats.Rejected == 0 {
			t.Errorf("%d extents were kept, want at most %d", most, maxBuffered)
		}
	})
}

// TestPromptBeyondThePoolIsRefused before anything is kept for it.
func TestPromptBeyondThePoolIsRefused(t *testing.T) {
	withFoe(t, func(t *testing.T, x *foe) {
		x.say(head{epoch: 1}, x.hello(MaxPages))
		h, _ := x.hears()
		x.say(head{1, h.ticket, 1, 100}, x.part(1, MaxPages, 0, 10))
		_, b := x.hears()
		if m, ok := b.(*reject); !ok || m.code != CodeInfeasible || m.text != fmt.Sprintf("prompt needs %d pages, the prefiller has %d", MaxPages, chaosPages) {
			t.Errorf("got %+v, want infeasible", b)
		}
	})
}
