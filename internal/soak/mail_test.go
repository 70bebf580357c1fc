//go:build soak

package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/hawser-project/hawser"
)

// mail is which messages an engine has sent without error, and which it has received, since the last time that it told.
type mail struct {
	ID             string
	Sent, Received map[string][]uint64 // numbers, by the other side's identity
}

// mailroom keeps the books.
type mailroom struct {
	mu       sync.Mutex
	last     map[string]uint64          // guarded by mu: number of the last message to each engine
	sent     map[string][]uint64        // guarded by mu
	received map[string][]uint64        // guarded by mu
	seen     map[string]map[uint64]bool // guarded by mu
}

func newMailroom() *mailroom {
	return &mailroom{
		last: map[string]uint64{}, sent: map[string][]uint64{}, received: map[string][]uint64{}, seen: map[string]map[uint64]bool{},
	}
}

// gone forgets what was exchanged with an engine that is gone, but not which messages have come: one may be in a buffer yet.
func (r *mailroom) gone(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.sent, id)
	delete(r.received, id)
}

func (n *node) mailbox() *mail {
	r := n.mail
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &mail{ID: n.id, Sent: r.sent, Received: r.received}
	r.sent, r.received = map[string][]uint64{}, map[string][]uint64{}
	return m
}

// A message: the identity of the engine that it is for, the number, and a body that follows from both.
const (
	mailHead = 16 + 8
	mailBody = 6000
	bulkBody = 500_000
)

func mailText(to hawser.ID, n uint64, length int) []byte {
	b := make([]byte, mailHead+length)
	copy(b, to[:])
	binary.LittleEndian.PutUint64(b[16:], n)
	var seed [32]byte
	copy(seed[:], b[:mailHead])
	_, _ = rand.NewChaCha8(seed).Read(b[mailHead:])
	return b
}

// talk sends a message.
func (a *actor) talk(to entry) {
	p := a.connect(to)
	if p == nil {
		return
	}
	a.mail.mu.Lock()
	a.mail.last[to.ID]++
	n := a.mail.last[to.ID]
	a.mail.mu.Unlock()
	if err := a.post(p, n); err != nil {
		a.failed("send", err)
		return
	}
	a.mail.mu.Lock()
	defer a.mail.mu.Unlock()
	a.mail.sent[to.ID] = append(a.mail.sent[to.ID], n)
}

// post sends a message over the data path, or a long one over the control connection.
func (a *actor) post(p *hawser.Peer, n uint64) error {
	if a.rng.IntN(8) == 0 {
		a.m.counts.add("bulk messages", 1)
		ctx, cancel := patience()
		defer cancel()
		return a.e.SendBulk(ctx, p, mailText(p.ID(), n, a.rng.IntN(bulkBody)), nil)
	}
	a.m.counts.add("messages", 1)
	text := mailText(p.ID(), n, a.rng.IntN(mailBody))
	_, err := a.run(operation{
		submit: func() (*hawser.Transfer, error) { return a.e.Send(p, text) },
		queue:  func() error { return a.q.Send(p, text, n) },
	}, n)
	return err
}

// listen reads messages until the engine closes.
func (n *node) listen() {
	for {
		msg, err := n.e.Receive(context.Background())
		if errors.Is(err, hawser.ErrClosed) {
			return
		}
		if err != nil {
			n.m.wrong("receive: %v", err)
			return
		}
		n.open(msg)
	}
}

// open checks one message.
func (n *node) open(msg hawser.Message) {
	if len(msg.Data) < mailHead {
		n.m.wrong("a message of %d bytes", len(msg.Data))
		return
	}
	number := binary.LittleEndian.Uint64(msg.Data[16:])
	if !bytes.Equal(msg.Data, mailText(n.e.ID(), number, len(msg.Data)-mailHead)) {
		n.m.wrong("a message of %d bytes from %s is another's, or damaged", len(msg.Data), msg.From)
		return
	}
	from := msg.From.ID().String()
	r := n.mail
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[from] == nil {
		r.seen[from] = map[uint64]bool{}
	}
	if r.seen[from][number] {
		n.m.wrong("message %d of %s came twice", number, from)
	}
	r.seen[from][number] = true
	r.received[from] = append(r.received[from], number)
}
