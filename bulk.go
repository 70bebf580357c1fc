package hawser

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
)

// MaxBulk is the longest message of SendBulk in bytes.
const MaxBulk = wire.MaxBulk

// SendBulk sends a message of at most MaxBulk bytes over the control connection, in chunks that give way to everything else that
// travels there, and returns when the peer's engine has all of it for Receive. It is for what is too long for Send and too rare for
// registered memory. A peer that does not read its messages makes it wait; ctx ends the wait. progress, if not nil, is called by
// SendBulk itself whenever the peer has said that it has more bytes. data must not change until SendBulk returns. The message
// arrives at most once; when SendBulk fails it may have arrived.
func (e *Engine) SendBulk(ctx context.Context, p *Peer, data []byte, progress func(sent, total uint64)) error {
	if p == nil || p.e != e {
		return fmt.Errorf("send bulk: peer: %w: none, or of another engine", ErrInvalid)
	}
	if len(data) > MaxBulk {
		return fmt.Errorf("send bulk: message: %w: %d bytes, at most %d", ErrInvalid, len(data), MaxBulk)
	}
	e.bulks.Add(1) // Close drains us
	defer e.bulks.Add(-1)
	if e.closing.Load() {
		return fmt.Errorf("send bulk: engine: %w", ErrClosed)
	}
	s, err := p.session()
	if err != nil {
		return fmt.Errorf("send bulk: %w", err)
	}
	var traced TraceOp
	if e.tracer != nil {
		traced = e.tracer.begin(TraceOp{Op: "send bulk", Peer: p, Len: uint64(len(data))})
	}
	if err = s.bulk.send(ctx, s, data, progress); err != nil {
		err = &OpError{Op: "send bulk", Peer: p, Err: err}
	}
	if e.tracer != nil {
		e.tracer.end(traced, err)
		e.notes.wake()
	}
	return err
}

// bulk is the part of a session that carries bulk transfers: its reader puts in what the peer says, its writer asks what to say next.
type bulk struct {
	ready chan struct{} // capacity 1: the writer may find something

	mu     sync.Mutex
	lastID uint64
	outs   []*bulkOut // in the order of their turns
	open   int        // outs that have been offered
	ins    map[uint64]*bulkIn
	frame  []byte // the last one that next made
}

// bulkOut is a transfer to the peer. Guarded by bulk.mu, except moved.
type bulkOut struct {
	id          uint64
	data        []byte
	sent, acked uint64
	offered     bool
	accepted    bool
	cancelled   bool // and the peer has not been told yet
	done        bool
	moved       chan struct{} // capacity 1: acked or done has changed
}

// bulkIn is a transfer from the peer. Guarded by bulk.mu, except what bulkStore guards. It stays in bulk.ins until its last ack
// has been handed to the writer, so that a peer that does not read the acks can start nothing new.
type bulkIn struct {
	s             *session
	id, len       uint64
	data          []byte
	received      uint64
	acked         uint64
	accepted      bool
	answer        bool // an ack is due
	gone          bool
	idle          int32 // heart ticks without a chunk
	queued, holds bool  // waits for room, has room; guarded by bulkStore.mu
}

// bulkStall is how long the sender of an accepted transfer may send nothing: the room that it holds is missed by others.
const bulkStall = 10 * time.Second

func (b *bulk) init() {
	b.ready, b.ins = make(chan struct{}, 1), map[uint64]*bulkIn{}
}

