package proto

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
)

// Defaults of a ControllerConfig.
const (
	DefaultJoinWindow = time.Second
	DefaultRepairs    = 3
)

// ControllerConfig is what NewController needs. ID and Log are required.
type ControllerConfig struct {
	ID      ID
	Log     ID       // of the decision log, random when it was made. Only one controller at a time may have it
	Records []Record // what the log holds
	MinTerm uint64   // the term is above it: from a registry; 0: none

	JoinWindow   time.Duration // after the last member has joined
	Expect       int           // so many members need not be waited for any longer; 0: not known
	MinInstances int           // fewer do not commit; 1 when 0
	Repairs      int           // of one update
	Copy         bool          // fill instances that have no version from others that serve one, whenever nothing else is to be done
	Limits       Limits
}

// Limits are how long a controller waits for members. Each has a default.
type Limits struct {
	Offer    time.Duration // Update: until the members that it needs are there, and publishers have called Push; 2 minutes
	Return   time.Duration // Update: for a publisher whose session has ended, from that time on: then it goes on without; 3 s
	Plan     time.Duration // until every member has its slice; 1 minute
	Pause    time.Duration // from BEGIN to the last GRANT; 30 s
	Push     time.Duration // from START to the last PUSHED; 2 minutes
	PostLoad time.Duration // from then to the last PREPARED; 1 minute
	Commit   time.Duration // from the decision to the last DONE; 20 s, more than members take to give a switch up
	Quiet    time.Duration // for sources to stop, and for fences; 10 s
	Copy     time.Duration // how long an Update waits for a copy before it ends it; 10 s
	Ask      time.Duration // Decide: for what members have seen; 2 s
}

func (l *Limits) fill() {
	for _, x := range []struct {
		at *time.Duration
		d  time.Duration
	}{
		{&l.Offer, 2 * time.Minute},
		{&l.Return, 3 * time.Second},
		{&l.Plan, time.Minute},
		{&l.Pause, 30 * time.Second},
		{&l.Push, 2 * time.Minute},
		{&l.PostLoad, time.Minute},
		{&l.Commit, 20 * time.Second},
		{&l.Quiet, 10 * time.Second},
		{&l.Copy, 10 * time.Second},
		{&l.Ask, 2 * time.Second},
	} {
		if *x.at == 0 {
			*x.at = x.d
		}
	}
}

// Controller runs epochs. Owned by its caller, who serializes all calls. Its events: Message, PeerDown, Blob, Tick, Planned, Logged; its
// orders: Update, Rollback, Decide, Cancel.
type Controller struct {
	speaker
	cfg ControllerConfig
	out ControllerOut

	term    Term
	ruling  bool // the term has begun
	window  Time // when it begins; 0: nobody has joined
	top     uint64
	deposed bool // members obey somebody else

	peers  []*peer // in the order in which they joined
	gone   []absent
	record uint64 // the last one's number
	known  []Record
	writes []write // records that are not durable yet
	broken error   // of the log

	epoch   *epoch
	op      *operation // under way or waiting
	ops     uint64
	version Version // the last one that was committed
	copyAt  Time    // when the next copy may be tried; 0: now
}

// peer is a member that has joined.
type peer struct {
	id   ID
	join *Join
	seq  uint64 // of join
	in   Key    // the last epoch that it was told to begin; a join that does not know it is old
	out  Key    // the last one that it has ended; a join that says that it is still part of it is old
}

// write is a record that is being made durable.
type write struct {
	seq  uint64
	tell []ID // who waits for the decision, beside the members of the running epoch
}

// NewController makes a machine.
func NewController(cfg ControllerConfig, out ControllerOut) (*Controller, error) {
	if cfg.ID == (ID{}) || cfg.Log == (ID{}) {
		return nil, fmt.Errorf("weights: %w: a controller needs the ids of its engine and of its log", hawser.ErrInvalid)
	}
	cfg.JoinWindow = cmp.Or(cfg.JoinWindow, DefaultJoinWindow)
	cfg.MinInstances = cmp.Or(cfg.MinInstances, 1)
	cfg.Repairs = cmp.Or(cfg.Repairs, DefaultRepairs)
	cfg.Limits.fill()
	c := &Controller{speaker: speaker{id: cfg.ID, out: out}, cfg: cfg, out: out, top: cfg.MinTerm}
	for _, r := range cfg.Records {
		c.known = append(c.known, r)
		c.record = max(c.record, r.Seq)
		c.sees(r.Term.Number)
		c.sees(r.Decision.Of.Number)
		c.sees(r.By.Number)
		if r.Decision.Commit {
			c.version = r.Decision.Version
		}
	}
	return c, nil
}

