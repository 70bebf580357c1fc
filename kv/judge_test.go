package kv

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// badPrefiller answers every Dispatch as its test says.
func badPrefiller(t *testing.T, network string, answer func(r *raw, remote *hawser.Remote, m *dispatch)) *raw {
	r := newRaw(t, network, 40)
	done := make(chan struct{})
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(func() {
		stop()
		<-done
	})
	go func() {
		defer close(done)
		var remote *hawser.Remote
		for {
			h, b, err := r.next(ctx)
			if err != nil {
				return
			}
			r.head = head{epoch: h.epoch}
			switch m := b.(type) {
			case *hello:
				var desc hawser.Descriptor
				if err := desc.UnmarshalBinary(m.descriptors[0]); err != nil {
					t.Error(err)
				}
				if remote, err = r.eng.Import(ctx, desc); err != nil {
					t.Error(err)
				}
				_, _ = r.eng.Send(r.peer, encode(r.head, &helloAck{}))
			case *dispatch:
				answer(r, remote, m)
			}
		}
	}()
	return r
}

// write sends n of the writes that a Dispatch asks for, all to one page, which is enough to be counted.
func (r *raw) write(remote *hawser.Remote, m *dispatch, n int) {
	for range n {
		at := uint64(m.extents[0].physical) * small.Group.PageBytes()
		tr, err := r.eng.Write(hawser.Write{Src: r.mem.region.Slice(0, small.Group.PageBytes()), Dst: remote.Slice(at, small.Group.PageBytes()), Imm: hawser.Imm(m.imm)})
		if err == nil {
			err = tr.Wait(limit(r.t))
		}
		if err != nil {
			r.t.Log(err) // fenced in the meantime
		}
	}
}

func (r *raw) answer(b body) {
	if _, err := r.eng.Send(r.peer, encode(r.head, b)); err != nil {
		r.t.Log(err)
	}
}

// TestDecoderJudgesByItsCount: whatever a prefiller says, pages are ready only at the exact count, and free only with proof.
func TestDecoderJudgesByItsCount(t *testing.T) {
	const tokens = 30
	expected := int(small.Writes(tokens))
	for _, c := range []struct {
		name   string
		answer func(r *raw, remote *hawser.Remote, m *dispatch)
		is     error // nil: ready
		as     func(error) bool
	}{
		{"all writes, no message", func(r *raw, remote *hawser.Remote, m *dispatch) { r.write(remote, m, expected) }, nil, nil},
		{"failed, but everything is there", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.answer(&failed{cancelAck{m.seq, uint64(expected), true}, CodeClosed, "closing"})
			r.write(remote, m, expected)
		}, nil, nil},
		{"inexact, but everything is there", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.write(remote, m, expected)
			r.answer(&failed{cancelAck{m.seq, 3, false}, CodeTransfer, "some failed"})
		}, nil, nil},
		{"gone after the last write", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.write(remote, m, expected)
			r.answer(&bye{"done"})
		}, nil, nil},
		{"failed, the last writes trail", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.answer(&failed{cancelAck{m.seq, 5, true}, CodeEngine, "no luck"})
			r.write(remote, m, 5)
		}, nil, func(err error) bool {
			var f *FailedError
			return errors.As(err, &f) && f.Text == "no luck"
		}},
		{"inexact", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.write(remote, m, 3)
			r.answer(&failed{cancelAck{m.seq, 2, false}, CodeTransfer, "some failed"})
		}, nil, func(err error) bool {
			var f *FailedError
			return errors.As(err, &f) && f.Code == CodeTransfer
		}},
		{"a write that it did not count", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.write(remote, m, 6)
			r.answer(&failed{cancelAck{m.seq, 5, true}, CodeEngine, "no luck"})
		}, nil, func(err error) bool { return err != nil }},
		{"more writes than asked for", func(r *raw, remote *hawser.Remote, m *dispatch) {
			r.answer(&failed{cancelAck{m.seq, uint64(expected) + 1, true}, CodeEngine, "too much"})
		}, ErrProtocol, nil},
		{"writes that never come", func(r *raw, _ *hawser.Remote, m *dispatch) {
			r.answer(&failed{cancelAck{m.seq, uint64(expected), true}, CodeEngine, "a lie"})
		}, nil, func(err error) bool { return err != nil }},
		{"gone", func(r *raw, _ *hawser.Remote, m *dispatch) { r.answer(&bye{"good luck"}) }, hawser.ErrPeerDown, nil},
		{"garbage", func(r *raw, _ *hawser.Remote, m *dispatch) {
			_, _ = r.eng.Send(r.peer, []byte("garbage"))
		}, ErrProtocol, nil},
		{"a decoder's message", func(r *raw, _ *hawser.Remote, m *dispatch) { r.answer(&cancel{m.seq, ""}) }, ErrProtocol, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel() // two of them wait for a second
			r := badPrefiller(t, "tcp", c.answer)
			d := newDecodeSide(t, "tcp", small, 20)
			x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: tokens, From: r.eng.Addr()})
			if err != nil {
				t.Fatal(err)
			}
			res, err := x.Wait(limit(t))
			switch {
			case c.is != nil && !errors.Is(err, c.is), c.as != nil && !c.as(err), c.is == nil && c.as == nil && err != nil:
				t.Errorf("got %v", err)
			}
			t.Logf("%v", err)
			select {
			case <-x.Quiesced():
			case <-limit(t).Done():
				t.Fatal("pages are never reusable")
			}
			res.Release()
			if n := d.mem.pool.Free(); n != 20 {
				t.Errorf("%d pages free, want 20", n)
			}
		})
	}
}

