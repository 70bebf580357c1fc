package moe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// Who calls a lane drives it: it takes what has come and waits for more. While nobody is inside and peers may need something, the lane's
// own goroutine does.

// goal is what a call waits for.
type goal uint8

const (
	headsIn goal = iota // all headers, and what does not fit is known
	received
	chunked // a chunk is there, or there is none any more
	halved  // results of a chunk can be taken
	taken   // they are
	summed
)

func (l *Lane) reached(g goal) bool {
	switch g {
	case headsIn:
		return l.exec.HeadsIn()
	case received:
		return l.exec.Received() || l.exec.Limit() != nil
	case chunked:
		return l.exec.Chunk() || l.exec.Received() || l.exec.Limit() != nil
	case halved:
		return l.exec.HalfFree()
	case taken:
		return l.exec.ChunkTaken()
	default:
		return l.exec.Summed()
	}
}

// enter makes the caller drive. Every way out is leave.
//
// hot:
func (l *Lane) enter(ctx context.Context) error {
	l.mu.Lock()
	l.inside.Store(true)
	if l.closed {
		l.leave()
		return errLaneClosed
	}
	l.bell.Arm(nil, 0)
	if ctx.Err() != nil {
		err := context.Cause(ctx)
		if l.stage != toDispatch {
			l.cancel(err, proto.CodeCanceled)
		}
		l.leave()
		return err
	}
	l.turn()
	return nil
}

// leave ends driving, unless something is to be done that nobody else would do.
//
// hot:
func (l *Lane) leave() {
	changing := l.changing
	l.inside.Store(false)
	l.rest()
	if changing {
		l.moved()
	}
}

// rest is leave for the group. It reports whether something has come.
//
// hot:
func (l *Lane) rest() (turned bool) {
	for (l.changing || l.proto().Serves()) && !l.bell.Arm(&l.called, l.seen) {
		l.turn()
		turned = true
	}
	l.mu.Unlock()
	for l.mail.full.Load() && l.mu.TryLock() {
		l.turn()
		l.mu.Unlock()
		turned = true
	}
	return turned
}

// handled makes sure that what was mailed is taken soon.
func (l *Lane) handled() {
	l.bell.Ring() // to who drives
	if l.mu.TryLock() {
		l.leave()
	}
}

// serve drives while nobody is inside, when something comes.
func (l *Lane) serve() {
	for {
		select {
		case <-l.called:
		case <-l.closing:
			return
		}
		if l.mu.TryLock() {
			l.turn()
			l.leave()
		}
	}
}

// close ends the lane's goroutine, and the step in progress. The engine's part of it is quiet, or ends with the engine.
func (l *Lane) close() {
	l.mail.cancel(hawser.ErrClosed, proto.CodeClosed)
	l.handled()
	close(l.closing)
	l.served.Wait()
	l.mu.Lock() // who is inside is about to leave
	l.closed = true
	l.rest()
}

var errLaneClosed = fmt.Errorf("lane: %w", hawser.ErrClosed)

// turn takes what has come. Needs mu.
//
// hot:
func (l *Lane) turn() {
	if l.closed { // its memory may be gone
		l.seen = l.bell.Rung()
		l.mail.full.Store(false)
		return
	}
	for {
		l.seen = l.bell.Rung()
		more := l.wire.take(l.exec)
		if free := int64(l.proto().Free()); free < l.counts.poolLow.Load() && l.proto().Serves() {
			l.counts.poolLow.Store(free)
		}
		if l.mail.full.Load() {
			l.takeMail()
			more = true
		}
		if !more {
			return
		}
	}
}

// drive waits for a goal. It ends early if the step does, with the reason. Needs mu.
//
// hot:
func (l *Lane) drive(ctx context.Context, g goal) error {
	for {
		if failed, why, blamed, err := l.exec.Failed(); failed {
			return l.failure(why, blamed, err)
		}
		if l.reached(g) {
			return nil
		}
		at, due := l.proto().Next()
		var deadline time.Time
		if due {
			if now := l.now(); now >= at {
				l.exec.Tick(now)
				continue
			}
			deadline = l.origin.Add(at)
		}
		if err := l.bell.Wait(ctx, l.seen, deadline); err != nil {
			why := proto.CodeCanceled
			if errors.Is(err, hawser.ErrClosed) {
				why = proto.CodeClosed
			} else {
				err = context.Cause(ctx)
			}
			l.turn()
			if failed, _, _, _ := l.exec.Failed(); !failed && !l.reached(g) {
				l.cancel(err, why)
			}
			continue
		}
		l.turn()
	}
}

// cancel ends the step in progress. Needs mu.
func (l *Lane) cancel(cause error, why proto.Code) {
	l.cause = cause
	l.exec.Cancel(why)
	l.stopped(l, why)
}

// failure is why the step failed; the lane waits for the next view.
func (l *Lane) failure(why proto.Code, blamed int, err error) error {
	l.stage = toDispatch
	l.counts.failed.Add(1)
	l.stopped(l, why)
	e := &StepError{View: l.wire.view, Step: l.proto().Step(), Lane: l.index, Code: why, Rank: blamed, Err: err}
	if e.Err == nil && blamed == l.cfg.Rank {
		e.Err = l.cause
	}
	if e.Err == nil {
		e.Err = reason(why)
	}
	return e
}

// partial is the error of a phase that was finished without somebody, or nil.
func (l *Lane) partial() error {
	if !l.proto().Partial() {
		return nil
	}
	l.stopped(l, proto.CodeMissing)
	return l.exec.PartialError()
}

// mailbox is what others have for who drives.
type mailbox struct {
	full atomic.Bool

	mu    sync.Mutex
	downs []down     // guarded by mu
	stop  proto.Code // no step begins; guarded by mu
	why   proto.Code // the step in progress ends; guarded by mu
	cause error      // guarded by mu
}

// down says that a session with a peer has ended.
type down struct {
	rank    int
	session uint64
}

func (m *mailbox) cancel(cause error, why proto.Code) {
	m.mu.Lock()
	m.cause, m.why = cause, why
	m.full.Store(true)
	m.mu.Unlock()
}

// peerDown is called when a session with the engine of a rank has ended.
func (l *Lane) peerDown(rank int, session uint64) {
	l.mail.mu.Lock()
	l.mail.downs = append(l.mail.downs, down{rank, session})
	l.mail.full.Store(true)
	l.mail.mu.Unlock()
	l.handled()
}

// stop makes the lane refuse steps after the one in progress.
func (l *Lane) stop(why proto.Code) {
	l.mail.mu.Lock()
	l.mail.stop = why
	l.mail.full.Store(true)
	l.mail.mu.Unlock()
	l.handled()
}

// takeMail tells the lane what others had for it. Needs mu.
func (l *Lane) takeMail() {
	m := &l.mail
	m.mu.Lock()
	downs, stop, why, cause := m.downs, m.stop, m.why, m.cause
	m.downs, m.stop, m.why, m.cause = nil, proto.CodeNone, proto.CodeNone, nil
	m.full.Store(false)
	m.mu.Unlock()
	for _, d := range downs {
		if d.session >= l.wire.peers[d.rank].session { // else there has been another one since
			l.exec.PeerDown(d.rank)
		}
	}
	if stop != proto.CodeNone {
		l.proto().Stop(stop)
		l.exec.Run()
	}
	if why != proto.CodeNone {
		l.cancel(fmt.Errorf("lane %d: %w", l.index, cause), why)
	}
}
