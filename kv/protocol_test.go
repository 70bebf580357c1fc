package kv

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// raw is an engine that speaks the protocol by hand: as a decoder or a prefiller that does what it should not.
type raw struct {
	t    *testing.T
	eng  *hawser.Engine
	mem  *memory
	peer *hawser.Peer
	head head
}

func newRaw(t *testing.T, network string, pages int) *raw {
	t.Helper()
	r := &raw{t: t, eng: openEngine(t, "raw", network), head: head{epoch: 1, lowWater: 1, next: 1000}}
	r.mem = newMemory(t, r.eng, small, pages, 9)
	return r
}

// dial connects to a prefiller and agrees with it, as a decoder does.
func (r *raw) dial(addr string) {
	r.t.Helper()
	var err error
	if r.peer, err = r.eng.Connect(limit(r.t), addr); err != nil {
		r.t.Fatal(err)
	}
	m, err := helloOf(small, r.mem.views)
	if err != nil {
		r.t.Fatal(err)
	}
	// The prefiller's side of the connection may come up later, and until then its answer is lost.
	for {
		r.send(m)
		ctx, cancel := context.WithTimeout(limit(r.t), repeatFirst)
		_, b, err := r.next(ctx)
		cancel()
		if err == nil {
			if b.kind() != kindHelloAck {
				r.t.Fatalf("got %v %+v, want a hello-ack", b.kind(), b)
			}
			return
		}
	}
}

func (r *raw) send(b body) {
	r.t.Helper()
	r.sendBytes(encode(r.head, b))
}

