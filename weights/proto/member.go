package proto

import (
	"fmt"
	"slices"
	"time"
)

// Defaults of members.
const DefaultDoubtAfter = 10 * time.Second

// MemberConfig is what both kinds of members need. Member and Group are required.
type MemberConfig struct {
	Member     Member
	Name       string // for people
	Group      int    // how many there are of its kind: publishers, or ranks of its instance
	DoubtAfter time.Duration
}

// member is what a Publisher and a Receiver have in common. Owned by the machine.
type member struct {
	speaker
	cfg  MemberConfig
	mine MemberOut
	role role

	term    Term // the highest that was seen
	links   []ID // controllers with a session, in the order in which they came
	part    *part
	last    Key        // the highest epoch that was heard of
	history []Decision // those that were learned, the newest last
	early   []kept     // messages of other members that came before the epoch, one of each kind
	fences  []fence    // that are not done
	holders []ID       // who may have descriptors of this member's memory
	serial  uint64     // of these descriptors
	adopts  Key        // the epoch that Adopt was called for
	wants   *wanted    // a slice that is to come
}

// role is what the two kinds do differently.
type role interface {
	join(j *Join)     // fills in the state
	begun(from *part) // a new part, which continues from, or nothing
	order(b Body)     // a message of the controller about the part
	out(x *OutOf)
	peer(from ID, b Body)             // one of another member, about the part
	gone(id ID)                       // a session has ended
	again(d *Decision, to ID)         // a decision came again after the part was over
	wanted(v Version, mode Mode)      // a plan of it has come
	stray(from ID, h Head, b Body)    // a message of another member, about a part that is over
	decided(d *Decided)               // about the part
	settled()                         // the fences of the part are done, or stuck
	late()                            // flipBy is over
	abandon()                         // a higher term, and the part has no vote
	refuses(v Version) (Code, string) // why it takes part in no epoch of v just now
}

type kept struct {
	from ID
	head Head
	body Body
}

type wanted struct {
	head Head
	plan *Plan
}

// fence is a right that is being taken away.
type fence struct {
	id    ID
	hard  bool
	stuck bool // the last try failed
	at    Time // when the next one begins; 0: one is under way
}

// phase is how far a member's part of an epoch is.
type phase uint8

const (
	phStop    phase = 1 + iota // in place: the instance is not stopped yet
	phGrant                    // Grant is not answered
	phReady                    // granted. Receivers: may be written. Sources: START has not come
	phWriting                  // sources
	phVoted                    // prepared, or everything is written
	phFailed                   // it has told why, and waits for the decision
	phHalting
	phHalted
	phSwitch // receivers: commit
	phEnding // abort: fencing
)

var phaseNames = [...]string{
	phStop: "stop", phGrant: "grant", phReady: "ready", phWriting: "writing", phVoted: "voted", phFailed: "failed", phHalting: "halting",
	phHalted: "halted", phSwitch: "switch", phEnding: "ending",
}

func (p phase) String() string { return phaseNames[p] }

// part is a member's part of an epoch.
type part struct {
	Epoch
	phase    phase
	voted    bool   // it has said that it is prepared, or has written everything
	granted  bool   // Grant was called
	granting bool   // and not answered
	quiet    []bool // of Writers: it is known to be quiet, or fenced
	stuck    []ID   // that could not be fenced so far

	started bool // sources: Start was called
	wrote   bool // and answered
	report  *Quiet
	sums    []StageSum // not told yet
	sumsAt  Time       // when they are; 0: there are none

	stopping bool  // and Stop
	left     bool  // publishers: its Push was given up
	commit   bool  // phEnding, phSwitch: the decision
	why      error // abort
	round    int   // of the last Halt

	doubtAt Time // when it begins to ask; 0: it does not wait
	since   Time // of the wait
	doubt   bool
	asked   int // of Members, the last one

	receiving // receivers
}

func newMember(cfg MemberConfig, out MemberOut, r role) member {
	if cfg.DoubtAfter == 0 {
		cfg.DoubtAfter = DefaultDoubtAfter
	}
	return member{speaker: speaker{id: cfg.Member.ID, out: out}, cfg: cfg, mine: out, role: r, serial: 1}
}

func (m *member) enter(now Time) { m.now = max(m.now, now) }

// Controller says that there is a session with a controller.
func (m *member) Controller(now Time, id ID) {
	m.enter(now)
	if !slices.Contains(m.links, id) {
		m.links = append(m.links, id)
	}
	m.report(id)
}

