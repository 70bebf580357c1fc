package hawser

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
)

// How a session that is up talks over its control connection: one goroutine writes, one reads.

// tell queues a control frame, unless the queue is full: then something else is on its way to the peer. m may be nil.
func (s *session) tell(t wire.Type, m wire.Message) {
	select {
	case s.out <- wire.AppendFrame(nil, t, 0, m):
	default:
	}
}

// post queues a frame that must not be lost, for the writer. There are few of them: each follows from something that a link, or
// the peer, has done.
func (s *session) post(frame []byte) {
	s.mu.Lock()
	s.posts = append(s.posts, frame)
	n := len(s.posts)
	s.mu.Unlock()
	signal(s.posted)
	if n > maxPosts {
		s.fail(ErrPeerDown, fmt.Errorf("it does not read its control connection: %d messages wait", n))
	}
}

// maxPosts is far more than 64 links that fail at once, and as many remotes that miss their keys, leave for a peer that reads.
const maxPosts = 16384

// nextPost is the oldest frame of post, nil when there is none.
func (s *session) nextPost() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.posts) == 0 {
		return nil
	}
	f := s.posts[0]
	s.posts = s.posts[1:]
	if len(s.posts) > 0 {
		signal(s.posted)
	}
	return f
}

// reply queues the answer to a question. While the queue is full nothing is read from the peer: one that asks and does not read
// the answers falls silent for us.
func (s *session) reply(t wire.Type, request uint64, m wire.Message) {
	select {
	case s.out <- wire.AppendFrame(nil, t, request, m):
	case <-s.ctx.Done():
	}
}

// write is the writer goroutine. It closes the connection when the session ends, after what was queued before.
func (s *session) write() {
	defer func() { _ = s.conn.Close() }() // nothing depends on how a connection that has ended closes
	for {
		f := s.nextFrame()
		if f == nil {
			return
		}
		if _, err := s.conn.Write(f); err != nil {
			select { // the peer has closed: if it said why, the reader is about to tell
			case <-s.ctx.Done():
			case <-time.After(flushTime):
			}
			s.fail(ErrPeerDown, fmt.Errorf("control connection: %w", err))
			return
		}
	}
}

// nextFrame is what to write next, nil when the session has ended and nothing is queued. What is queued goes before questions: the
// first of it is Up, without which the peer expects no question. Bulk gives way to both.
func (s *session) nextFrame() []byte {
	for {
		select {
		case f := <-s.out:
			return f
		default:
		}
		if f := s.nextPost(); f != nil {
			return f
		}
		select {
		case f := <-s.questions:
			return f
		default:
		}
		select {
		case f := <-s.out:
			return f
		case f := <-s.questions:
			return f
		case <-s.posted:
			continue
		case <-s.bulk.ready:
			if f := s.bulk.next(); f != nil {
				return f
			}
			continue
		case <-s.ctx.Done():
		}
		select {
		case f := <-s.out:
			return f
		default:
			return nil
		}
	}
}

// flushTime bounds the last words to a peer.
const flushTime = 100 * time.Millisecond

// read is the reader goroutine.
func (s *session) read() {
	buf := make([]byte, 4096)
	for {
		f, err := wire.ReadFrame(s.conn, buf)
		if err != nil {
			s.fail(ErrPeerDown, fmt.Errorf("control connection: %w", err))
			return
		}
		s.pulse.heard.Store(true)
		if f.Type != wire.TypeBeat {
			s.pulse.talks.Store(true)
		}
		if cap(f.Payload) > cap(buf) {
			buf = f.Payload // at most wire.MaxPayload, and nobody keeps a part of it
		}
		if f.Type == wire.TypeResolve || f.Type == wire.TypeLink || f.Type == wire.TypeBeat && f.Request != 0 {
			pause(s.ctx, s.questioning.take(1))
		}
		if err := s.handle(f); err != nil {
			if errors.Is(err, errBye) {
				s.fail(ErrPeerDown, err)
			} else {
				s.broken(messageReason(f.Type, err), err)
			}
			return
		}
	}
}

// handle acts on one control message of a session that is up.
func (s *session) handle(f wire.Frame) error {
	switch f.Type {
	case wire.TypeBeat:
		if f.Request != 0 {
			s.tellBeat(0)
		}
	case wire.TypeBye:
		var m wire.Bye
		if err := wire.Parse(f.Payload, &m); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s", errBye, m.Reason)
	case wire.TypeResolve:
		var m wire.Resolve
		if err := wire.Parse(f.Payload, &m); err != nil {
			return err
		}
		s.reply(wire.TypeResolved, f.Request, s.resolve(&m.Descriptor))
	case wire.TypeResolved, wire.TypeRevoked:
		return s.answer(f)
	case wire.TypeRevoke:
		return s.giveBack(f)
	case wire.TypeLink:
		return s.heard(f)
	case wire.TypeBulkOffer, wire.TypeBulkChunk, wire.TypeBulkAck, wire.TypeBulkCancel:
		return s.bulk.handle(s, f)
	default:
		if f.Flags&wire.FlagOptional == 0 {
			return fmt.Errorf("control message of unknown type %d", f.Type)
		}
	}
	return nil
}

// ask sends a question and waits for the answer.
func (s *session) ask(ctx context.Context, t wire.Type, q, a wire.Message) error {
	if s.state.Load() != stateUp {
		return s.unusable()
	}
	ch := make(chan []byte, 1)
	s.mu.Lock()
	s.nextAsk++
	n := s.nextAsk
	s.asked[n] = func(payload []byte) error {
		ch <- append([]byte(nil), payload...)
		return nil
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.asked, n)
		s.mu.Unlock()
	}()
	frame := wire.AppendFrame(nil, t, n, q)
	for questions := s.questions; ; {
		select {
		case questions <- frame:
			questions = nil // asked
		case b := <-ch:
			if err := wire.Parse(b, a); err != nil {
				s.fail(ErrPeerDown, err)
				return s.cause()
			}
			return nil
		case <-s.ctx.Done():
			return s.cause()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// answer hands an answer to its question, or drops it when nobody waits any more.
func (s *session) answer(f wire.Frame) error {
	s.mu.Lock()
	do := s.asked[f.Request]
	delete(s.asked, f.Request)
	s.mu.Unlock()
	if do == nil {
		return nil
	}
	return do(f.Payload)
}
