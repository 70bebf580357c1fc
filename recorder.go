package hawser

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/provider"
)

// EventKind is what happened.
type EventKind uint8

// Kinds of Event.
const (
	EventOp         EventKind = iota + 1 // an operation has ended
	EventLinkUp                          // a link carries operations
	EventLinkLost                        // it does not any more; Text says why
	EventPeerUp                          // a session with a peer is up
	EventPeerDown                        // it has ended; Text says why
	EventPeerFenced                      // nothing of it can land any more
	EventUnfenced                        // that could not be proved yet
	EventRailDead                        // a rail cannot be used any more; Text says why
)

func (k EventKind) String() string {
	return [...]string{"unknown", "op", "link up", "link lost", "peer up", "peer down", "peer fenced", "peer not fenced", "rail dead"}[k%(EventRailDead+1)]
}

// Event is something that happened on the worker. See Engine.Flight.
type Event struct {
	Time time.Time // of operations: early by up to some microseconds
	Kind EventKind
	Peer *Peer // nil when it is not known any more, of a scatter, and of EventRailDead
	Rail int   // -1: none, or several
	Link int   // of the session, -1: none
	Text string

	// The rest is of EventOp.

	Op     string // as OpError.Op, or "scatter target", for each one that has failed, before the end of its scatter
	Imm    OptImm
	Len    uint64 // bytes: of all, of each page, of a message; targets of a scatter
	Status string // "ok", or how its first part ended that did not
}

func (e *Event) String() string {
	var b strings.Builder
	b.WriteString(e.Kind.String())
	if e.Kind == EventOp {
		unit := "bytes"
		if e.Op == codeScatter.String() {
			unit = "targets"
		}
		fmt.Fprintf(&b, " %s, %d %s", e.Op, e.Len, unit)
		if e.Imm.set {
			fmt.Fprintf(&b, " imm %#x", e.Imm.v)
		}
	}
	if e.Peer != nil {
		fmt.Fprintf(&b, " peer %s", e.Peer)
	}
	if e.Link >= 0 {
		fmt.Fprintf(&b, " link %d", e.Link)
	}
	if e.Rail >= 0 {
		fmt.Fprintf(&b, " rail %d", e.Rail)
	}
	if e.Status != "" {
		b.WriteString(" " + e.Status)
	}
	if e.Text != "" {
		b.WriteString(": " + e.Text)
	}
	return b.String()
}

const (
	defaultFlightEvents = 1024
	maxFlightEvents     = 1 << 20 // 88 bytes each

	attached = 16   // events of operations, and as many others, that an error carries
	noLink   = 0xff // in record.Op: there is none, or it is not known
	clockRun = 16   // looks for work after which the worker reads the clock for its recorder, which costs as much as half a look
)

// opCode is an operation's name in record.Op.
type opCode uint8

const (
	codeWrite opCode = iota + 1
	codePages
	codeSignal
	codeSend
	codeScatter
	codeTarget
)

func (c opCode) String() string {
	return [...]string{"unknown", "write", "write pages", "signal", "send", "scatter", "scatter target"}[c%(codeTarget+1)]
}

// codeOf relies on both counting the same from 1: rail.Write, Pages, Signal, Send.
// hot:
func codeOf(k rail.Kind) opCode { return opCode(k) }

// ended records the end of an operation.
// hot:
func (w *worker) ended(code opCode, o *rail.Op) {
	c := uint8(code)
	if o.HasImm {
		c |= record.HasImm
	}
	w.recorder.Ended(c, uint8(o.Status), o.Via(), o.Peer.Number, o.Imm, o.Len)
}

// note records something else about a peer.
func (w *worker) note(kind record.Kind, p *Peer, railIndex, link int, text string) {
	if link < 0 {
		link = noLink
	}
	w.recorder.Note(kind, p.number, railIndex, link, text)
}

// flightLog is what an error carries. Immutable.
type flightLog struct {
	peer   *Peer
	events []record.Event
	at     int64
}

// last is what the recorder has about a peer. The worker calls it. Failures that come together share one log.
func (w *worker) last(p *Peer) *flightLog {
	now := record.Now()
	if l := w.lastLog; l != nil && l.peer == p && now-l.at < int64(time.Millisecond) {
		return l
	}
	w.lastLog = &flightLog{peer: p, at: now, events: w.recorder.Last(attached, func(e *record.Event) bool { return e.Peer == p.number })}
	return w.lastLog
}

