package proto

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
)

// DefaultFlipAfter is how long a leader waits for its ranks to flip.
const DefaultFlipAfter = 10 * time.Second

// ReceiverConfig is what NewReceiver needs.
type ReceiverConfig struct {
	MemberConfig
	FlipAfter time.Duration // DefaultFlipAfter when 0
	Poisons   bool          // Grant fills memory: there is no clean abort
}

// Receiver is an inference rank. Owned by its caller, who serializes all calls. See also the events of all members: Message, PeerDown,
// Controller, Blob, Tick, Next, Adopted, Granted, Fenced, Unfenced, Staged, Wrote.
type Receiver struct {
	member
	cfg  ReceiverConfig
	mine ReceiverOut

	// The copy that is served. In place it is the only one, and is failed from the first write on.
	active  State // empty, committed, failed or suspended
	version Version
	root    Hash
	by      Key     // the epoch that committed it
	held    Version // an older one that is kept; 0: none
	heldBy  Hash    // its root
	// stopped: the leader called Pause and not Resume.
	stopped    bool
	suspending bool
	slept      State // active before Suspend
	doneOf     Done  // the last one that was said
}

// receiving is a receiver's share of a part.
type receiving struct {
	pausing  bool // Pause is not answered
	stopped  bool // the whole instance is
	verified []uint64
	told     []told // what was given to Sums
	root     Hash   // of what is prepared
	dirtied  bool   // it may have been written, in this part or in one that it continues
	clean    bool   // abort: nothing was written
	resumed  bool   // and the engine runs again
	whyCode  Code   // abort

	flipping bool // Flip was called
	flip     bool // and is answered
	flipped  []ID // leader: ranks that have flipped
	flipBy   Time // leader: when all must have; 0: it does not wait
	resuming bool
}

// told is the stages of one writer that were given to Sums.
type told struct {
	from   int
	stages []uint64
}

// NewReceiver makes a machine. It is empty until a first epoch, or Serving, gives it a version.
func NewReceiver(cfg ReceiverConfig, out ReceiverOut) (*Receiver, error) {
	cfg.Member.Role = RoleReceiver
	cfg.FlipAfter = cmp.Or(cfg.FlipAfter, DefaultFlipAfter)
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &Receiver{cfg: cfg, mine: out, active: StateEmpty}
	r.member = newMember(cfg.MemberConfig, out, r)
	return r, nil
}

// Serving says that the rank has version v without an epoch: its engine was started with it. Before Controller.
func (r *Receiver) Serving(v Version, root Hash) {
	r.active, r.version, r.root = StateCommitted, v, root
}

// Kept says that the rank keeps a copy of version v that it could take back; 0: none any more.
func (r *Receiver) Kept(now Time, v Version, root Hash) {
	r.enter(now)
	r.held, r.heldBy = v, root
	r.reportAll()
}

// ReceiverStatus is a snapshot.
type ReceiverStatus struct {
	State   State
	Active  State // of the copy that is served
	Version Version
	Root    Hash
	Held    Version
	Epoch   Key // the part it has now, or had last
	Phase   string
	Stuck   []ID // may still write
}

// Status returns a snapshot.
func (r *Receiver) Status() ReceiverStatus {
	s := ReceiverStatus{State: r.State(), Active: r.active, Version: r.version, Root: r.root, Held: r.held, Epoch: r.last, Stuck: r.stuck()}
	if r.part != nil {
		s.Epoch, s.Phase = r.part.Key, r.part.phase.String()
	}
	return s
}

// State is the receiver's state.
func (r *Receiver) State() State {
	switch p := r.part; {
	case p == nil:
		return r.active
	case p.doubt:
		return StateInDoubt
	default:
		return p.state()
	}
}

// Suspend takes all rights to write away. ReceiverOut.Suspended ends it. ErrBusy: it is part of an epoch.
func (r *Receiver) Suspend(now Time) error {
	r.enter(now)
	if r.part != nil || len(r.fences) > 0 {
		return fmt.Errorf("weights: suspend of rank %d, which is %v: %w", r.cfg.Member.Rank, r.State(), hawser.ErrBusy)
	}
	if r.active == StateSuspended {
		return nil
	}
	r.slept, r.active, r.suspending = r.active, StateSuspended, true
	r.reportAll()
	for _, id := range slices.Clone(r.holders) {
		r.fence(id, false)
	}
	r.mayBeSettled()
	return nil
}

