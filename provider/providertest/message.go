package providertest

import (
	"bytes"
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// mailbox is a region of equal buffers for receives; by token one knows which buffer a message is in.
type mailbox struct {
	r    *region
	size int
	slot map[uint64]int
}

func (w *world) mailbox(h *host, n, size int) *mailbox {
	w.Helper()
	return &mailbox{r: w.region(h, n*size, 0), size: size, slot: map[uint64]int{}}
}

// post posts the buffer i for one message of at most n bytes.
func (m *mailbox) post(i, n int) uint64 {
	m.r.h.w.Helper()
	tok := m.r.h.post(recv(m.r, i*m.size, n))[0]
	m.slot[tok] = i
	return tok
}

func (m *mailbox) bytes(c provider.Completion) []byte {
	return m.r.b[m.slot[c.Token]*m.size:][:min(int(c.Len), m.size)]
}

// messagesArriveWhole: messages of two senders, of all lengths, each whole, once and with its sender's handle.
func messagesArriveWhole(w *world) {
	const bufs, size = 8, provider.MinMaxSend
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	lanes := []*lane{w.lane(a, c, 2*size), w.lane(b, c, 2*size)}
	box := w.mailbox(c, bufs, size)
	for i := range bufs {
		box.post(i, size)
	}
	lengths := []int{0, 1, 2, 63, 64, 65, 1000, 4096, 16<<10 + 1, 64<<10 - 1, 64 << 10}
	for round := range 3 {
		type message struct {
			peer provider.Peer
			text []byte
		}
		var want []message
		for _, n := range lengths {
			for _, l := range lanes {
				o := w.rng.IntN(size)
				l.from.post(send(l.peer, l.src, o, n))
				want = append(want, message{l.back, l.src.b[o : o+n]})
			}
		}
		w.until("all messages arrive", func() bool {
			for _, m := range c.msgs {
				got := box.bytes(m)
				i := 0
				for i < len(want) && !(want[i].peer == m.Peer && bytes.Equal(want[i].text, got)) {
					i++
				}
				if i == len(want) {
					w.Fatalf("round %d: a message that was not sent, changed, or of the wrong peer: %s", round, show(m))
				}
				want = append(want[:i], want[i+1:]...)
				box.post(box.slot[m.Token], size)
			}
			c.msgs = c.msgs[:0]
			return len(want) == 0 && len(a.out)+len(b.out) == 0
		})
	}
	for _, l := range lanes {
		for t := uint64(1); t <= l.from.token; t++ {
			l.from.wantStatus(provider.StatusOK, t)
		}
	}
}

func messageWaitsForReceive(w *world) {
	l := w.pair(4096)
	b := l.to
	tok := l.from.post(send(l.peer, l.src, 0, 100))
	w.settle()
	if len(b.msgs) != 0 {
		w.Fatal("a message came without a receive")
	}
	box := w.mailbox(b, 2, 128)
	box.post(0, 128)
	w.until("the waiting message arrives after a receive is posted", func() bool { return len(b.msgs) == 1 && l.from.isDone(tok...) })
	l.from.wantStatus(provider.StatusOK, tok...)
	c := b.msgs[0]
	if c.Len != 100 || c.Peer != l.back || c.Status != provider.StatusOK || !bytes.Equal(box.bytes(c), l.src.b[:100]) {
		w.Fatalf("the waiting message is damaged: %s", show(c))
	}
	// The other order: a receive waits for a message.
	box.post(1, 128)
	w.settle()
	tok = l.from.post(send(l.peer, l.src, 7, 50))
	w.until("the message arrives in the waiting receive", func() bool { return len(b.msgs) == 2 && l.from.isDone(tok...) })
	if c := b.msgs[1]; c.Len != 50 || !bytes.Equal(box.bytes(c), l.src.b[7:57]) {
		w.Fatalf("the message is damaged: %s", show(c))
	}
}

func waitingMessageBlocksNoWrite(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	ab, cb := w.lane(a, b, 64<<10), w.lane(c, b, 64<<10)
	n := min(a.caps.PeerDepth/2, 32)
	var toks []uint64
	for i := range n {
		toks = append(toks, a.post(send(ab.peer, ab.src, 1000+i, 16<<10))...) // not what works changes
	}
	w.settle()
	for range 20 {
		ab.works() // of the same peer
		cb.works() // of another one
	}
	box := w.mailbox(b, n, 16<<10)
	for i := range n {
		box.post(i, 16<<10)
	}
	w.until("the waiting messages arrive", func() bool { return len(b.msgs) == n && a.isDone(toks...) })
	a.wantStatus(provider.StatusOK, toks...)
}

func longMessageIsTruncated(w *world) {
	const size = provider.MinMaxSend
	l := w.pair(size)
	b := l.to
	box := w.mailbox(b, 4, size)
	for i, short := range []int{0, 1, 100, size - 1} {
		clear(box.r.b)
		b.msgs = b.msgs[:0]
		n := min(size, short*2+1)
		tok := box.post(i, short)
		sent := l.from.post(send(l.peer, l.src, 0, n))
		w.until(fmt.Sprintf("a message of %d bytes in a buffer of %d is reported", n, short), func() bool {
			return len(b.msgs) == 1 && l.from.isDone(sent...)
		})
		if c := b.msgs[0]; c.Token != tok || c.Status != provider.StatusTruncated || c.Peer != l.back {
			w.Fatalf("a message of %d bytes in a buffer of %d gave %s", n, short, show(c))
		}
		if at := firstNonZero(box.r.b[i*size+short:]); at >= 0 {
			w.Fatalf("a message of %d bytes in a buffer of %d wrote %d bytes past its end", n, short, at)
		}
		// The buffer is ours again, and the next message finds its own.
		again := box.post(i, size)
		sent = l.from.post(send(l.peer, l.src, 0, n))
		w.until("the next message arrives", func() bool { return len(b.msgs) == 2 && l.from.isDone(sent...) })
		l.from.wantStatus(provider.StatusOK, sent...)
		if c := b.msgs[1]; c.Token != again || c.Status != provider.StatusOK || !bytes.Equal(box.bytes(c), l.src.b[:n]) {
			w.Fatalf("after a truncated message the next one gave %s", show(c))
		}
	}
	l.works()
}

func receivesUpToRecvDepth(w *world) {
	l := w.pair(4096)
	b, depth := l.to, l.to.caps.RecvDepth
	box := w.region(b, 4096, 0)
	wrs := make([]provider.WR, depth+1)
	for i := range wrs {
		wrs[i] = recv(box, i%64*64, 64)
	}
	toks, err := b.tryPost(wrs)
	if err != nil {
		w.Fatal(err)
	}
	if len(toks) != depth {
		w.Fatalf("post accepted %d of %d receives, want RecvDepth %d", len(toks), len(wrs), depth)
	}
	n := min(depth, 2000)
	for i := range n {
		l.from.post(send(l.peer, l.src, 0, i%65))
	}
	w.until("every message finds a receive", func() bool { return len(b.msgs) == n && len(l.from.out) == 0 })
	seen := map[uint64]bool{}
	for _, c := range b.msgs {
		if seen[c.Token] || c.Status != provider.StatusOK {
			w.Fatalf("receive used twice or broken: %s", show(c))
		}
		seen[c.Token] = true
	}
	b.post(wrs[:n-1]...) // there is room again, and for one more
	bad := recv(box, 0, 64)
	bad.LocalAddr += 4096
	tok := b.post(bad)
	b.finish(tok...)
	b.wantStatus(provider.StatusLocal, tok...)
}
