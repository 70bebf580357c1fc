package hawser

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

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
	ready chan struct{} // capacity 1: q or bulks may not be empty
	bulks *bulkStore
	turn  atomic.Uint32 // bulk messages and others take turns

	mu     sync.RWMutex // readers of buffers hold it, so that close waits for them
	closed bool         // guarded by mu
}

type inboxEntry struct {
	peer *Peer
	msg  *rail.Message
}

func newInbox(notes *dispatcher, depth int) *inbox {
	b := &inbox{notes: notes, q: ring.NewQueue[inboxEntry](depth), ready: make(chan struct{}, 1)}
	b.target = b
	b.bulks = newBulkStore(b.ready)
	return b
}

// put is called by the worker.
func (b *inbox) put(en inboxEntry) {
	for !b.q.Push(en) { // it has room for all buffers, but for the moment in which a reader is taking one
		runtime.Gosched()
	}
	b.notes.leave(&b.note)
}

func (b *inbox) fire() { signal(b.ready) }

// take copies the oldest message out of its buffer and gives that back; false when there is none, or not any more.
func (b *inbox) take(g *rail.Group) (Message, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return Message{}, false
	}
	m, ok := b.takeTurn(g)
	if !b.q.Empty() || !b.bulks.empty() {
		signal(b.ready) // for the next receiver
	}
	return m, ok
}

func (b *inbox) takeTurn(g *rail.Group) (Message, bool) {
	if b.turn.Add(1)%2 == 0 {
		if m, ok := b.bulks.take(); ok {
			return m, true
		}
	}
	en, ok := b.q.Pop()
	if !ok {
		return b.bulks.take()
	}
	m := Message{From: en.peer, Data: append([]byte(nil), en.msg.Data...)}
	g.Release(en.msg)
	return m, true
}

// close makes sure that nobody reads a buffer any more: they are about to be freed.
func (b *inbox) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

// Receive waits for the next message of any peer. Messages come in no order, and at most once.
func (e *Engine) Receive(ctx context.Context) (Message, error) {
	for {
		if m, ok := e.inbox.take(e.worker.group); ok {
			return m, nil
		}
		select {
		case <-e.inbox.ready:
		case <-e.done:
			return Message{}, fmt.Errorf("receive: engine: %w", ErrClosed)
		case <-ctx.Done():
			return Message{}, fmt.Errorf("receive: %w", context.Cause(ctx))
		}
	}
}