// sees notes a term or an epoch: those to come are above it.
func (c *Controller) sees(number uint64) {
	if !broken(mutTermReuse) {
		c.top = max(c.top, number)
	}
}

// rule begins a term.
func (c *Controller) rule() {
	c.top++
	c.term, c.ruling, c.deposed, c.window = Term{c.top, c.id}, true, false, 0
	c.out.Note(Note{Kind: NoteTerm, Peer: c.id, Text: c.term.String()})
	for _, p := range c.peers {
		c.say(p.id, Head{Term: c.term}, &Joined{})
		c.wantLayout(p)
	}
	c.recover()
}

// raise takes a term above one that a member has seen.
func (c *Controller) raise() {
	if e := c.epoch; e != nil && e.phase < epDeciding {
		c.dropEpoch()
	}
	c.said = letters{}
	c.rule()
	if e := c.epoch; e != nil && (e.phase == epSwitching || e.phase == epAborting) {
		c.sayDecision()
	}
}

// Message takes a message. data may be used again afterwards.
func (c *Controller) Message(now Time, from ID, data []byte) {
	c.now = max(c.now, now)
	h, b, err := Decode(data)
	if err != nil {
		c.out.Note(Note{Kind: NoteProtocol, Peer: from, Text: err.Error()})
		return
	}
	if h.Seq != 0 {
		c.tell(from, Head{Term: h.Term, Epoch: h.Epoch}, &Ack{h.Seq})
	}
	c.handle(from, h, b)
	c.advance()
}

func (c *Controller) handle(from ID, h Head, b Body) {
	switch x := b.(type) {
	case *Ack:
		c.acked(from, x.Seq)
	case *Join:
		c.join(from, h, x)
	case *Stale:
		c.stale(x)
	case *Want:
		if c.out.Has(x.Hash) {
			c.out.SendBlob(from, x.Hash)
		}
	case *Ask:
		c.asked(from, h, x)
	case *Told:
		c.told(from, x)
	case *Done:
		c.done(from, x)
	case *PlannedBy, *GrantOf, *Stage, *Quiet, *Prepared, *Failed, *Halted:
		e := c.epoch
		if e == nil || h.key() != e.key {
			c.out.Note(Note{Kind: NoteStale, Peer: from, Text: b.Kind().String()})
			return
		}
		if i := e.index(from); i >= 0 {
			c.hear(e, i, b)
		}
	default:
		c.out.Note(Note{Kind: NoteProtocol, Peer: from, Text: b.Kind().String() + " to a controller"})
	}
}

// stale: a member obeys somebody else.
func (c *Controller) stale(x *Stale) {
	if c.ruling && x.Highest.Compare(c.term) > 0 && !c.deposed {
		c.deposed = true
		c.sees(x.Highest.Number)
		c.out.Note(Note{Kind: NoteStale, Peer: x.Highest.ID, Text: "members obey " + x.Highest.String()})
		if o := c.op; o != nil {
			c.endOp(&EpochError{Version: o.version, Code: CodeStale, Text: "members obey " + x.Highest.String(), Err: hawser.ErrStale})
		}
		if e := c.epoch; e != nil && e.phase < epDeciding {
			c.dropEpoch()
		}
	}
}

// PeerDown says that a session has ended.
func (c *Controller) PeerDown(now Time, id ID) {
	c.now = max(c.now, now)
	c.miss(id)
	c.left(id)
}

// Left says that a member is closing: nobody expects it back. A PeerDown may follow.
func (c *Controller) Left(now Time, id ID) {
	c.now = max(c.now, now)
	c.left(id)
}

func (c *Controller) left(id ID) {
	c.forget(func(l *letter) bool { return l.to == id })
	c.peers = slices.DeleteFunc(c.peers, func(p *peer) bool { return p.id == id })
	c.out.Note(Note{Kind: NoteLost, Peer: id})
	if e := c.epoch; e != nil {
		if i := e.index(id); i >= 0 {
			c.lose(i, CodeLost, "its session ended")
		}
	}
	if c.ruling {
		c.strand()
	}
	c.advance()
}