// Awake ends a suspension: memory is mapped and registered again, its content has this root.
func (r *Receiver) Awake(now Time, root Hash) error {
	r.enter(now)
	if r.active != StateSuspended || r.suspending {
		return fmt.Errorf("weights: resume of rank %d, which is %v: %w", r.cfg.Member.Rank, r.State(), hawser.ErrBusy)
	}
	r.active = r.slept
	if r.active == StateCommitted && root != r.root {
		r.active, r.version = StateEmpty, 0
	}
	r.serial++
	r.reportAll()
	return nil
}

// Rooted says what the content root of version v is, which was not known when it was prepared, or is known already. Nobody compares it with that of another
// receiver: if others hold the same, Ready says it.
func (r *Receiver) Rooted(now Time, v Version, root Hash) {
	r.enter(now)
	if p := r.part; p != nil && p.phase == phSwitch && p.Version == v && p.root == (Hash{}) {
		p.root = root
		return
	}
	if r.version == v && r.root == (Hash{}) && (r.active == StateCommitted || r.active == StateSuspended && r.slept == StateCommitted) {
		r.root = root
		r.reportAll()
	}
}

func (r *Receiver) join(j *Join) {
	j.State, j.Version, j.Root, j.Held = r.State(), r.version, r.root, r.held
	if len(j.Stuck) == 0 {
		j.Stuck = r.stuck()
	}
}

func (r *Receiver) refuses(Version) (Code, string) {
	switch {
	case r.active == StateSuspended:
		return CodeSuspended, "suspended"
	case len(r.fences) > 0:
		return CodeUnfenced, fmt.Sprintf("%v may still write", r.fences[0].id)
	}
	return 0, ""
}

// begun begins a part.
func (r *Receiver) begun(old *part) {
	p := r.part
	if old != nil && old.Mode == p.Mode {
		p.stopped, p.pausing, p.dirtied = old.stopped, old.pausing, old.dirtied
	}
	switch {
	case p.source():
		r.grant(nil) // it has no writers, and goes on serving what it lends
	case r.cfg.Member.Shadow:
		r.prepare()
	case p.pausing:
		r.enterPhase(phStop)
	case p.stopped:
		if r.cfg.Member.Leader {
			r.sayStopped()
		}
		r.prepare()
	default:
		r.enterPhase(phStop)
		if r.cfg.Member.Leader {
			p.pausing, r.stopped = true, true
			r.mine.Pause(p.Version)
		} else if broken(mutStopped) {
			r.prepare()
		}
	}
}

// prepare makes the copy that is written free for it.
func (r *Receiver) prepare() {
	p := r.part
	p.dirtied = true
	if p.Mode == ModeBack {
		r.enterPhase(phReady)
		r.sayBack(&GrantOf{})
		r.mine.Restore(p.Key, p.Version)
		return
	}
	r.grant(p.verified)
}

// Paused answers Pause.
func (r *Receiver) Paused(now Time, err error) {
	r.enter(now)
	p := r.part
	if p == nil || !p.pausing {
		r.unexpected("paused")
		return
	}
	p.pausing = false
	switch {
	case p.phase == phSwitch && err != nil:
		r.switchFails(CodePause, err.Error())
	case p.phase == phSwitch:
		r.flipAll()
	case p.phase == phEnding || p.phase == phHalting:
		p.stopped = err == nil
		r.mayBeSettled()
	case p.phase != phStop:
		p.stopped = err == nil
	case err != nil:
		r.fail(CodePause, 0, err)
	default:
		p.stopped = true
		r.sayStopped()
		r.prepare()
	}
}

// mates are the other ranks of the instance.
func (r *Receiver) mates() (ids []ID) {
	for i := range r.part.Members {
		if m := &r.part.Members[i]; m.Role == RoleReceiver && m.Instance == r.cfg.Member.Instance && m.ID != r.id {
			ids = append(ids, m.ID)
		}
	}
	return ids
}

// sayToMates says something about the part to the other ranks of the instance.
func (r *Receiver) sayToMates(b Body) {
	p := r.part
	for _, id := range r.mates() {
		r.say(id, Head{Term: p.Key.Term, Epoch: p.Key.Number, Version: p.Version}, b)
	}
}

func (r *Receiver) sayStopped() { r.sayToMates(&Stopped{}) }

// leader is the one of the instance.
func (p *part) leader() ID {
	me := &p.Members[p.Me]
	for i := range p.Members {
		if m := &p.Members[i]; m.Role == RoleReceiver && m.Instance == me.Instance && m.Leader {
			return m.ID
		}
	}
	return ID{}
}