// PeerDown says that a session has ended.
func (m *member) PeerDown(now Time, id ID) {
	m.enter(now)
	m.links = slices.DeleteFunc(m.links, func(c ID) bool { return c == id })
	// What is about a part that is over the report after the next Controller says as well.
	m.forget(func(l *letter) bool { return l.to == id && (m.part == nil || l.about != m.part.Key.Number) })
	m.role.gone(id)
	if id == m.term.ID {
		m.reportAll()
	}
}

// report tells a controller how this member is.
func (m *member) report(to ID) {
	j := &Join{Member: m.cfg.Member, Name: m.cfg.Name, Group: m.cfg.Group, Epoch: m.last}
	if n := len(m.history); n > 0 {
		j.Last = m.history[n-1]
	}
	if p := m.part; p != nil {
		j.Epoch, j.Since, j.Log, j.Pending, j.Stuck = p.Key, p.Since, p.Log, p.Version, p.stuck
		if p.voted {
			j.Others = p.Members
		}
	}
	m.role.join(j)
	m.forget(func(l *letter) bool { return l.to == to && l.kind == KindJoin })
	m.say(to, Head{Term: m.term}, j)
}

// reportAll tells the state to the controller that is obeyed. Others would only learn that they are not; but when it is gone, one of them
// must take over.
func (m *member) reportAll() {
	for _, c := range m.links {
		if c == m.term.ID || !slices.Contains(m.links, m.term.ID) {
			m.report(c)
		}
	}
}

// sayBack says something about the part to the controller that runs it.
func (m *member) sayBack(b Body) {
	m.say(m.part.Key.Term.ID, Head{Term: m.part.Key.Term, Epoch: m.part.Key.Number, Version: m.part.Version}, b)
}

// Message takes a message. data may be used again afterwards.
func (m *member) Message(now Time, from ID, data []byte) {
	m.enter(now)
	h, b, err := Decode(data)
	if err != nil {
		m.out.Note(Note{Kind: NoteProtocol, Peer: from, Text: err.Error()})
		return
	}
	if m.handle(from, h, b) && h.Seq != 0 {
		m.tell(from, Head{Term: h.Term, Epoch: h.Epoch}, &Ack{h.Seq})
	}
}

// handle reports whether the message has done its work.
func (m *member) handle(from ID, h Head, b Body) bool {
	switch x := b.(type) {
	case *Ack:
		m.acked(from, x.Seq)
	case *Ask:
		m.answer(from, h, x)
	case *Told:
		m.told(from, x)
	case *Want: // whatever the term: a controller asks before its own begins, and what it gets is known by its hash
		if m.out.Has(x.Hash) {
			m.out.SendBlob(from, x.Hash)
		}
	case *Stopped, *Flip, *Flipped:
		return m.fellow(from, h, b)
	case *Joined, *Plan, *Begin, *Start, *Drop, *Stage, *Halt, *Decided, *OutOf:
		return m.ordered(from, h, b)
	default:
		m.out.Note(Note{Kind: NoteProtocol, Peer: from, Text: b.Kind().String() + " to a member"})
	}
	return true
}

// ordered takes a message of a controller.
func (m *member) ordered(from ID, h Head, b Body) bool {
	c := h.Term.Compare(m.term)
	if broken(mutTermID) && h.Term.Number == m.term.Number {
		c = 0
	}
	if c < 0 {
		m.out.Note(Note{Kind: NoteStale, Peer: from, Text: b.Kind().String()})
		m.tell(from, Head{Term: h.Term, Epoch: h.Epoch}, &Stale{m.term})
		return true
	}
	if c > 0 {
		m.raise(h.Term)
	}
	switch x := b.(type) {
	case *Joined:
		return true
	case *Plan:
		return m.plan(h, x)
	case *Begin:
		return m.begin(h, x)
	case *Decided:
		m.decision(x)
	case *OutOf:
		m.see(x.Of)
		if m.role.out(x); m.part == nil {
			m.reportAll()
		}
	case *Halt:
		m.halt(h, x)
	default:
		if p := m.part; p != nil && p.Key == h.key() {
			m.role.order(b)
		}
	}
	return true
}

// see notes that there is, or was, an epoch: a BEGIN of it that comes later begins nothing.
func (m *member) see(k Key) {
	if k.Compare(m.last) > 0 {
		m.last = k
	}
}