// TestSilentPrefillerIsCancelled: neither a write nor an answer for Stall; then Cancel is not answered either.
func TestSilentPrefillerIsCancelled(t *testing.T) {
	t.Parallel()
	r := badPrefiller(t, "tcp", func(*raw, *hawser.Remote, *dispatch) {})
	d := newDecodeSide(t, "tcp", small, 20, func(c *DecoderConfig) { c.Stall = 500 * time.Millisecond })
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 30, From: r.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Wait(limit(t)); !errors.Is(err, ErrStalled) {
		t.Fatalf("got %v, want ErrStalled", err)
	}
	select {
	case <-x.Quiesced():
	case <-limit(t).Done():
		t.Fatal("pages are never reusable")
	}
}

// TestDeadEngineFailsItsRequests closes P's engine, and D's, without a word from kv.
func TestDeadEngineFailsItsRequests(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		at := make(chan struct{}, 10)
		hold := make(chan struct{})
		p := newPrefillSide(t, network, small, 40, func(h *toy, _ *PrefillerConfig) {
			h.step = func(*Job, int, int) {
				at <- struct{}{}
				<-hold
			}
		})
		t.Cleanup(func() {
			p.toy.dead.Store(true)
			close(hold)
		})
		d := newDecodeSide(t, network, small, 40)
		x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 50, From: p.eng.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		<-at
		start := time.Now()
		now, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.eng.Close(now); err != nil {
			t.Fatal(err)
		}
		_, err = x.Wait(limit(t))
		var attempt *AttemptError
		if !errors.Is(err, hawser.ErrPeerDown) || !errors.As(err, &attempt) {
			t.Fatalf("got %v, want an AttemptError that is ErrPeerDown", err)
		}
		t.Logf("%v after %v", err, time.Since(start))
		select {
		case <-x.Quiesced():
		case <-limit(t).Done():
			t.Fatal("pages are never reusable")
		}
		if n := d.mem.pool.Free(); n != 40 {
			t.Errorf("%d pages free, want 40", n)
		}
		if _, err := d.d.Fetch(limit(t), FetchRequest{ID: "r2", Tokens: 50, From: p.eng.Addr()}); !errors.Is(err, hawser.ErrPeerDown) {
			t.Errorf("fetch from a dead engine: got %v, want ErrPeerDown", err)
		}
	})
}