// list is the log for users.
func (l *flightLog) list() []Event {
	if l == nil {
		return nil
	}
	return publish(l.events, func(uint32) *Peer { return l.peer })
}

// hint is the last event that was not an operation's end, for the text of an error; empty when there is none.
func (l *flightLog) hint() string {
	if l == nil {
		return ""
	}
	for _, e := range slices.Backward(l.events) {
		if e.Kind == record.OpEnded || e.Kind == record.PeerDown { // the error says that itself
			continue
		}
		ev := publishOne(&e, nil)
		return fmt.Sprintf(" (last event, %v before: %s)", short(time.Duration(l.at-e.Time)), &ev)
	}
	return ""
}

func publish(in []record.Event, peer func(uint32) *Peer) []Event {
	out := make([]Event, len(in))
	for i := range in {
		out[i] = publishOne(&in[i], peer(in[i].Peer))
	}
	return out
}

func publishOne(e *record.Event, p *Peer) Event {
	ev := Event{Time: record.Time(e.Time), Kind: EventKind(e.Kind), Peer: p, Rail: e.Rail, Link: -1, Text: e.Text}
	if e.Op.Link != noLink {
		ev.Link = int(e.Op.Link)
	}
	if ev.Kind == EventOp {
		ev.Op, ev.Len, ev.Status = opCode(e.Op.Op&^record.HasImm).String(), e.Len, provider.Status(e.Status).String()
		if e.Op.Op&record.HasImm != 0 {
			ev.Imm = Imm(e.Imm)
		}
	}
	return ev
}

// flightWait is how long Flight waits for the worker, which looks at it at least every half second.
const flightWait = 2 * time.Second

// Flight returns what the flight recorder has, oldest first: the last Options.FlightEvents operations that ended, and a quarter as many
// other events, which are apart so that many operations do not push them out. It works after Close, too. ErrBusy: the worker
// does not answer.
func (e *Engine) Flight() ([]Event, error) {
	got := make(chan []record.Event, 1)
	ok := e.worker.group.Call(func(*rail.Group) { got <- e.worker.recorder.Last(0, nil) })
	if !ok {
		<-e.worker.done // soon: it is closing
		got <- e.worker.recorder.Last(0, nil)
	}
	patience := time.NewTimer(flightWait)
	defer patience.Stop()
	select {
	case events := <-got:
		peers := e.numbered()
		return publish(events, func(n uint32) *Peer { return peers[n] }), nil
	case <-patience.C:
		return nil, fmt.Errorf("flight: %w: the worker does not answer within %v", ErrBusy, flightWait)
	}
}

// numbered is the peers by number.
func (e *Engine) numbered() map[uint32]*Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[uint32]*Peer, len(e.peers))
	for _, p := range e.peers {
		out[p.number] = p
	}
	return out
}

// DumpFlight writes what Flight returns as text, an event a line, the newest last.
func (e *Engine) DumpFlight(w io.Writer) error {
	events, err := e.Flight()
	if err != nil {
		return err
	}
	for i := range events {
		if _, err := fmt.Fprintf(w, "%s %s\n", events[i].Time.Format("15:04:05.000000"), &events[i]); err != nil {
			return fmt.Errorf("dump flight: %w", err)
		}
	}
	return nil
}

// FlightOf returns the last events of the peer that an error is about, oldest first; nil when it carries none. Errors of operations that
// failed, and causes of PeerDown, carry up to 16 operations that ended before, and up to 16 other events.
func FlightOf(err error) []Event {
	var f interface{ Flight() []Event }
	if errors.As(err, &f) {
		return f.Flight()
	}
	return nil
}

// downError is why a session is down, with what happened before.
type downError struct {
	error
	s *session
}

func (d *downError) Unwrap() error { return d.error }

// Flight waits for the worker to have written down what happened, which it does soon after the session has failed.
func (d *downError) Flight() []Event {
	select {
	case <-d.s.logged:
	case <-d.s.e.done:
	}
	return d.s.log.Load().list()
}

// writeDown keeps what happened before the session failed. The worker calls it, before the operations of the session fail.
func (s *session) writeDown(cause string) {
	if s.log.Load() != nil {
		return
	}
	w := s.e.worker
	w.note(record.PeerDown, s.peer, -1, -1, cause)
	s.log.Store(w.last(s.peer))
	close(s.logged)
}

// failed is the log for an operation that has failed.
func (s *session) failed() *flightLog {
	if l := s.log.Load(); l != nil {
		return l
	}
	return s.e.worker.last(s.peer)
}