// raise obeys a higher term, and reports to its controller again.
func (m *member) raise(t Term) {
	m.forget(func(l *letter) bool { return l.to == m.term.ID && (m.part == nil || l.about != m.part.Key.Number) })
	m.term = t
	m.out.Note(Note{Kind: NoteTerm, Peer: t.ID})
	if p := m.part; p != nil && p.Key.Term != t && !p.voted && p.phase != phEnding {
		m.role.abandon()
	}
	// What happened since its controller was told how this member is, only the one before has heard.
	if slices.Contains(m.links, t.ID) {
		m.report(t.ID)
	}
}

// plan takes the member's part of a plan.
func (m *member) plan(h Head, x *Plan) bool {
	k := h.key()
	if k.Compare(m.last) <= 0 || k == m.adopts {
		return true
	}
	if x.Slice != (Hash{}) && !m.out.Has(x.Slice) {
		m.wants = &wanted{h, x}
		m.tell(h.Term.ID, h, &Want{x.Slice})
		return false // it comes again, until the slice is here
	}
	m.adopt(h, x)
	return true
}

func (m *member) adopt(h Head, x *Plan) {
	m.wants, m.adopts = nil, h.key()
	m.role.wanted(h.Version, x.Mode)
	m.mine.Adopt(m.adopts, x.Mode, h.Version, x.Plan, x.Slice)
}

// Blob says that a blob has come.
func (m *member) Blob(now Time, hash Hash) {
	m.enter(now)
	if w := m.wants; w != nil && w.plan.Slice == hash && w.head.Term == m.term {
		m.adopt(w.head, w.plan)
	}
}

// Adopted answers Adopt.
func (m *member) Adopted(now Time, k Key, err error) {
	m.enter(now)
	if k != m.adopts || k.Term != m.term {
		return
	}
	h := Head{Term: k.Term, Epoch: k.Number}
	if err != nil {
		m.say(k.Term.ID, h, &Failed{Code: CodePlan, Text: err.Error()})
		return
	}
	m.say(k.Term.ID, h, &PlannedBy{})
}

// begin takes part in an epoch, or refuses.
func (m *member) begin(h Head, x *Begin) bool {
	k := h.key()
	if k.Compare(m.last) <= 0 {
		return true
	}
	me := slices.IndexFunc(x.Members, func(o Member) bool { return o.ID == m.id })
	if me < 0 {
		m.out.Note(Note{Kind: NoteProtocol, Peer: h.Term.ID, Epoch: k, Text: "begin of an epoch without this member"})
		return true
	}
	old := m.part
	continues := old != nil && x.Since != (Key{}) && old.Key.Term == k.Term && old.Since.Compare(x.Since) >= 0
	code, text := m.role.refuses(h.Version)
	switch {
	case continues && old.phase == phHalting:
		return false // it comes again
	case continues && old.phase == phHalted && within(x.Kept, old.verified):
		code = 0
	case len(x.Kept) > 0 && (!continues || !within(x.Kept, old.verified)):
		code, text = CodePlan, "the plan counts on stages that are not here"
	case old != nil && !(broken(mutLease) && old.Mode == ModeCopy && old.source()):
		if code, text = CodeBusy, "in "+old.Key.String(); len(m.stuck()) > 0 {
			code, text = CodeUnfenced, fmt.Sprintf("%v may still write", m.stuck()[0])
		}
	}
	if code != 0 {
		m.last = k
		m.say(k.Term.ID, Head{Term: k.Term, Epoch: k.Number}, &Failed{Code: code, Text: text})
		return true
	}
	if x.Since == (Key{}) {
		x.Since = k
	}
	m.enterEpoch(h, x, me, old)
	return true
}

// within reports whether all bits of a are in b.
func within(a, b []uint64) bool {
	for i, w := range a {
		if i < len(b) {
			w &^= b[i]
		}
		if w != 0 {
			return false
		}
	}
	return true
}

func (m *member) enterEpoch(h Head, x *Begin, me int, old *part) {
	m.last = h.key()
	m.part = &part{
		Epoch: Epoch{
			Key: m.last, Since: x.Since, Log: x.Log, Version: h.Version, Mode: x.Mode, Plan: x.Plan, Slice: x.Slice, Members: x.Members,
			Me: me, Writers: x.Writers, Targets: x.Targets,
		},
		quiet: make([]bool, len(x.Writers)),
	}
	m.part.verified = x.Kept
	for i := range x.Members {
		if i != me {
			m.out.Meet(x.Members[i].ID, x.Members[i].Addr)
		}
	}
	if old != nil {
		m.leave(old)
	}
	m.role.begun(old)
	for _, e := range slices.Clone(m.early) {
		if m.part != nil && e.head.key() == m.part.Key {
			m.role.peer(e.from, e.body)
		}
	}
	m.early = slices.DeleteFunc(m.early, func(e kept) bool { return e.head.key().Compare(m.last) <= 0 })
}