// TestLostMessagesAreRepeated loses the first two messages of each kind that a decoder sends.
func TestLostMessagesAreRepeated(t *testing.T) {
	t.Parallel()
	r := newRaw(t, "tcp", 40)
	d := newDecodeSide(t, "tcp", small, 20)
	type outcome struct {
		x   *Pending
		err error
	}
	fetched := make(chan outcome, 1)
	go func() {
		x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 30, From: r.eng.Addr()})
		fetched <- outcome{x, err}
	}()
	third := func(want kind) body {
		t.Helper()
		for n := 0; ; {
			h, b, err := r.next(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			r.head = head{epoch: h.epoch}
			if n++; b.kind() != want {
				t.Fatalf("got %v, want %v", b.kind(), want)
			} else if n == 3 {
				return b
			}
		}
	}
	third(kindHello)
	r.answer(&helloAck{})
	m := third(kindDispatch).(*dispatch)
	r.answer(&accept{m.seq})
	got := <-fetched
	if got.err != nil {
		t.Fatal(got.err)
	}
	got.x.Cancel("test")
	third(kindCancel)
	r.answer(&cancelAck{m.seq, 0, true})
	select {
	case <-got.x.Quiesced():
	case <-limit(t).Done():
		t.Fatal("pages are never reusable")
	}
}

// TestLostFailureIsAskedFor: P has ended the attempt, and the message that says so is lost.
func TestLostFailureIsAskedFor(t *testing.T) {
	t.Parallel()
	seen := 0
	r := badPrefiller(t, "tcp", func(r *raw, _ *hawser.Remote, m *dispatch) {
		if seen++; seen == 1 {
			r.answer(&accept{m.seq})
		} else {
			r.answer(&failed{cancelAck{m.seq, 0, true}, CodeEngine, "said before"})
		}
	})
	d := newDecodeSide(t, "tcp", small, 20)
	err := d.try(limit(t), r.eng.Addr(), "r", 30)
	var f *FailedError
	if !errors.As(err, &f) || f.Text != "said before" {
		t.Fatalf("got %v, want the FailedError that was lost", err)
	}
}

