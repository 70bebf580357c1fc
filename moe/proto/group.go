package proto

import (
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// ErrInactive: a change of view was tried and did not come to its end; it needs a higher epoch.
var ErrInactive = errors.New("group is inactive")

// Member is a rank of a view.
type Member struct {
	Rank int
	ID   ID
}

// View is who takes part. Members are in the order of their ranks.
type View struct {
	Epoch   uint32
	Members []Member
}

// GroupOut does what a group wants. It must not call the group or its lanes.
type GroupOut interface {
	// Send sends a message to an engine. Answer, if it may not have arrived: Unsent.
	Send(to Member, epoch uint32, round int, message []byte)
	// Fence proves that nothing an engine began can land. All its descriptors are stale then. Answer: Fenced.
	Fence(m Member)
	// Recycle makes the memory of the lanes new again, closes the immediates of the last view and opens those of the next. fresh: the
	// regions may yet be written by who is not fenced, so others take their place. Answer: Recycled.
	Recycle(epoch uint32, fresh bool)
	// Descriptors are those of the lanes' regions for a member, at most MaxDescriptors bytes.
	Descriptors(m Member) []byte
	// Import resolves a member's descriptors; empty: those from before are good. Answer: Imported.
	Import(m Member, descriptors []byte)
	// Active: steps may begin, unless it fails: then Inactive follows. Inactive: they may not, and the epoch is used up.
	Active(a Activated) error
	Inactive(err error)
}

// Activated is how a view began.
type Activated struct {
	Epoch uint32
	Next  [MaxLanes]uint64        // step that begins next, by lane
	Ranks []([MaxLanes]LaneState) // how far each member was, by rank
}

// stage of a change of view.
type stage uint8

const (
	inactive stage = iota
	stopping       // until nothing of the own is under way
	round1         // until all have said the same
	fencing
	recycling
	round2
	active
)

// seat is what a group knows about a rank.
type seat struct {
	member  bool // of the view that is being tried
	id      ID
	said    [2]Ready // latest of each round
	heard   [2]bool  // said is of this epoch, or of a later one
	fence   bool     // a proof is awaited
	imports bool     // Imported is awaited
	done    bool     // imported
	unsent  [2]bool

	given bool // descriptors in round 2
	// These outlast epochs.
	listed    bool   // a write to it may yet land, and it is not known to have fenced this engine
	suspected bool   // it has said so, of a write to here
	has       uint32 // view in which its descriptors were imported
	gave      uint32 // view in which it got descriptors, if it did: it says so
	holds     bool   // it may have descriptors of the regions here
	holder    ID     // and is this engine
}

// Group changes views. It owns its lanes: their events go to them, and Progress after each while a change is under way.
type Group struct {
	cfg   *Layout
	out   GroupOut
	id    ID
	lanes []*Lane

	stage   stage
	epoch   uint32 // tried last
	opened  uint32 // whose immediates are open
	seats   []seat
	fresh   bool
	parked  bool // regions of old wait for who may yet write them
	states  [MaxLanes]LaneState
	next    [MaxLanes]uint64
	message []byte
}

// NewGroup makes a group that has no view.
func NewGroup(cfg *Layout, id ID, lanes []*Lane, out GroupOut) *Group {
	return &Group{cfg: cfg, out: out, id: id, lanes: lanes, seats: make([]seat, cfg.MaxRanks)}
}

// Active says whether steps may begin.
func (g *Group) Active() bool { return g.stage == active }

// Epoch is that of the view that was tried last.
func (g *Group) Epoch() uint32 { return g.epoch }

// Unparked: the regions that were set aside are freed.
func (g *Group) Unparked() { g.parked = false }

// Activate begins a change of view. It fails, and nothing happens, while a step is in progress, and for an epoch that is not new.
func (g *Group) Activate(v View) error {
	if err := g.check(v); err != nil {
		return fmt.Errorf("activate view %d: %w", v.Epoch, err)
	}
	g.epoch, g.stage, g.fresh = v.Epoch, stopping, false
	for i := range g.seats {
		s := &g.seats[i]
		s.member, s.fence, s.imports, s.done, s.unsent = false, false, false, false, [2]bool{}
		for r := range s.said {
			s.heard[r] = s.heard[r] && s.said[r].View >= v.Epoch
		}
	}
	for _, m := range v.Members {
		s := &g.seats[m.Rank]
		if s.id != m.ID {
			s.listed, s.has = false, 0
		}
		s.member, s.id = true, m.ID
	}
	for _, l := range g.lanes {
		l.Stop(CodeView)
	}
	g.Progress()
	return nil
}

func (g *Group) check(v View) error {
	for _, l := range g.lanes {
		if l.phase != idle {
			return fmt.Errorf("%w: step %d is in progress", hawser.ErrBusy, l.step)
		}
	}
	if v.Epoch <= g.epoch {
		return fmt.Errorf("%w: view %d was tried already", hawser.ErrStale, g.epoch)
	}
	me, last := false, -1
	for _, m := range v.Members {
		if m.Rank <= last || m.Rank >= g.cfg.MaxRanks {
			return fmt.Errorf("%w: rank %d after rank %d, want ascending ranks below %d", hawser.ErrInvalid, m.Rank, last, g.cfg.MaxRanks)
		}
		last = m.Rank
		me = me || m.Rank == g.cfg.Rank && m.ID == g.id
	}
	if !me {
		return fmt.Errorf("%w: this engine is no member as rank %d", hawser.ErrInvalid, g.cfg.Rank)
	}
	return nil
}

// Abandon ends a change of view: its context ended, or a member died.
func (g *Group) Abandon(cause error) {
	if g.stage != inactive && g.stage != active {
		g.stop(cause)
	}
}

func (g *Group) stop(cause error) {
	g.stage = inactive
	g.out.Inactive(fmt.Errorf("activate view %d: %w: %w", g.epoch, ErrInactive, cause))
}

// Progress goes on as far as possible.
func (g *Group) Progress() {
	for before := stage(255); before != g.stage; {
		before = g.stage
		switch g.stage {
		case stopping:
			g.tryRound1()
		case round1:
			if g.all(0) || broken(mutRound1) {
				g.startFences()
			}
		case fencing:
			if !g.any(func(s *seat) bool { return s.fence }) {
				g.recycle()
			}
		case round2:
			g.tryActive()
		}
	}
}

func (g *Group) any(f func(*seat) bool) bool {
	for i := range g.seats {
		if f(&g.seats[i]) {
			return true
		}
	}
	return false
}

// Awaited are the ranks without which a change of view does not go on.
func (g *Group) Awaited() (ranks []int) {
	for i := range g.seats {
		s := &g.seats[i]
		waits := false
		switch g.stage {
		case round1:
			waits = g.others(i) && !g.heard(s, 0)
		case fencing:
			waits = s.fence
		case round2:
			waits = g.others(i) && !s.done
		case inactive, stopping, recycling, active: // it waits for itself, or for nobody
		}
		if waits {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

// all members have said what a round is for.
func (g *Group) all(round int) bool {
	return !g.any(func(s *seat) bool { return s.member && s.id != g.id && !g.heard(s, round) })
}

func (g *Group) heard(s *seat, round int) bool {
	return s.heard[round] && s.said[round].View == g.epoch && s.said[round].From == s.id
}

// tryRound1 says that this rank is quiet, once it is.
func (g *Group) tryRound1() {
	for i, l := range g.lanes {
		if !l.Quiet() && !broken(mutQuiet) {
			return
		}
		g.states[i] = LaneState{Begun: l.step, Completed: l.completed}
	}
	g.stage = round1
	for i := range g.seats {
		if !g.others(i) {
			continue
		}
		for _, l := range g.lanes {
			_, unfenced := l.Held(i)
			g.seats[i].listed = g.seats[i].listed || unfenced
		}
		g.send(i, 1)
	}
}

func (g *Group) others(rank int) bool { return g.seats[rank].member && rank != g.cfg.Rank }

// send says a round, or says it again.
func (g *Group) send(rank, round int) {
	s := &g.seats[rank]
	m := Member{rank, s.id}
	r := Ready{View: g.epoch, Round: round, Source: g.cfg.Rank, From: g.id, To: s.id, Config: g.cfg.Hash(), Lanes: g.states, Unfenced: s.listed, Has: s.has}
	if round == 2 && s.given {
		r.Descriptors = g.out.Descriptors(m)
	}
	g.message = r.Append(g.message[:0], g.cfg.Lanes)
	g.out.Send(m, g.epoch, round, g.message)
}

// Unsent: a message may not have arrived. It is sent again as long as its epoch is tried, when Again is called: once there is a session.
func (g *Group) Unsent(to Member, epoch uint32, round int) {
	if s := &g.seats[to.Rank]; (epoch == g.epoch || broken(mutUnsent)) && s.member && s.id == to.ID && !broken(mutResend) {
		s.unsent[round-1] = true
	}
}

// Again sends what was not sent to this rank.
func (g *Group) Again(rank int) {
	s := &g.seats[rank]
	for r := range s.unsent {
		if s.unsent[r] && g.stage >= round1 {
			s.unsent[r] = false
			g.send(rank, r+1)
		}
	}
}

// Waits says whether something is to be sent again to this rank.
func (g *Group) Waits(rank int) bool {
	s := &g.seats[rank]
	return g.stage >= round1 && (s.unsent[0] || s.unsent[1])
}

// PeerDown: the session with a rank has ended. The caller drops it if it has had another session with that engine since: while a view
// changes sessions end because of fences, on either side.
func (g *Group) PeerDown(rank int) {
	if g.stage == active {
		for _, l := range g.lanes {
			l.PeerDown(rank)
		}
	}
}

// Message takes what a member sent. Errors wrap ErrCorrupt: the message is dropped.
func (g *Group) Message(from ID, b []byte) error {
	r, err := g.cfg.ParseReady(b)
	if err != nil {
		return err
	}
	if r.From != from || r.To != g.id || r.Source == g.cfg.Rank {
		return fmt.Errorf("%w: ready of rank %d is from another engine, or for another", ErrCorrupt, r.Source)
	}
	if r.View < g.epoch || r.View == g.epoch && g.stage == inactive {
		return nil
	}
	s := &g.seats[r.Source]
	if r.View == g.epoch && (!s.member || s.id != from) {
		return fmt.Errorf("%w: ready of rank %d, which is no member of view %d under this identity", ErrCorrupt, r.Source, r.View)
	}
	if have := &s.said[r.Round-1]; s.heard[r.Round-1] && (have.View > r.View || have.View == r.View && have.From == from) {
		return nil
	}
	r.Descriptors = slices.Clone(r.Descriptors)
	s.said[r.Round-1], s.heard[r.Round-1] = r, true
	if r.Round == 2 && (!s.heard[0] || s.said[0].View != r.View || s.said[0].From != from) {
		s.said[0], s.heard[0] = r, true
	}
	s.suspected = s.suspected || r.Unfenced && s.holds && s.holder == from
	g.Progress()
	return nil
}
