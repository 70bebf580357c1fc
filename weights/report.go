package weights

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// Report says what an operation did, and how long it took.
type Report struct {
	Version Version
	Epoch   uint64 // the last one
	Plan    string // controller: id of the first plan, in hexadecimal; empty: there was none
	Bytes   int64  // written; a controller: by all publishers together
	Writes  uint64
	Wall    time.Duration // controller: from BEGIN to the last answer; publisher: of Push
	Phases  Phases        // controller: of the slowest rank, as far as ranks have told
	Repairs int
	Staging int64         // bytes: the most that one rank had in flight
	Serving []int         // controller: instances that serve Version
	Out     []InstanceOut // controller: instances that were part of it and do not
}

// InstanceOut says why an instance does not serve a version.
type InstanceOut struct {
	Instance int
	Engine   string // of the member to blame: its id
	Why      string
}

// Phases are parts of a push.
type Phases struct {
	Pause     time.Duration // the longest stop of an instance: from the call of Pause to the end of Resume
	FirstByte time.Duration // from BEGIN, or START at a publisher, to the first write that was placed
	LastByte  time.Duration // the same to the last one
	Verify    time.Duration // digests and content roots
	PostLoad  time.Duration
	Commit    time.Duration // from the decision to the last answer
	Resume    time.Duration // the hook
}

// raise keeps the slower of each.
func (p *Phases) raise(o Phases) {
	for _, x := range []struct {
		at *time.Duration
		d  time.Duration
	}{
		{&p.Pause, o.Pause},
		{&p.FirstByte, o.FirstByte},
		{&p.LastByte, o.LastByte},
		{&p.Verify, o.Verify},
		{&p.PostLoad, o.PostLoad},
		{&p.Commit, o.Commit},
		{&p.Resume, o.Resume},
	} {
		*x.at = max(*x.at, x.d)
	}
}

// phases are what a receiver measures of an epoch. Safe for concurrent use.
type phases struct {
	mu    sync.Mutex
	began time.Time // the instance was told to stop
	p     Phases
}

func (p *phases) change(f func(*Phases)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.p)
}

// begin forgets what was measured before.
func (p *phases) begin() { p.change(func(x *Phases) { *x = Phases{} }) }

func (p *phases) stop()                    { p.change(func(*Phases) { p.began = time.Now() }) }
func (p *phases) loaded(d time.Duration)   { p.change(func(x *Phases) { x.PostLoad += d }) }
func (p *phases) verified(d time.Duration) { p.change(func(x *Phases) { x.Verify += d }) }

func (p *phases) resumed(from time.Time) {
	p.change(func(x *Phases) { x.Resume, x.Pause = time.Since(from), time.Since(p.began) })
}

func (p *phases) now() (x Phases) {
	p.change(func(p *Phases) { x = *p })
	return x
}

// memberReport is what a member tells its controller of an epoch, for Report alone: nothing depends on it.
type memberReport struct {
	Epoch   uint64
	Phases  Phases
	Bytes   uint64
	Writes  uint64
	Staging int64
	Waiting *Waiting // receivers; nil: nothing is missing, or it was not looked
	Arrived Arrived  // receivers
}

// Messages that begin with reportMagic are reports in JSON.
const reportMagic = "hwR1"

// tell sends a report to the controller of an epoch. Needs mu.
func (m *member) tell(e proto.Key, r memberReport) {
	r.Epoch = e.Number
	if data, err := json.Marshal(r); err == nil {
		m.Send(e.Term.ID, append([]byte(reportMagic), data...))
	}
}

// clock measures an operation at a controller. Guarded by its mu.
type clock struct {
	began, decided time.Time
	first          uint64 // epoch
	plan           proto.Hash
	reports        map[proto.ID]memberReport // the last one of each
}

func (c *clock) note(n proto.Note) {
	switch {
	case n.Kind == proto.NotePhase && c.began.IsZero() && n.To == "granting":
		c.began = time.Now()
		c.first = n.Epoch.Number
	case n.Kind == proto.NotePhase && n.To == "switching":
		c.decided = time.Now()
	}
}

// reported takes what a member tells.
func (c *Controller) reported(from *hawser.Peer, data []byte) {
	var r memberReport
	if json.Unmarshal(data, &r) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := &c.clock
	if r.Epoch < k.first || k.began.IsZero() {
		return // of an operation before
	}
	if k.reports == nil {
		k.reports = map[proto.ID]memberReport{}
	}
	old := k.reports[from.ID()]
	if old.Epoch != r.Epoch {
		r.Bytes, r.Writes = r.Bytes+old.Bytes, r.Writes+old.Writes
	}
	r.Phases.raise(old.Phases)
	r.Staging = max(r.Staging, old.Staging)
	k.reports[from.ID()] = r
}

// report makes the report of an operation that has ended just now.
func (c *Controller) report(o *proto.Outcome) *Report {
	r := &Report{Version: o.Version, Epoch: o.Epoch.Number, Repairs: o.Repairs, Serving: o.Serving}
	for _, x := range o.Out {
		r.Out = append(r.Out, InstanceOut{x.Instance, x.Member.String(), fmt.Sprintf("%v: %s", x.Code, x.Text)})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.clock.plan != (proto.Hash{}) {
		r.Plan = hex.EncodeToString(c.clock.plan[:])
	}
	if k := &c.clock; !k.began.IsZero() {
		r.Wall = time.Since(k.began)
		if !k.decided.IsZero() {
			r.Phases.Commit = time.Since(k.decided)
		}
		for _, x := range k.reports {
			r.Bytes, r.Writes, r.Staging = r.Bytes+int64(x.Bytes), r.Writes+x.Writes, max(r.Staging, x.Staging)
			r.Phases.raise(x.Phases)
		}
	}
	return r
}

func (p *Publisher) report(x *push) *Report {
	return &Report{
		Version: x.version, Epoch: x.epoch.Number, Wall: time.Since(x.began), Bytes: int64(x.sum.Bytes), Writes: x.sum.Writes, Phases: x.sum.Phases,
		Repairs: max(x.epochs-1, 0), Staging: x.sum.Staging,
	}
}

// note logs what a machine tells.
func (s *station) note(n proto.Note) {
	s.log.Debug("note", "kind", n.Kind, "peer", n.Peer, "epoch", n.Epoch, "version", n.Version, "from", n.From, "to", n.To, "code", n.Code, "text", n.Text)
}
