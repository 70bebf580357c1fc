package hawser

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/ring"
)

// Message is a received message. Data belongs to the receiver.
type Message struct {
	From *Peer
	Data []byte
}

// inbox holds messages, in their network buffers, until somebody calls Receive. When nobody does, the networks run out of
// buffers and senders wait: an engine that does not read costs a bounded amount of memory.
type inbox struct {
	note
	notes *dispatcher
	q     *ring.Queue[inboxEntry]
	ready chan struct{} // capacity 1: q may not be empty
}

type inboxEntry struct {
	peer *Peer
	msg  *rail.Message
}

func newInbox(notes *dispatcher, depth int) *inbox {
	b := &inbox{notes: notes, q: ring.NewQueue[inboxEntry](depth), ready: make(chan struct{}, 1)}
	b.target = b
	return b
}

// put is called by the worker. The queue holds as many entries as there are buffers, so it is never full.
func (b *inbox) put(en inboxEntry) {
	b.q.Push(en)
	b.notes.leave(&b.note)
}

func (b *inbox) fire() { signal(b.ready) }

// Receive waits for the next message of any peer. Messages come in no order, and at most once.
func (e *Engine) Receive(ctx context.Context) (Message, error) {
	b := e.inbox
	for {
		if en, ok := b.q.Pop(); ok {
			m := Message{From: en.peer, Data: append([]byte(nil), en.msg.Data...)}
			e.worker.group.Release(en.msg)
			if !b.q.Empty() {
				signal(b.ready) // for the next receiver
			}
			return m, nil
		}
		select {
		case <-b.ready:
		case <-e.done:
			return Message{}, fmt.Errorf("receive: engine: %w", ErrClosed)
		case <-ctx.Done():
			return Message{}, fmt.Errorf("receive: %w", context.Cause(ctx))
		}
	}
}