// Blob says that a blob has come.
func (c *Controller) Blob(now Time, _ Hash) {
	c.now = max(c.now, now)
	c.advance()
}

// Next is when Tick is due, false when nothing waits for the time.
func (c *Controller) Next() (Time, bool) {
	at, ok := c.due()
	at, ok = earliest(at, ok, c.window)
	if c.op != nil {
		at, ok = earliest(at, ok, c.op.deadline, c.op.again)
	}
	if e := c.epoch; e != nil {
		at, ok = earliest(at, ok, e.deadline, e.sumsAt)
	} else if c.copyAt > c.now {
		at, ok = earliest(at, ok, c.copyAt)
	}
	return at, ok
}

// Tick does what is due. See Next.
func (c *Controller) Tick(now Time) {
	c.now = max(c.now, now)
	c.repeat()
	if c.window != 0 && c.window <= c.now && !c.ruling {
		c.rule()
	}
	if e := c.epoch; e != nil && e.sumsAt != 0 && e.sumsAt <= c.now {
		c.forward()
	}
	if o := c.op; o != nil && o.deadline != 0 && o.deadline <= c.now {
		c.opLate()
	}
	if e := c.epoch; e != nil && e.deadline != 0 && e.deadline <= c.now {
		e.deadline = 0
		c.late()
	}
	c.advance()
}

// advance does what an event made possible.
func (c *Controller) advance() {
	for c.step() {
	}
}

// step reports whether it did something.
func (c *Controller) step() bool {
	if !c.ruling {
		return false
	}
	if c.epoch == nil {
		return c.begin()
	}
	return c.epochStep()
}

// write makes a record durable. tell are those who wait for what it says.
func (c *Controller) write(r Record, tell ...ID) {
	c.record++
	r.Seq, r.Term = c.record, c.term
	c.known = append(c.known, r)
	c.writes = append(c.writes, write{c.record, tell})
	c.out.Log(r)
	if broken(mutLog) {
		c.durable(r.Seq)
	}
}

// Logged answers Log.
func (c *Controller) Logged(now Time, seq uint64, err error) {
	c.now = max(c.now, now)
	if err != nil {
		// Whether the record is there is not known, so nothing that depends on it may ever be said by this controller.
		c.broken = err
		if e := c.epoch; e != nil && e.log == seq {
			c.epoch = nil
		}
		c.endOp(&EpochError{Code: CodeLog, Text: err.Error(), Err: ErrLog})
		return
	}
	c.durable(seq)
	c.advance()
}

func (c *Controller) durable(seq uint64) {
	i := slices.IndexFunc(c.writes, func(w write) bool { return w.seq == seq })
	if i < 0 {
		return
	}
	w := c.writes[i]
	c.writes = slices.Delete(c.writes, i, i+1)
	r := c.recordOf(seq)
	for _, id := range w.tell {
		c.sayFact(id, r)
	}
	if e := c.epoch; e != nil && e.log == seq {
		e.log = 0
		c.logged()
	}
}

func (c *Controller) recordOf(seq uint64) *Record {
	for i := len(c.known) - 1; i >= 0; i-- {
		if c.known[i].Seq == seq {
			return &c.known[i]
		}
	}
	return nil
}

// decided is the record about an epoch, if it is durable.
func (c *Controller) decided(k Key) *Record {
	for i := len(c.known) - 1; i >= 0; i-- {
		r := &c.known[i]
		if r.Decision.Of == k && !slices.ContainsFunc(c.writes, func(w write) bool { return w.seq == r.Seq }) {
			return r
		}
	}
	return nil
}

// deciding reports whether a record about an epoch is being made durable.
func (c *Controller) deciding(k Key) bool {
	return slices.ContainsFunc(c.writes, func(w write) bool { return c.recordOf(w.seq).Decision.Of == k })
}

// sayFact tells a decision to somebody.
func (c *Controller) sayFact(id ID, r *Record) {
	c.say(id, Head{Term: c.term, Version: r.Decision.Version}, &Decided{Decision: r.Decision, Since: r.Decision.Of})
}
