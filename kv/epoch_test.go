package kv

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// TestLateHelloBringsNoLinkBack: the engine may deliver a repeated Hello, and a Dispatch of its link, after the Bye. The tombs of
// that link are gone, and D has reused the pages.
func TestLateHelloBringsNoLinkBack(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	m := r.dispatch(1, 30)
	r.send(&cancel{1, "overtakes"})
	get[*cancelAck](r)
	r.send(&bye{"done"})
	old := r.head
	r.send(r.hello()) // the same epoch: a repetition
	get[*helloAck](r)
	r.head = old
	r.send(m)
	get[*bye](r)
	if s := p.p.Stats(); s.Accepted != 0 {
		t.Errorf("%d jobs, want 0", s.Accepted)
	}
}

// TestLinksOfOneEngineGrow: a Decoder that follows another on an engine must not take over its links: they have other pages, and the
// prefiller may not know yet that they have ended.
func TestLinksOfOneEngineGrow(t *testing.T) {
	r := newRaw(t, "tcp", 40)
	eng := openEngine(t, "D", "tcp")
	var last uint64
	for range 3 {
		mem := newMemory(t, eng, small, 20, 8)
		d, err := NewDecoder(eng, DecoderConfig{Geometry: small, Views: mem.views, Pool: mem.pool})
		if err != nil {
			t.Fatal(err)
		}
		warm := make(chan error, 1)
		go func() { warm <- d.Warm(limit(t), r.eng.Addr()) }()
		for {
			h, b, err := r.next(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			if b.kind() == kindHello {
				if h.epoch > last {
					last = h.epoch
					r.head = head{epoch: h.epoch}
					r.answer(&helloAck{})
					break
				}
				t.Fatalf("epoch %d after %d", h.epoch, last)
			}
		}
		if err := <-warm; err != nil {
			t.Fatal(err)
		}
		if err := d.Close(limit(t)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOldCountsDoNotCount: a peer has signalled the value of an attempt before the attempt began.
func TestOldCountsDoNotCount(t *testing.T) {
	const tokens = 30
	write := make(chan struct{})
	r := badPrefiller(t, "tcp", func(r *raw, remote *hawser.Remote, m *dispatch) {
		r.answer(&accept{m.seq})
		<-write
		r.write(remote, m, int(m.expected))
	})
	release := sync.OnceFunc(func() { close(write) })
	t.Cleanup(release)
	d := newDecodeSide(t, "tcp", small, 20)
	to, err := r.eng.Connect(limit(t), d.eng.Addr())
	if err != nil {
		t.Fatal(err)
	}
	last, err := d.eng.Imms().Take()
	if err != nil {
		t.Fatal(err)
	}
	last.Close()
	n, imm := small.Writes(tokens), last.Imm()+1
	for range n {
		if _, err := r.eng.Signal(hawser.Signal{To: to, Imm: imm}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, func() error {
		if got := d.eng.Stats().StaleImms; got != n {
			return fmt.Errorf("%d stale immediates, want %d", got, n)
		}
		return nil
	})
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: tokens, From: r.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	if got := x.attempt.counter.Imm(); got != imm {
		t.Fatalf("value %#x, want %#x", got, imm)
	}
	select {
	case <-x.done:
		t.Error("ready, and nothing has been written")
	case <-time.After(50 * time.Millisecond): // long enough for a wake
	}
	release()
	res, err := x.Wait(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	res.Release()
}

// TestMessagesOfAnOldLinkDoNothing: they say that it ends, and that the next one is up.
func TestMessagesOfAnOldLinkDoNothing(t *testing.T) {
	r := badPrefiller(t, "tcp", func(r *raw, remote *hawser.Remote, m *dispatch) {
		now := r.head
		r.head.epoch--
		r.answer(&bye{"long ago"})
		r.answer(&failed{cancelAck{m.seq, 0, true}, CodeEngine, "long ago"})
		r.head = now
		r.write(remote, m, int(m.expected))
	})
	d := newDecodeSide(t, "tcp", small, 20)
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 30, From: r.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	res, err := x.Wait(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	res.Release()
}