func (r *Receiver) peer(from ID, b Body) {
	p := r.part
	switch x := b.(type) {
	case *Stopped:
		if from == p.leader() && !p.stopped {
			p.stopped = true
			if p.phase == phStop {
				r.prepare()
			}
		}
	case *Flip:
		if from == p.leader() && x.Decision.Of == p.Key {
			r.learn(x.Decision)
			if p.phase == phVoted {
				r.decided(&Decided{Decision: x.Decision})
			}
			r.flip()
		}
	case *Flipped:
		r.mateFlipped(from, x)
	}
}

func (r *Receiver) order(b Body) {
	switch x := b.(type) {
	case *Start:
		if r.part.source() {
			r.start(x)
		}
	case *Drop:
		r.drop(x)
	case *Stage:
		r.stage(x)
	}
}

// stage hands sums on, each once.
func (r *Receiver) stage(x *Stage) {
	p := r.part
	if p.phase != phReady || p.source() {
		return
	}
	var sums []StageSum
	for _, s := range x.Sums {
		if s.To == p.Me && r.fresh(s) {
			sums = append(sums, s)
		}
	}
	if len(sums) > 0 {
		r.mine.Sums(p.Key, sums)
	}
}

// fresh reports whether a sum is of a writer that has not said it yet, and notes it.
func (r *Receiver) fresh(s StageSum) bool {
	p := r.part
	i := slices.IndexFunc(p.told, func(t told) bool { return t.from == s.From })
	if i < 0 {
		if !slices.Contains(p.Writers, s.From) {
			return false
		}
		i = len(p.told)
		p.told = append(p.told, told{from: s.From})
	}
	if hasBit(p.told[i].stages, s.Stage) {
		return false
	}
	setBit(&p.told[i].stages, s.Stage)
	return true
}

func hasBit(b []uint64, i int) bool { return i/64 < len(b) && b[i/64]>>(i%64)&1 != 0 }

func setBit(b *[]uint64, i int) {
	for len(*b) <= i/64 {
		*b = append(*b, 0)
	}
	(*b)[i/64] |= 1 << (i % 64)
}

// Verified says that a stage is here: counts, digests and PostLoad are done.
func (r *Receiver) Verified(now Time, k Key, stage int) {
	r.enter(now)
	p := r.part
	if p == nil || p.Key != k || stage < 0 || stage >= MaxStages || p.phase != phReady {
		return // the part has been halted, or is over
	}
	p.verified = slices.Clone(p.verified) // it is in messages
	setBit(&p.verified, stage)
}

// Ready says that everything is here, with this content root, or answers Restore. err: it is not, and will not be: CodeDigest unless
// it wraps an *EpochError, whose code is told.
func (r *Receiver) Ready(now Time, k Key, root Hash, err error) {
	r.enter(now)
	p := r.part
	if p == nil || p.Key != k || p.phase != phReady || p.source() {
		return
	}
	if err != nil {
		code := CodeDigest
		var e *EpochError
		if errors.As(err, &e) {
			code = e.Code
		} else if p.Mode == ModeBack {
			code = CodeRestore
		}
		r.fail(code, 0, err)
		return
	}
	p.root, p.voted = root, true
	r.enterPhase(phVoted)
	r.sayBack(&Prepared{root})
}

// settled goes on when nobody can write any more, or cannot be kept from it.
func (r *Receiver) settled() {
	if r.suspending {
		if len(r.fences) == 0 {
			r.suspending = false
			r.mine.Suspended()
		}
		return
	}
	p := r.part
	if p == nil || p.started && !p.wrote {
		return
	}
	switch {
	case p.phase == phHalting && p.round > 0:
		r.sayHalted(p.verified)
	case p.phase == phEnding && !p.pausing && !p.resuming:
		r.mayFinish()
	}
}

// abandon ends a part that has no vote.
func (r *Receiver) abandon() { r.end(false, nil, CodeStale, "a controller with a higher term") }

func (r *Receiver) decided(d *Decided) {
	p := r.part
	switch {
	case p.phase == phSwitch || p.phase == phEnding:
	case p.source() || !d.Decision.Commits(r.cfg.Member.Instance):
		r.end(d.Clean && !d.Decision.Commit, d.Quiet, d.Code, d.Text)
	case p.phase != phVoted:
		r.end(false, nil, CodeFlip, "commit of what is not prepared here")
	default:
		p.commit = true
		r.enterPhase(phSwitch)
		if p.granted { // everybody who wrote is quiet, else it would not have been committed
			r.mine.Put(p.Key)
			p.granted = false
		}
		if r.cfg.Member.Leader {
			r.switchInstance()
		}
	}
}