// TestLongQueueIsNoStall: a prefiller that has accepted and has other work answers the repeated Dispatch, and that is enough.
func TestLongQueueIsNoStall(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	p := newPrefillSide(t, "tcp", small, 40, func(h *toy, _ *PrefillerConfig) { h.step = func(*Job, int, int) { <-hold } })
	t.Cleanup(release)
	const stall = time.Second // a loaded machine is late by tenths of it
	d := newDecodeSide(t, "tcp", small, 20, func(c *DecoderConfig) { c.Stall = stall })
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 30, From: p.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(3*stall, release)
	r, err := x.Wait(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	r.Release()
}

// TestDeadlineEndsARequest, also one that still waits for pages.
func TestDeadlineEndsARequest(t *testing.T) {
	t.Parallel()
	hold := make(chan struct{})
	p := newPrefillSide(t, "tcp", small, 40, func(h *toy, _ *PrefillerConfig) { h.step = func(*Job, int, int) { <-hold } })
	t.Cleanup(func() { close(hold) })
	d := newDecodeSide(t, "tcp", small, 20, func(c *DecoderConfig) { c.Deadline = 300 * time.Millisecond })
	var all []*Pending
	for _, id := range []string{"runs", "waits"} {
		x, err := d.d.Fetch(limit(t), FetchRequest{ID: id, Tokens: 80, From: p.eng.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	for _, x := range all {
		if _, err := x.Wait(limit(t)); !errors.Is(err, ErrDeadline) {
			t.Errorf("got %v, want ErrDeadline", err)
		}
		select {
		case <-x.Quiesced():
		case <-limit(t).Done():
			t.Fatal("pages are never reusable")
		}
	}
}

// TestStrangersCountForNothing: another engine signals the immediate of a request, as often as there are writes.
func TestStrangersCountForNothing(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		at, hold := make(chan struct{}), make(chan struct{})
		release := sync.OnceFunc(func() { close(hold) })
		var once sync.Once
		p := newPrefillSide(t, network, small, 40, func(h *toy, _ *PrefillerConfig) {
			h.step = func(*Job, int, int) {
				once.Do(func() { close(at) })
				<-hold
			}
		})
		t.Cleanup(release)
		d := newDecodeSide(t, network, small, 40)
		x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 50, From: p.eng.Addr()})
		if err != nil {
			t.Fatal(err)
		}
		<-at
		stranger := openEngine(t, "stranger", network)
		peer, err := stranger.Connect(limit(t), d.eng.Addr())
		if err != nil {
			t.Fatal(err)
		}
		expected, imm := small.Writes(50), x.attempt.counter.Imm()
		for range expected {
			if _, err := stranger.Signal(hawser.Signal{To: peer, Imm: imm}); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.eng.Counter(imm).Wait(limit(t), expected); err != nil {
			t.Fatal(err)
		}
		select {
		case <-x.done:
			t.Fatal("ready, and nothing has been written")
		case <-time.After(50 * time.Millisecond): // long enough for a wake
		}
		release()
		r, err := x.Wait(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		defer r.Release()
		if n := d.mem.corrupt("r", r.Pages); n != 0 {
			t.Errorf("%d corrupt bytes", n)
		}
	})
}

// unproven is a network whose fences have no proof until proven is closed. Each try is told.
type unproven struct {
	network
	tries, proven chan struct{}
}

func (n *unproven) Fence(ctx context.Context, p *hawser.Peer) error {
	select {
	case n.tries <- struct{}{}:
		return hawser.ErrUnfenced
	case <-n.proven:
		return n.network.Fence(ctx, p)
	}
}

// TestPagesAreQuarantinedUntilTheFence: the caller is told at once, its pages are out of service as long as there is no proof, and
// other prefillers serve the rest meanwhile.
func TestPagesAreQuarantinedUntilTheFence(t *testing.T) {
	at, hold := make(chan struct{}, 10), make(chan struct{})
	p := newPrefillSide(t, "tcp", small, 40, func(h *toy, _ *PrefillerConfig) {
		h.step = func(*Job, int, int) {
			at <- struct{}{}
			<-hold
		}
	})
	t.Cleanup(func() {
		p.toy.dead.Store(true)
		close(hold)
	})
	healthy := newPrefillSide(t, "tcp", small, 40, nil)
	eng := openEngine(t, "D", "tcp")
	net := &unproven{network: onEngine{eng}, tries: make(chan struct{}), proven: make(chan struct{})}
	tries, proven := net.tries, net.proven
	d := decodeWith(t, eng, net, 40)
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 80, From: p.eng.Addr()}) // 20 pages
	if err != nil {
		t.Fatal(err)
	}
	<-at
	now, cancel := context.WithCancel(t.Context())
	cancel()
	if err := p.eng.Close(now); err != nil {
		t.Fatal(err)
	}
	<-tries
	if _, err := x.Wait(limit(t)); !errors.Is(err, hawser.ErrPeerDown) {
		t.Fatalf("got %v, want ErrPeerDown", err)
	}
	<-tries // the second try
	for range 3 {
		if s := d.d.Stats(); s.Quarantined != 20 || s.Writing != 1 || d.mem.pool.Free() != 20 {
			t.Fatalf("%+v, %d pages free; want 20 quarantined, 20 free", s, d.mem.pool.Free())
		}
		d.fetch(t, healthy, "other", 80)
	}
	select {
	case <-x.Quiesced():
		t.Fatal("quiesced without proof")
	default:
	}
	close(proven)
	select {
	case <-x.Quiesced():
	case <-limit(t).Done():
		t.Fatal("pages are never reusable")
	}
	if s := d.d.Stats(); s.Quarantined != 0 || s.Writing != 0 || d.mem.pool.Free() != 40 {
		t.Fatalf("%+v, %d pages free; want none quarantined, all free", s, d.mem.pool.Free())
	}
}
