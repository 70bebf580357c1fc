package providertest

import (
	"fmt"
	"sync/atomic"

	"github.com/hawser-project/hawser/provider"
)

// ending is a way in which a connection comes to its end.
type ending struct {
	name     string
	byWriter bool
	fence    bool
}

var endings = []ending{
	{"the receiver fences", false, true},
	{"the receiver disconnects", false, false},
	{"the writer fences", true, true},
	{"the writer disconnects", true, false},
}

// whatEndedWellWasDelivered ends connections in the middle of a stream of immediates, good and bad, and messages, and compares
// what each side knows of it. Writer and receiver run on goroutines of their own, or in turns on one.
func whatEndedWellWasDelivered(w *world) {
	const rounds = 12
	a, b := w.openOwn("a"), w.openOwn("b")
	src, dst := w.region(a, streamSize, 0), w.region(b, streamSize, provider.AccessRemoteWrite)
	box := w.region(b, 64, 0)
	cut := 0
	for round := range rounds {
		for _, end := range endings {
			l := &lane{w: w, from: a, to: b, src: src, dst: dst}
			l.peer, l.back = w.connect(a, b)
			l.key = w.grant(dst, l.back)
			b.told, b.msgs = nil, nil
			s := &stream{l: l, end: end, box: box, after: w.rng.IntN(200), rng: w.rng.Uint64()}
			// Where a refusal is an end by itself, three rounds of four come to the end that is meant.
			s.allGood = a.caps.AccessEnds && round%4 != 0
			if round%2 == 0 {
				w.both(
					func() error { return a.await("the writer's side ends", s.write, nil) },
					func() error { return b.await("the receiver's side ends", s.read, nil) },
				)
			} else {
				wrote, read := false, false
				w.until("both sides end", func() bool {
					wrote = wrote || s.write()
					read = read || s.read()
					return wrote && read
				})
			}
			if s.err != nil {
				w.Fatal(s.err)
			}
			if err := s.compare(); err != nil {
				w.Fatalf("round %d, %s: %v", round, end.name, err)
			}
			cut += len(s.posted) - s.count(provider.StatusOK) - s.count(provider.StatusAccess)
			w.settle()
		}
	}
	w.Logf("%d WRs were cut off in %d connections", cut, rounds*len(endings))
}

const (
	streamSize  = 64 << 10
	streamRecvs = 32
	streamBatch = 8
	// lengths of messages, which count up modulo this
	streamLens = 61
)

// stream is one connection of whatEndedWellWasDelivered. The owner of the writer calls write, that of the receiver read.
type stream struct {
	l     *lane
	end   ending
	box   *region
	after int // completions that the receiver sees before the end

	allGood bool // post no write that must be refused

	enough atomic.Bool // it has seen them
	err    error       // of the side that ends the connection

	// The writer's.
	rng         uint64
	posted      []provider.WR
	imms, sends int

	// Of the side that ends the connection.
	left bool
}

// write posts what the queue takes and reports whether the writer's side has come to its end.
func (s *stream) write() bool {
	a, p := s.l.from, s.l.peer
	if !a.peer(p).down {
		for range streamBatch {
			if !s.post() {
				break
			}
		}
	}
	return s.leave(a, p, s.end.byWriter)
}

// post posts one WR: an immediate that counts up, good or bad, or a message whose length counts up.
func (s *stream) post() bool {
	s.rng = s.rng*6364136223846793005 + 1442695040888963407 // Knuth's MMIX; the high bits are good
	wr := s.l.writeImm(0, 0, 1+int(s.rng>>40)%4096, uint32(s.imms))
	switch s.rng >> 60 {
	case 0:
		if !s.allGood {
			wr = bad(wr, s.l)
		}
	case 1, 2:
		wr = send(s.l.peer, s.l.src, 0, s.sends%streamLens)
	case 3:
		wr.Len = streamSize
	}
	wrs := []provider.WR{wr}
	toks, err := s.l.from.tryPost(wrs)
	if err != nil || len(toks) == 0 {
		return false // an error is met by the next poll
	}
	s.posted = append(s.posted, wrs[0])
	if wr.Op == provider.OpSend {
		s.sends++
	} else {
		s.imms++
	}
	return true
}

// read keeps receives posted and reports whether the receiver's side has come to its end.
func (s *stream) read() bool {
	b, p := s.l.to, s.l.back
	for recvs := len(b.out); recvs < streamRecvs; recvs++ {
		if toks, err := b.tryPost([]provider.WR{recv(s.box, 0, len(s.box.b))}); err != nil || len(toks) == 0 {
			break
		}
	}
	if len(b.told) >= s.after {
		s.enough.Store(true)
	}
	return s.leave(b, p, !s.end.byWriter)
}