// send runs one transfer to its end.
func (b *bulk) send(ctx context.Context, s *session, data []byte, progress func(sent, total uint64)) error {
	t := &bulkOut{data: data, moved: make(chan struct{}, 1)}
	b.mu.Lock()
	b.lastID++
	t.id = b.lastID
	b.outs = append(b.outs, t)
	b.mu.Unlock()
	signal(b.ready)
	told := uint64(0)
	for {
		var err error
		select {
		case <-t.moved:
		case <-s.ctx.Done():
			err = fmt.Errorf("%w: the message may have arrived", s.cause())
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		b.mu.Lock()
		acked, done := t.acked, t.done
		if err != nil && !done {
			b.giveUp(t)
		}
		b.mu.Unlock()
		if err != nil && !done {
			return err
		}
		if progress != nil && (acked > told || done) {
			told = acked
			progress(acked, uint64(len(data)))
		}
		if done {
			return nil
		}
	}
}

// giveUp forgets the data of a transfer, and the transfer itself when the peer has not heard of it. Needs mu.
func (b *bulk) giveUp(t *bulkOut) {
	t.data, t.cancelled = nil, true
	if !t.offered {
		b.outs = slices.DeleteFunc(b.outs, func(o *bulkOut) bool { return o == t })
	}
	signal(b.ready)
}

// next is the next frame to write, nil when there is none now. It is valid until the next call. The writer calls it.
func (b *bulk) next() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, in := range b.ins {
		if in.answer {
			return b.say(wire.TypeBulkAck, in.id, wire.Append(nil, b.ack(in)))
		}
	}
	for i, t := range b.outs {
		var f []byte
		switch {
		case t.cancelled:
			b.outs = slices.Delete(b.outs, i, i+1)
			b.open--
			return b.say(wire.TypeBulkCancel, t.id, nil)
		case !t.offered && b.open < wire.MaxBulks:
			t.offered = true
			b.open++
			f = b.say(wire.TypeBulkOffer, t.id, wire.Append(nil, &wire.BulkOffer{Len: uint64(len(t.data))}))
		case t.accepted && t.sent < uint64(len(t.data)) && t.sent-t.acked < wire.BulkWindow:
			end := min(t.sent+wire.BulkChunk, uint64(len(t.data)))
			f = b.say(wire.TypeBulkChunk, t.id, t.data[t.sent:end])
			t.sent = end
		default:
			continue
		}
		b.outs = append(slices.Delete(b.outs, i, i+1), t) // the others have their turns first
		return f
	}
	return nil
}

// say makes a frame; there may be more to say after it. Needs mu.
func (b *bulk) say(t wire.Type, id uint64, payload []byte) []byte {
	signal(b.ready)
	b.frame = wire.AppendRaw(b.frame[:0], t, id, payload)
	return b.frame
}

// ack is what to tell about in, and forgets it when that is the last. Needs mu.
func (b *bulk) ack(in *bulkIn) *wire.BulkAck {
	in.answer, in.acked = false, in.received
	if in.accepted && in.received == in.len {
		delete(b.ins, in.id)
	}
	return &wire.BulkAck{Received: in.received}
}

// handle acts on a message about a bulk transfer. It runs on the session's reader.
func (b *bulk) handle(s *session, f wire.Frame) error {
	switch f.Type {
	case wire.TypeBulkOffer:
		var m wire.BulkOffer
		if err := wire.Parse(f.Payload, &m); err != nil {
			return err
		}
		return b.offered(s, f.Request, m.Len)
	case wire.TypeBulkChunk:
		return b.chunk(s, f.Request, f.Payload)
	case wire.TypeBulkAck:
		var m wire.BulkAck
		if err := wire.Parse(f.Payload, &m); err != nil {
			return err
		}
		return b.acked(f.Request, m.Received)
	}
	b.mu.Lock() // TypeBulkCancel
	in := b.ins[f.Request]
	b.drop(in)
	b.mu.Unlock()
	s.e.inbox.bulks.forget(in)
	return nil
}

// offered takes an offer, which waits for room.
func (b *bulk) offered(s *session, id, n uint64) error {
	if n > wire.MaxBulk {
		return fmt.Errorf("bulk transfer of %d bytes, at most %d are allowed", n, wire.MaxBulk)
	}
	in := &bulkIn{s: s, id: id, len: n}
	b.mu.Lock()
	switch {
	case b.ins[id] != nil:
		b.mu.Unlock()
		return fmt.Errorf("bulk transfer %d was offered twice", id)
	case len(b.ins) == wire.MaxBulks:
		b.mu.Unlock()
		return fmt.Errorf("more than %d bulk transfers at once", wire.MaxBulks)
	}
	b.ins[id] = in
	b.mu.Unlock()
	s.e.inbox.bulks.request(in)
	return nil
}

