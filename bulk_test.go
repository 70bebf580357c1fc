package hawser_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
)

// Bulk messages of every length arrive whole, once, from their sender, both ways at once, and progress ends at the total.
func TestBulkArrivesWhole(t *testing.T) {
	w := newWorld(t, "tcp")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	toB, err := a.Connect(testContext(t), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	toA, err := b.Connect(testContext(t), a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	lens := []int{0, 1, 1000, wire.BulkChunk, wire.BulkChunk + 1, wire.BulkWindow, 5<<20 + 3}
	if !testing.Short() {
		lens = append(lens, hawser.MaxBulk)
	}
	contents := func(seed, n int) []byte {
		data := make([]byte, n)
		fill(data, uint64(seed))
		return data
	}
	var wg sync.WaitGroup
	for side, from := range []*hawser.Engine{a, b} {
		to, far := toB, b
		if from == b {
			to, far = toA, a
		}
		for i, n := range lens {
			wg.Go(func() {
				last := ^uint64(0)
				err := from.SendBulk(testContext(t), to, contents(i+100*side, n), func(sent, total uint64) {
					if total != uint64(n) || last != ^uint64(0) && sent < last || sent > total {
						t.Errorf("progress %d of %d after %d, want %d at the end", sent, total, last, n)
					}
					last = sent
				})
				if err != nil || last != uint64(n) {
					t.Errorf("%d bytes: %v after %d", n, err, last)
				}
			})
		}
		wg.Go(func() {
			got := map[int]bool{}
			for range lens {
				m, err := far.Receive(testContext(t))
				if err != nil {
					t.Error(err)
					return
				}
				for i, n := range lens {
					if n == len(m.Data) {
						same(t, "message", m.Data, contents(i+100*side, n))
						got[i] = true
					}
				}
				if m.From.ID() != from.ID() {
					t.Errorf("from %s, want %s", m.From.ID(), from.ID())
				}
			}
			if len(got) != len(lens) {
				t.Errorf("%d different messages, want %d", len(got), len(lens))
			}
		})
	}
	wg.Wait()
}

// What a receiver does not read makes senders wait, and costs it no more than the room it gives; other messages, beats, imports and
// writes pass by. The end of a sender's context ends its wait, and gives its room to others.
func TestBulkWaitsForItsReader(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	to := p.rem.Peer()
	big := make([]byte, hawser.MaxBulk/2)
	for range 2 {
		if err := p.a.SendBulk(testContext(t), to, big, nil); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancelCause(testContext(t))
	enough := errors.New("enough")
	ends := make(chan error, 10)
	for range 10 { // more than may be offered at once
		go func() {
			ends <- p.a.SendBulk(ctx, to, []byte("small"), func(uint64, uint64) { t.Error("there is no room") })
		}()
	}
	for range 20 {
		tr, err := p.a.Send(to, []byte("short"))
		wait(t, tr, err)
		if _, err := p.a.Import(testContext(t), p.dst.Descriptor(p.dst.All(), hawser.RightWrite)); err != nil {
			t.Fatal(err)
		}
	}
	cancel(enough)
	for range cap(ends) {
		if err := <-ends; !errors.Is(err, enough) {
			t.Fatalf("wait for room: %v", err)
		}
	}
	sizes := map[int]int{}
	for range 22 {
		m, err := p.b.Receive(testContext(t))
		if err != nil {
			t.Fatal(err)
		}
		sizes[len(m.Data)]++
	}
	if sizes[len(big)] != 2 || sizes[5] != 20 {
		t.Fatalf("messages by length: %v", sizes)
	}
	if err := p.a.SendBulk(testContext(t), to, big, nil); err != nil { // the room is back
		t.Fatal(err)
	}
	if !to.Up() {
		t.Fatal("the session has ended")
	}
}

// A transfer ends with its session, and says why; what was not whole is never received.
func TestBulkEndsWithItsSession(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	to := p.rem.Peer()
	full := make([]byte, hawser.MaxBulk)
	if err := p.a.SendBulk(testContext(t), to, full, nil); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- p.a.SendBulk(testContext(t), to, full, nil) }()
	from, err := p.b.Connect(testContext(t), p.a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.b.Fence(testContext(t), from); err != nil {
		t.Fatal(err)
	}
	var oe *hawser.OpError
	if err := <-ended; !errors.Is(err, hawser.ErrPeerDown) || !errors.As(err, &oe) || oe.Peer != to {
		t.Fatalf("%v", err)
	}
	if m, err := p.b.Receive(testContext(t)); err != nil || len(m.Data) != len(full) {
		t.Fatalf("what came before the fence: %d bytes, %v", len(m.Data), err)
	}
	to, err = p.a.Connect(testContext(t), p.b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.a.SendBulk(testContext(t), to, []byte("next"), nil); err != nil {
		t.Fatal(err)
	}
	if m, err := p.b.Receive(testContext(t)); err != nil || string(m.Data) != "next" {
		t.Fatalf("%d bytes, %v", len(m.Data), err)
	}
}

func TestBulkArguments(t *testing.T) {
	w := newWorld(t, "sim")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	p, err := a.Connect(testContext(t), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.SendBulk(testContext(t), p, make([]byte, hawser.MaxBulk+1), nil); !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "67108864") {
		t.Errorf("too long: %v", err)
	}
	for _, q := range []*hawser.Peer{nil, p} {
		if err := b.SendBulk(testContext(t), q, nil, nil); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("to %v: %v", q, err)
		}
	}
	if err := a.Close(testContext(t)); err != nil {
		t.Fatal(err)
	}
	if err := a.SendBulk(testContext(t), p, nil, nil); !errors.Is(err, hawser.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// A sender that breaks the rules of bulk transfers loses its session; one that keeps them, to the letter, does not.
func TestHostileBulkSenders(t *testing.T) {
	offer := func(x *puppet, id, n uint64) { x.send(wire.TypeBulkOffer, id, &wire.BulkOffer{Len: n}) }
	chunk := func(x *puppet, id uint64, n int) {
		if _, err := x.conn.Write(wire.AppendRaw(nil, wire.TypeBulkChunk, id, make([]byte, n))); err != nil {
			x.Log(err) // it may have been cut off already
		}
	}
	acked := func(x *puppet, want uint64) {
		var m wire.BulkAck
		if x.read(wire.TypeBulkAck, &m); m.Received != want {
			x.Fatalf("ack of %d bytes, want %d", m.Received, want)
		}
	}
	for name, tc := range map[string]struct {
		play func(x *puppet)
		why  string // the session ends; empty: it does not
	}{
		"too long": {func(x *puppet) { offer(x, 1, wire.MaxBulk+1) }, "67108865 bytes"},
		"huge":     {func(x *puppet) { offer(x, 1, 1<<63) }, "9223372036854775808 bytes"},
		"twice":    {func(x *puppet) { offer(x, 1, 1); offer(x, 1, 1) }, "offered twice"},
		"too many": {func(x *puppet) {
			for i := range uint64(wire.MaxBulks + 1) {
				offer(x, i, wire.MaxBulk)
			}
		}, "more than 4"},
		"never offered":     {func(x *puppet) { chunk(x, 7, 1) }, "not accepted"},
		"not yet accepted":  {func(x *puppet) { offer(x, 1, wire.MaxBulk); acked(x, 0); offer(x, 2, 5); chunk(x, 2, 5) }, "not accepted"},
		"more than offered": {func(x *puppet) { offer(x, 1, 5); acked(x, 0); chunk(x, 1, 6) }, "more than the 5 bytes"},
		"empty chunk":       {func(x *puppet) { offer(x, 1, 5); acked(x, 0); chunk(x, 1, 0) }, "0 bytes"},
		"long chunk":        {func(x *puppet) { offer(x, 1, wire.MaxBulk); acked(x, 0); chunk(x, 1, wire.BulkChunk+1) }, "65537 bytes"},
		"after its end":     {func(x *puppet) { offer(x, 1, 1); acked(x, 0); chunk(x, 1, 1); acked(x, 1); chunk(x, 1, 1) }, "not accepted"},
		"after cancel":      {func(x *puppet) { offer(x, 1, 5); acked(x, 0); x.send(wire.TypeBulkCancel, 1, nil); chunk(x, 1, 1) }, "not accepted"},
		"offer cut short":   {func(x *puppet) { x.send(wire.TypeBulkOffer, 1, nil) }, "malformed"},
		"ack of nothing":    {func(x *puppet) { x.send(wire.TypeBulkAck, 9, &wire.BulkAck{Received: 1}) }, ""},
		"cancel of nothing": {func(x *puppet) { x.send(wire.TypeBulkCancel, 9, nil) }, ""},
		"cancel after its end": {func(x *puppet) {
			offer(x, 1, 1)
			acked(x, 0)
			chunk(x, 1, 1)
			acked(x, 1)
			x.send(wire.TypeBulkCancel, 1, nil)
		}, ""},
		"offer after each cancel": {func(x *puppet) {
			for i := range uint64(100) {
				offer(x, i, wire.MaxBulk)
				acked(x, 0)
				chunk(x, i, 1)
				x.send(wire.TypeBulkCancel, i, nil)
			}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			x, e := simPuppet(t, nil)
			x.up(e)
			tc.play(x)
			if tc.why != "" {
				x.closed()
				eventually(t, "the session has ended", func() bool { return !e.Stats().Peers[0].Up })
				if why := e.Stats().Peers[0].Down; !strings.Contains(why.Error(), tc.why) {
					t.Fatalf("%v, want %q", why, tc.why)
				}
				return
			}
			offer(x, 1000, 3)
			acked(x, 0)
			chunk(x, 1000, 3)
			acked(x, 3)
			for {
				m, err := e.Receive(testContext(t))
				if err != nil {
					t.Fatal(err)
				}
				if len(m.Data) == 3 {
					return
				}
			}
		})
	}
}

// A receiver that acknowledges what was not sent, or takes back what it has acknowledged, loses its session.
func TestHostileBulkReceivers(t *testing.T) {
	for name, acks := range map[string][]uint64{
		"more than was sent": {1}, "backwards": {0, wire.BulkChunk, 1}, "everything at once": {5 << 20},
	} {
		t.Run(name, func(t *testing.T) {
			x, e := simPuppet(t, nil)
			peers := make(chan *hawser.Peer, 1)
			e.OnPeer(func(ev hawser.PeerEvent) {
				if ev.Kind == hawser.PeerUp {
					peers <- ev.Peer
				}
			})
			x.up(e)
			ended := make(chan error, 1)
			go func() { ended <- e.SendBulk(testContext(t), <-peers, make([]byte, 5<<20), nil) }()
			x.read(wire.TypeBulkOffer, nil)
			for i, n := range acks {
				if i == 1 {
					x.read(wire.TypeBulkChunk, nil)
				}
				x.send(wire.TypeBulkAck, 1, &wire.BulkAck{Received: n})
			}
			if err := <-ended; !errors.Is(err, hawser.ErrPeerDown) || !strings.Contains(err.Error(), "acknowledged") {
				t.Fatal(err)
			}
			x.closed()
		})
	}
}

// Many senders at once share the room of a receiver that reads; all of them end.
func TestBulkOfManySenders(t *testing.T) {
	w := newWorld(t, "sim")
	b := w.engine(t, 0, 1)
	const senders, each = 3, 12
	var wg sync.WaitGroup
	for i := range senders {
		a := w.engine(t, i+1, 1)
		to, err := a.Connect(testContext(t), b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		for range each {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(testContext(t))
				defer cancel()
				err := a.SendBulk(ctx, to, make([]byte, rand.IntN(20<<20)), func(uint64, uint64) {
					if rand.IntN(40) == 0 {
						cancel()
					}
				})
				if err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			})
		}
	}
	ctx, stop := context.WithCancel(testContext(t))
	var reader sync.WaitGroup
	reader.Go(func() {
		for {
			if _, err := b.Receive(ctx); err != nil {
				return
			}
		}
	})
	wg.Wait()
	stop()
	reader.Wait()
}