func (r *raw) sendBytes(b []byte) {
	r.t.Helper()
	tr, err := r.eng.Send(r.peer, b)
	if err == nil {
		err = tr.Wait(limit(r.t))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) next(ctx context.Context) (head, body, error) {
	m, err := r.eng.Receive(ctx)
	if err != nil {
		return head{}, nil, err
	}
	r.peer = m.From
	h, b, err := decode(m.Data)
	if err != nil {
		r.t.Errorf("undecodable message: %v", err)
	}
	return h, b, err
}

// get waits for the next message of a kind; timing messages are skipped, others are faults.
func get[B body](r *raw) B {
	r.t.Helper()
	for {
		_, b, err := r.next(limit(r.t))
		if err != nil {
			r.t.Fatal(err)
		}
		if m, ok := b.(B); ok {
			return m
		}
		if b.kind() == kindTiming {
			continue
		}
		var want B
		r.t.Fatalf("got %v %+v, want %v", b.kind(), b, want.kind())
	}
}

// quiet checks that everything sent so far has been answered: a Cancel of an attempt never mentioned is answered last.
func (r *raw) quiet() {
	r.t.Helper()
	r.head.next++
	seq := r.head.next - 1
	r.send(&cancel{seq, "test"})
	if m := get[*cancelAck](r); m.seq != seq {
		r.t.Fatalf("got an answer for attempt %d, want none but for %d", m.seq, seq)
	}
}

func (r *raw) dispatch(seq uint64, tokens int) *dispatch {
	pages := small.Pages(tokens)
	return &dispatch{
		seq: seq, id: fmt.Sprintf("raw%d", seq), imm: uint32(seq), tokens: tokens, expected: small.Writes(tokens),
		parts: 1, extents: []extent{{0, 0, uint32(pages)}},
	}
}

func TestDuplicatesAreAnsweredAndDoNothing(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	m := r.dispatch(1, 30)
	for range 3 {
		r.send(m)
	}
	for range 3 {
		if a := get[*accept](r); a.seq != 1 {
			t.Fatalf("accept of %d, want 1", a.seq)
		}
	}
	c := r.eng.Counter(1)
	if err := c.Wait(limit(t), m.expected); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := p.p.Stats(); s.Done != 1 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.send(m) // the job has ended
	get[*accept](r)
	r.send(&cancel{1, "late"})
	if a := get[*cancelAck](r); *a != (cancelAck{1, m.expected, true}) {
		t.Fatalf("got %+v, want everything posted", a)
	}
	r.quiet()
	if n := c.Load(); n != m.expected {
		t.Errorf("%d writes, want %d", n, m.expected)
	}
	if s := p.p.Stats(); s.Accepted != 1 {
		t.Errorf("%d jobs, want 1", s.Accepted)
	}
	// Forgotten: dropped without an answer, whatever they say.
	r.head.lowWater = 2
	r.quiet()
	r.send(m)
	r.send(&cancel{1, "very late"})
	r.quiet()
}

// TestCancelOvertakesDispatch: the Dispatch that comes after its Cancel must not start anything.
func TestCancelOvertakesDispatch(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	for range 2 {
		r.send(&cancel{5, "first"})
		if a := get[*cancelAck](r); *a != (cancelAck{5, 0, true}) {
			t.Fatalf("got %+v, want nothing posted", a)
		}
	}
	r.send(r.dispatch(5, 30))
	r.quiet()
	if s := p.p.Stats(); s.Accepted != 0 {
		t.Errorf("%d jobs, want 0", s.Accepted)
	}
}

// TestRejectLeavesATombstone: a repetition of a refused Dispatch gets the same answer, even when there would be room now.
func TestRejectLeavesATombstone(t *testing.T) {
	hold := make(chan struct{})
	release := sync.OnceFunc(func() { close(hold) })
	p := newPrefillSide(t, "shm", small, 40, func(h *toy, c *PrefillerConfig) {
		c.Jobs = 1
		h.step = func(*Job, int, int) { <-hold }
	})
	t.Cleanup(release)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	r.send(r.dispatch(1, 30))
	get[*accept](r)
	r.send(r.dispatch(2, 30))
	if m := get[*reject](r); m.seq != 2 || m.code != CodeBusy {
		t.Fatalf("got %+v, want busy", m)
	}
	release()
	if err := r.eng.Counter(1).Wait(limit(t), small.Writes(30)); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if s := p.p.Stats(); s.Live != 0 {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	r.send(r.dispatch(2, 30))
	if m := get[*reject](r); m.seq != 2 || m.code != CodeBusy {
		t.Fatalf("got %+v, want the same answer", m)
	}
	r.send(&cancel{2, "give up"})
	if a := get[*cancelAck](r); *a != (cancelAck{2, 0, true}) {
		t.Fatalf("got %+v, want nothing posted", a)
	}
}

func TestDispatchPartsInAnyOrder(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	whole := r.dispatch(1, 39) // ten pages
	part := func(i int, e ...extent) *dispatch {
		m := *whole
		m.parts, m.part, m.extents = 3, i, e
		return &m
	}
	parts := []*dispatch{part(0, extent{4, 20, 2}), part(1, extent{0, 30, 4}), part(2, extent{6, 2, 3}, extent{9, 7, 1})}
	for _, i := range []int{2, 2, 0, 2, 0, 1} {
		r.send(parts[i])
	}
	get[*accept](r)
	if err := r.eng.Counter(1).Wait(limit(t), whole.expected); err != nil {
		t.Fatal(err)
	}
	if n := r.mem.corrupt("raw1", []uint32{30, 31, 32, 33, 20, 21, 2, 3, 4, 7}); n != 0 {
		t.Errorf("%d corrupt bytes", n)
	}
	for _, m := range parts { // a repetition is answered once, not for each part
		r.send(m)
	}
	get[*accept](r)
	r.quiet()
}

func TestInvalidDispatchIsRejected(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	r := newRaw(t, "shm", 40)
	r.dial(p.eng.Addr())
	seq := uint64(0)
	for _, c := range []struct {
		change func(*dispatch)
		want   string
	}{
		{func(m *dispatch) { m.expected++ }, "49 writes expected there for 30 tokens, 48 here"},
		{func(m *dispatch) { m.extents = nil }, "page 0 of 8 is not listed"},
		{func(m *dispatch) { m.extents = []extent{{0, 33, 8}} }, "a view 40"},
	} {
		seq++
		m := r.dispatch(seq, 30)
		c.change(m)
		r.send(m)
		if a := get[*reject](r); a.seq != seq || a.code != CodeInvalid || !strings.Contains(a.text, c.want) {
			t.Errorf("got %+v, want invalid: %s", a, c.want)
		}
	}
	r.quiet()
}

// TestGarbageCostsOnlyItsSender: one clear error for the peer that sends garbage, and nothing for anybody else.
func TestGarbageCostsOnlyItsSender(t *testing.T) {
	garbage := map[string]func(r *raw) []byte{
		"no message":            func(*raw) []byte { return []byte("GET / HTTP/1.1\r\nHost: example.com\r\n\r\n") },
		"empty":                 func(*raw) []byte { return []byte{} },
		"cut short":             func(r *raw) []byte { return encode(r.head, r.dispatch(1, 30))[:40] },
		"a prefiller's message": func(r *raw) []byte { return encode(r.head, &accept{1}) },
		"attempt of the future": func(r *raw) []byte { return encode(r.head, r.dispatch(r.head.next, 30)) },
		"far attempt":           func(r *raw) []byte { return encode(head{1, 1, 1 << 40}, r.dispatch(1<<39, 30)) },
		"cancel of the future":  func(r *raw) []byte { return encode(r.head, &cancel{r.head.next, ""}) },
		"parts that differ": func(r *raw) []byte {
			m := r.dispatch(9, 30)
			m.parts = 2
			r.send(m)
			m.tokens = 31
			return encode(r.head, m)
		},
	}
	hold := make(chan struct{}, 100)
	p := newPrefillSide(t, "tcp", small, 80, func(h *toy, _ *PrefillerConfig) {
		h.step = func(j *Job, first, _ int) {
			if first > 0 {
				<-hold
			}
		}
	})
	t.Cleanup(func() { close(hold) })
	d := newDecodeSide(t, "tcp", small, 80)
	victim, err := d.d.Fetch(limit(t), FetchRequest{ID: "victim", Tokens: 64, From: p.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range garbage {
		r := newRaw(t, "tcp", 40)
		r.dial(p.eng.Addr())
		r.sendBytes(f(r))
		m := get[*bye](r)
		if !strings.Contains(m.text, "protocol error") {
			t.Errorf("%s: got %q, want a protocol error", name, m.text)
		}
		t.Logf("%s: %s", name, m.text)
		for range 5 { // no second complaint
			r.sendBytes([]byte("more garbage"))
		}
		r.head.epoch++ // it may come to its senses
		r.dial(p.eng.Addr())
		r.send(r.dispatch(20, 10))
		get[*accept](r)
		r.send(&cancel{20, "enough"})
		get[*cancelAck](r)
	}
	for range small.Layers {
		hold <- struct{}{}
	}
	res, err := victim.Wait(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Release()
	if n := d.mem.corrupt("victim", res.Pages); n != 0 {
		t.Errorf("%d corrupt bytes", n)
	}
}

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
				for !r.peer.Up() {
					time.Sleep(time.Millisecond)
				}
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

// TestSilentPrefillerIsCancelled: neither a write nor an answer for stallLimit; then Cancel is not answered either.
func TestSilentPrefillerIsCancelled(t *testing.T) {
	if testing.Short() {
		t.Skip("takes twice the stall limit, 10 s")
	}
	t.Parallel()
	r := badPrefiller(t, "tcp", func(*raw, *hawser.Remote, *dispatch) {})
	d := newDecodeSide(t, "tcp", small, 20)
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
