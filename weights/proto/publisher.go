package proto

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
)

// Publisher is a training rank. Owned by its caller, who serializes all calls. See also the events of all members: Message, PeerDown,
// Controller, Blob, Tick, Next, Adopted, Granted, Fenced, Unfenced, Staged, Wrote.
type Publisher struct {
	member
	mine    PublisherOut
	offered Version // Push was called for it; 0: no Push
	ended   bool    // Push has ended, the part has not
}

// NewPublisher makes a machine.
func NewPublisher(cfg MemberConfig, out PublisherOut) (*Publisher, error) {
	cfg.Member.Role = RolePublisher
	if err := cfg.check(); err != nil {
		return nil, err
	}
	p := &Publisher{mine: out}
	p.member = newMember(cfg, out, p)
	return p, nil
}

func (cfg *MemberConfig) check() error {
	m := &cfg.Member
	if m.ID == (ID{}) || cfg.Group < 1 || m.Rank < 0 || m.Instance < 0 || m.Shard < 0 || max(m.Rank, m.Instance, m.Shard, cfg.Group) >= maxRank {
		return fmt.Errorf("weights: %w: %v with id %v, instance %d, shard %d, one of %d", hawser.ErrInvalid, m, m.ID, m.Instance, m.Shard, cfg.Group)
	}
	if len(m.Addr) > maxAddr {
		return fmt.Errorf("weights: %w: address of %d bytes, want at most %d", hawser.ErrInvalid, len(m.Addr), maxAddr)
	}
	return nil
}

// Push says that this rank has version v, or will have it stage by stage. PublisherOut.Ended ends it.
func (p *Publisher) Push(now Time, v Version) error {
	p.enter(now)
	switch {
	case v == 0:
		return fmt.Errorf("weights: push of version 0: %w", ErrVersion)
	case p.offered != 0:
		return fmt.Errorf("weights: push of v%d while v%d is under way: %w", v, p.offered, hawser.ErrBusy)
	case p.part != nil:
		return fmt.Errorf("weights: push of v%d: how %v ended is not known: %w", v, p.part.Key, hawser.ErrBusy)
	}
	p.offered, p.ended = v, false
	p.reportAll()
	return nil
}

// Leave gives a Push up. It ends when nothing of it is under way; in an epoch, with ErrInDoubt: the others may repair and commit it.
func (p *Publisher) Leave(now Time) {
	p.enter(now)
	if p.offered == 0 || p.ended {
		return
	}
	if p.part == nil {
		p.end(Key{}, fmt.Errorf("push v%d: left before it began: %w", p.offered, ErrAborted))
		p.reportAll()
		return
	}
	p.part.left = true
	switch p.part.phase {
	case phEnding, phSwitch:
		return
	case phHalted:
		p.sayQuiet(QuietLeft)
	default:
		p.enterPhase(phHalting)
		if p.stopWriting() {
			return
		}
		p.sayQuiet(QuietLeft)
	}
	p.gaveUp()
}

// gaveUp ends the Push of somebody who has left, once it is quiet.
func (p *Publisher) gaveUp() {
	if q := p.part; q != nil && q.left && !p.ended && (!q.started || q.wrote) {
		p.ended = true
		p.mine.Ended(q.Version, q.Key, &EpochError{Version: q.Version, Epoch: q.Key, Code: CodeCancelled, Err: ErrInDoubt})
		p.reportAll() // the controller, for which this rank is lost, tells it the decision because of this
	}
}

// Wrote answers Start. See member.Wrote.
func (p *Publisher) Wrote(now Time, k Key, missed, unquiet []int, err error) {
	p.member.Wrote(now, k, missed, unquiet, err)
	p.gaveUp()
}

// end ends the Push.
func (p *Publisher) end(k Key, err error) {
	v := p.offered
	p.offered = 0
	if !p.ended && v != 0 {
		p.ended = true
		p.mine.Ended(v, k, err)
	}
}

// State is the publisher's state.
func (p *Publisher) State() State {
	switch q := p.part; {
	case q == nil && p.offered == 0:
		return StateIdle
	case q == nil:
		return StateOffered
	case q.doubt:
		return StateInDoubt
	default:
		return q.state()
	}
}

// state is what a phase is called outside.
func (p *part) state() State {
	switch p.phase {
	case phWriting:
		return StateWriting
	case phVoted:
		return StatePrepared
	case phHalting, phHalted, phFailed, phEnding:
		return StateHalted
	case phSwitch:
		return StateSwitching
	case phReady:
		if !p.source() {
			return StateDirty
		}
	}
	return StateBegun
}

func (p *Publisher) join(j *Join) {
	j.State = p.State()
	if p.part == nil {
		j.Pending = p.offered
	}
}

func (p *Publisher) refuses(v Version) (Code, string) {
	switch {
	case p.offered == 0 || p.ended:
		return CodeCancelled, "no push"
	case p.offered != v: // it is of a push that was given up; its end must not be that of the next one
		return CodeCancelled, fmt.Sprintf("push is of v%d, the epoch of v%d", p.offered, v)
	case len(p.fences) > 0:
		return CodeUnfenced, "a partner may still write into the inbox"
	}
	return 0, ""
}

func (p *Publisher) begun(*part) { p.grant(nil) }

func (p *Publisher) order(b Body) {
	switch x := b.(type) {
	case *Start:
		p.start(x)
	case *Drop:
		p.drop(x)
	}
}

// drop leaves receivers out that are not part of the epoch any more.
func (m *member) drop(x *Drop) {
	if p := m.part; p.started && !p.wrote {
		m.mine.Drop(p.Key, x.Members)
	}
}

func (p *Publisher) out(*OutOf)    {}
func (p *Publisher) peer(ID, Body) {}
func (p *Publisher) wanted(v Version, mode Mode) {
	if mode == ModePush && p.offered != v {
		p.mine.Wanted(v)
	}
}

func (p *Publisher) gone(ID)              {}
func (p *Publisher) late()                {}
func (p *Publisher) stray(ID, Head, Body) {}
func (p *Publisher) again(d *Decision, to ID) {
	p.say(to, Head{Term: p.term}, &Done{Of: d.Of, OK: true})
}

// abandon ends a part that has no vote: without it nothing can commit that it is part of.
func (p *Publisher) abandon() {
	p.decided(&Decided{Decision: Decision{Of: p.part.Key, Version: p.part.Version}, Code: CodeStale})
}

func (p *Publisher) decided(d *Decided) {
	q := p.part
	if q.phase == phEnding {
		return
	}
	q.commit = d.Decision.Commit
	q.why = &EpochError{Version: q.Version, Epoch: q.Key, Code: d.Code, Text: d.Text, Err: ErrAborted}
	p.enterPhase(phEnding)
	if q.commit {
		p.finish()
		return
	}
	p.stopWriting()
	p.fenceWriters(func(id ID) bool { return slices.Contains(d.Quiet, id) }, true)
	p.mayBeSettled()
}

// settled goes on when its inbox is safe, or cannot be made so.
func (p *Publisher) settled() {
	q := p.part
	if q == nil || q.started && !q.wrote {
		return
	}
	switch q.phase {
	case phHalting:
		if q.round > 0 {
			p.sayHalted(nil)
		}
	case phEnding:
		if q.stuck = p.stuck(); len(q.stuck) == 0 {
			p.finish()
		}
	}
}

// finish ends the part.
func (p *Publisher) finish() {
	q := p.part
	p.say(p.term.ID, Head{Term: p.term}, &Done{Of: q.Key, OK: true})
	if q.commit {
		p.end(q.Key, nil)
	} else {
		p.end(q.Key, q.why)
	}
	p.over()
}