// chunk takes the next bytes of a transfer, and delivers it with the last ones.
func (b *bulk) chunk(s *session, id uint64, data []byte) error {
	b.mu.Lock()
	in := b.ins[id]
	switch {
	case in == nil || !in.accepted:
		b.mu.Unlock()
		return fmt.Errorf("bytes of bulk transfer %d, which was not accepted", id)
	case len(data) == 0 || len(data) > wire.BulkChunk:
		b.mu.Unlock()
		return fmt.Errorf("%d bytes of bulk transfer %d in one message, want 1 to %d", len(data), id, wire.BulkChunk)
	case uint64(len(data)) > in.len-in.received:
		b.mu.Unlock()
		return fmt.Errorf("bulk transfer %d has more than the %d bytes that were offered", id, in.len)
	case uint64(len(data)) > wire.BulkWindow-(in.received-in.acked):
		b.mu.Unlock()
		return fmt.Errorf("bulk transfer %d is more than %d bytes ahead of the last ack", id, wire.BulkWindow)
	}
	in.data = append(in.data, data...)
	in.received += uint64(len(data))
	in.idle = 0
	whole, all := in.received == in.len, in.data
	if !whole && in.received-in.acked >= wire.BulkStride {
		in.answer = true
		signal(b.ready)
	}
	b.mu.Unlock()
	if whole {
		b.deliver(in, all)
	}
	return nil
}

// deliver hands a whole message to whoever calls Receive, then says so.
func (b *bulk) deliver(in *bulkIn, data []byte) {
	if !in.s.e.inbox.bulks.put(in, data) {
		return // it was cancelled, or the session has ended
	}
	b.mu.Lock()
	in.data, in.answer = nil, true
	b.mu.Unlock()
	signal(b.ready)
}

// acked takes what the peer has. Acks of transfers that are over are late, and say nothing.
func (b *bulk) acked(id, received uint64) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	i := slices.IndexFunc(b.outs, func(t *bulkOut) bool { return t.id == id })
	if i < 0 || b.outs[i].cancelled {
		return nil
	}
	t := b.outs[i]
	if !t.offered || received > t.sent || received < t.acked {
		return fmt.Errorf("bulk transfer %d: %d bytes are acknowledged after %d, and %d were sent", id, received, t.acked, t.sent)
	}
	t.accepted, t.acked = true, received
	if received == uint64(len(t.data)) {
		t.done = true
		b.outs = slices.Delete(b.outs, i, i+1)
		b.open--
	}
	signal(t.moved)
	signal(b.ready)
	return nil
}

// accept is called when there is room for a transfer.
func (b *bulk) accept(in *bulkIn) {
	b.mu.Lock()
	if in.gone {
		b.mu.Unlock()
		return
	}
	in.accepted = true
	in.data = make([]byte, 0, in.len)
	in.answer = in.len > 0
	b.mu.Unlock()
	if in.len == 0 {
		b.deliver(in, nil) // the first ack is the last one
	}
	signal(b.ready)
}

// drop forgets a transfer. Needs mu.
func (b *bulk) drop(in *bulkIn) {
	if in != nil {
		in.gone, in.data, in.answer = true, nil, false
		delete(b.ins, in.id)
	}
}

// end drops what the peer has not sent whole. The session has ended.
func (b *bulk) end(s *session) {
	b.mu.Lock()
	var ins []*bulkIn
	for _, in := range b.ins {
		ins = append(ins, in)
		b.drop(in)
	}
	b.mu.Unlock()
	for _, in := range ins {
		s.e.inbox.bulks.forget(in)
	}
}

// beat is called at every tick of the heart. It reports whether anything is under way, and whether a sender has kept its room without
// using it for too long.
func (b *bulk) beat() (carries, stalled bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, in := range b.ins {
		if in.accepted && in.received < in.len {
			in.idle++
			stalled = stalled || in.idle > int32(bulkStall/heartTick)
		}
	}
	return len(b.outs)+len(b.ins) > 0, stalled
}