// leave ends the connection of one side, whose turn it is when mine is true, or releases its handle once the other side has.
func (s *stream) leave(h *host, p provider.Peer, mine bool) bool {
	st := h.peer(p)
	if mine && (!s.left && (s.enough.Load() || st.down) || st.fenced && st.fenceStatus == provider.StatusUnfenced) {
		s.left, st.fenced = true, false
		if s.end.fence {
			s.err = h.dom.Fence(p)
		} else {
			s.err = h.dom.Disconnect(p)
		}
		return s.err != nil || st.down && !s.end.fence // nothing more will come
	}
	if !st.down || st.out > 0 || mine && s.end.fence && !st.fenced {
		return false
	}
	return mine || h.dom.Disconnect(p) == nil
}

func (s *stream) count(st provider.Status) int {
	n := 0
	for _, wr := range s.posted {
		if s.l.from.done[wr.Token] == st {
			n++
		}
	}
	return n
}

// compare checks what the two sides know against each other.
func (s *stream) compare() error {
	a, b := s.l.from, s.l.to
	kinds := make([]provider.Kind, s.imms) // by immediate, 0 for what was not delivered
	last := -1
	for _, c := range b.told {
		switch {
		case c.Peer != s.l.back || int(c.Imm) >= s.imms:
			return fmt.Errorf("nobody posted %s", show(c))
		case kinds[c.Imm] != 0:
			return fmt.Errorf("delivered twice: %s", show(c))
		case b.caps.Ordered && int(c.Imm) < last:
			return fmt.Errorf("immediate %d before %s", last, show(c))
		}
		kinds[c.Imm] = c.Kind
		last = max(last, int(c.Imm))
	}
	end := s.imms // on an ordered network: behind the last one that was delivered, or where it would have been
	sent, sentOK := 0, 0
	for _, wr := range s.posted {
		st := a.done[wr.Token]
		if wr.Op == provider.OpSend {
			if sent++; st == provider.StatusOK {
				sentOK++
				if b.caps.Ordered && len(b.msgs) < sent {
					return fmt.Errorf("message %d ended with ok; %d messages were delivered", sent-1, len(b.msgs))
				}
			}
			continue
		}
		if err := s.judge(wr, st, kinds[wr.Imm], last, &end); err != nil {
			return err
		}
	}
	return s.compareMessages(sentOK)
}

// judge checks one write: how it ended at the writer against what it was at the receiver.
func (s *stream) judge(wr provider.WR, st provider.Status, kind provider.Kind, last int, end *int) error {
	caps := &s.l.to.caps
	refused := wr.RemoteAddr != s.l.key.Base
	want := provider.KindImm
	if refused {
		want = provider.KindRefused
	}
	i := int(wr.Imm)
	switch {
	case kind != 0 && kind != want:
		return fmt.Errorf("immediate %d was delivered as %v, want %v", i, kind, want)
	case st == provider.StatusOK && (refused || kind == 0):
		return fmt.Errorf("immediate %d ended with ok and was delivered as %v", i, kind)
	case st == provider.StatusAccess && (!refused || caps.Refusals && kind == 0):
		return fmt.Errorf("immediate %d ended with access and was delivered as %v", i, kind)
	case !caps.Refusals && refused:
		if st != provider.StatusAccess && caps.Ordered && i < last {
			return fmt.Errorf("immediate %d, which the writer refused, ended with %v though immediate %d was delivered", i, st, last)
		}
	case caps.Ordered && kind == 0:
		*end = min(*end, i)
	case caps.Ordered && i > *end:
		return fmt.Errorf("immediate %d was delivered and immediate %d was not", i, *end)
	}
	return nil
}

// compareMessages checks what was delivered against the lengths that were sent, and their order.
func (s *stream) compareMessages(ok int) error {
	b := s.l.to
	if len(b.msgs) < ok || len(b.msgs) > s.sends {
		return fmt.Errorf("%d messages were delivered; %d were sent and %d of them ended with ok", len(b.msgs), s.sends, ok)
	}
	var byLen [streamLens]int
	for i, c := range b.msgs {
		if c.Len >= streamLens || c.Peer != s.l.back {
			return fmt.Errorf("nobody sent %s", show(c))
		}
		if b.caps.Ordered && int(c.Len) != i%streamLens {
			return fmt.Errorf("message %d has the length of another one: %s", i, show(c))
		}
		byLen[c.Len]++
	}
	for n, got := range byLen {
		if most := (s.sends - n + streamLens - 1) / streamLens; got > most {
			return fmt.Errorf("%d messages of %d bytes were delivered, %d were sent", got, n, most)
		}
	}
	return nil
}