// leave ends what a part has begun: nothing of it can be written any more.
func (m *member) leave(p *part) {
	if p.granted {
		m.mine.Put(p.Key)
		p.granted = false
	}
	if p.doubt {
		m.mine.Doubt(&p.Epoch, false)
	}
	m.forget(func(l *letter) bool { return l.about == p.Key.Number && l.kind != KindDone && l.kind != KindFlipped })
}

// over ends the part.
func (m *member) over() {
	p := m.part
	m.leave(p)
	m.part = nil
	m.out.Note(Note{Kind: NotePhase, Epoch: p.Key, Version: p.Version, From: p.phase.String()})
	m.reportAll()
}

// enterPhase changes the phase.
func (m *member) enterPhase(ph phase) {
	p := m.part
	if p.phase == ph {
		return
	}
	from := ""
	if p.phase != 0 {
		from = p.phase.String()
	}
	m.out.Note(Note{Kind: NotePhase, Epoch: p.Key, Version: p.Version, From: from, To: ph.String()})
	p.phase = ph
	p.doubtAt = 0
	if p.doubt && (ph == phSwitch || ph == phEnding) { // the decision is known
		p.doubt = false
		m.mine.Doubt(&p.Epoch, false)
	}
	if ph == phVoted || ph == phHalted || ph == phFailed {
		p.since = m.now
		p.doubtAt = m.now + m.cfg.DoubtAfter/2
	}
}

// grant asks for the grant of the part.
func (m *member) grant(kept []uint64) {
	p := m.part
	m.enterPhase(phGrant)
	if len(p.Writers) == 0 && p.source() {
		m.enterPhase(phReady)
		m.sayBack(&GrantOf{Holds: m.imported()})
		return
	}
	p.granted, p.granting = true, true
	for _, w := range p.Writers {
		if id := p.Members[w].ID; !slices.Contains(m.holders, id) {
			m.holders = append(m.holders, id)
		}
	}
	m.mine.Grant(&p.Epoch, m.serial, kept)
}

// imported are the descriptors that this member has already, of those whom it will write into.
func (m *member) imported() (holds []Import) {
	for _, t := range m.part.Targets {
		if serial := m.mine.Imported(m.part.Members[t].ID); serial != 0 {
			holds = append(holds, Import{t, serial})
		}
	}
	return holds
}

// Granted answers Grant. Descriptors are those of the serial that Grant was called with.
func (m *member) Granted(now Time, k Key, imms []uint32, descriptors [][]byte, err error) {
	m.enter(now)
	p := m.part
	if p == nil || p.Key != k || !p.granting {
		m.unexpected("granted")
		return
	}
	p.granting = false
	switch {
	case p.phase == phHalting || p.phase == phEnding:
		m.mayBeSettled()
	case p.phase != phGrant:
	case err != nil:
		m.fail(CodeGrant, 0, err)
	default:
		m.enterPhase(phReady)
		m.sayBack(&GrantOf{Grant{m.serial, imms, descriptors}, m.imported()})
	}
}

func (m *member) unexpected(event string) {
	m.out.Note(Note{Kind: NoteUnexpected, Epoch: m.last, To: event})
}

// fail tells that this member cannot go on in the epoch, and waits for what the controller makes of it.
func (m *member) fail(c Code, stage int, err error) {
	m.enterPhase(phFailed)
	m.sayBack(&Failed{Code: c, Stage: max(stage, 0), Text: err.Error()})
}

// fellow takes a message of another member of the epoch.
func (m *member) fellow(from ID, h Head, b Body) bool {
	k := h.key()
	if m.part != nil && (m.part.Key == k || broken(mutEpoch)) {
		m.role.peer(from, b)
		return true
	}
	if k.Compare(m.last) <= 0 {
		m.role.stray(from, h, b)
		return true
	}
	m.early = slices.DeleteFunc(m.early, func(e kept) bool { return e.body.Kind() == b.Kind() && e.head.key().Compare(k) <= 0 })
	if !slices.ContainsFunc(m.early, func(e kept) bool { return e.body.Kind() == b.Kind() }) {
		m.early = append(m.early, kept{from, h, b})
	}
	return true
}
