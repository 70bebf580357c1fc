package proto

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
)

// LinkID is P's number of a link: one epoch of one decoder.
type LinkID uint32

// JobID is P's number of a job. Numbers ascend and are not used again; 0 is none.
type JobID uint64

// PassID is the number of a forward pass, from 1. The base of its progress words is the number shifted by 16.
type PassID uint64

// Defaults of a PrefillerConfig, and constants of the prefill side.
const (
	DefaultJobs     = 256
	DefaultJoinWait = 10 * time.Second
	DefaultWrites   = 128
	DefaultBytes    = 4 << 20

	// SumLayers is how many layers one sum of a Digest covers. The last sum is the tail's.
	SumLayers = 8
	// MaxPasses bounds the passes that have begun and not ended: one that runs and four ahead.
	MaxPasses = 5
)

// Sums is how many sums a Digest has for a model of so many layers.
func Sums(layers int) int { return (layers+SumLayers-1)/SumLayers + 1 }

// ErrRoom: the engine has no room for an operation just now.
var ErrRoom = errors.New("no room")

// PrefillerConfig is what NewPrefiller needs. Instance, Topology and Pages are required.
type PrefillerConfig struct {
	Instance string
	Member   int              // of Topology.Members: this prefiller
	Topology *layout.Topology // of all members of P's instance; must not change
	Options  layout.Options
	Pages    int           // of the source pool: what credits are shares of
	Jobs     int           // live ones; DefaultJobs when 0
	JoinWait time.Duration // of a job that misses a half; DefaultJoinWait when 0
	Verify   bool          // send digests
	// SharedProgress: the word of the member's first rank speaks for all its ranks. See Progress.
	SharedProgress bool
	// Window of each peer: what may be posted and not completed, whichever comes first.
	Window struct {
		Writes int    // DefaultWrites when 0
		Bytes  uint64 // DefaultBytes when 0
	}
	Origin int64  // Unix ns of time 0, for Timing
	Host   uint64 // for Timing
}

// Posting is one operation: the writes of Batch, which are one WritePages. Its physical page indices come from
//
//	w.Batch.Fill(w.Src, w.Dst, srcIndex, dstIndex)
//
// It is the machine's: valid during the call, as is all that it refers to, except that the slices of Src and Dst do not change
// while the operation is outstanding.
type Posting struct {
	Link     LinkID
	Peer     Peer
	Seq      uint64
	Job      JobID
	Imm      uint32
	Batch    layout.Batch
	Src, Dst layout.Pages // of the batch's group
	TailSlot uint32       // of PostTail
}

// SourcePages is where a job's cache is on P. The machine keeps the slices, which must not change until Unpin.
type SourcePages struct {
	Pages  []layout.Pages // of each group
	Cached int            // tokens [0, Cached) are in them already, in all layers
}

// Verdict is the answer of the inference engine to Admit.
type Verdict uint8

// The verdicts.
const (
	AdmitReady   Verdict = 1 + iota // Source is set
	AdmitQueued                     // it waits for pages: Sourced follows
	AdmitUnknown                    // the engine must learn the prompt some other way: Expect follows, within JoinWait
	AdmitRefused                    // for good: Code and Text say why
)

// Admission is what Admit returns.
type Admission struct {
	Verdict Verdict
	Source  SourcePages
	Code    Code
	Text    string
}

// JobInfo is what the inference engine must know of a job. The slices are shared and must not be changed.
type JobInfo struct {
	Request  string
	Instance string // of the decoder
	Prompt   Prompt // of the Dispatch, or of Expect if that came first
	Expected bool   // Expect was called for it
	Spans    []Span // of each group, what the first attempt wants
	Tail     bool   // the first attempt wants a tail from this member
	Priority int8
	Deadline Time // of the first attempt
	Trace    [16]byte
}

// PrefillerOut is what the machine wants done. Its methods are called during events and must not call the machine.
type PrefillerOut interface {
	Send(to Peer, data []byte) // may be lost; data is the receiver's
	// Import makes the decoder's memory writable; answered by Imported(l). h is the receiver's. layout.DecodeTopology(h.Topology)
	// has been checked.
	Import(l LinkID, from Peer, h *Hello)
	Forget(l LinkID) // once per Import: the link has ended, Imported was called, and no write of it is outstanding

	// Post submits an operation whole, and returns the sum of its digests if Config.Verify is set. ErrRoom: not now; then the
	// machine tries again at Room, at a completion, and after a millisecond. Another error: nothing was submitted and
	// the attempt fails. nil: Completed(cookie) follows.
	Post(cookie uint64, w *Posting) (sum uint64, err error)
	// PostTail is Post for the job's tail, into TailSlot of the decoder's tail buffer: one write with the immediate.
	PostTail(cookie uint64, w *Posting) (sum uint64, err error)

	// Admit asks the inference engine to take a job. It is asked again after AdmitUnknown, when Expect has come.
	Admit(j JobID, info *JobInfo) Admission
	Start(j JobID) // the job may be computed: Admit said ready or queued
	// Stop ends the engine's part: compute no further. Exactly once for each job that was started or came of Expect.
	Stop(j JobID)
	// Unpin: nothing reads the source pages, and the tail, any more. Exactly once for each SourcePages that were taken without an
	// error, after Stop or Preempt; it may be called during both.
	Unpin(j JobID)
	Note(n ServeNote)
}

// ServeNote is something that an observer of a Prefiller may want to know.
type ServeNote struct {
	Kind     ServeNoteKind
	Link     LinkID
	Peer     Peer
	Job      JobID
	Request  string
	Seq      uint64
	From, To string // states
	Code     Code   // why it ended
	Text     string
}

// ServeNoteKind tells notes apart.
type ServeNoteKind uint8

// The kinds.
const (
	ServeAttempt    ServeNoteKind = 1 + iota // an attempt changed its state
	ServeJob                                 // a job changed its state
	ServeLinkUp                              // a link is up
	ServeLinkDown                            // a link has ended, or its Hello was refused
	ServeUnexpected                          // an event meant nothing in the state From: To is the event
	ServePost                                // the first writes of an attempt were posted
)

// ServeInfo is one live attempt, for people.
type ServeInfo struct {
	Link        LinkID
	Peer        Peer
	Job         JobID
	Request     string
	Seq         uint64
	State       string
	Posted      uint64 // writes
	Outstanding uint64
	Left        uint64
	Deadline    Time
}

// PrefillerStats is a snapshot; the fields from Accepted on only grow.
type PrefillerStats struct {
	Jobs        int // live ones
	Waiting     int // jobs that miss a half
	Attempts    int // live ones
	Tombs       int
	Links       int // that are up
	Outstanding int // writes

	Accepted, Rejected, Done  uint64 // attempts; Done posted everything, and all of it completed
	Cancelled, Failed, Silent uint64 // attempts by their end
	Writes, Bytes             uint64 // completed without error
	NoRoom                    uint64 // posts that the engine had no room for
	LateWords                 uint64 // progress words of passes that have ended
	BadWords                  uint64 // progress words that made no sense
	Protocol                  uint64 // messages that cost their sender the link
	Stale                     uint64 // messages of links that have ended
	Unexpected                uint64 // events that meant nothing in their state, see Unexpected
	AfterClose                uint64 // submits with the gate closed: always 0
}

// Prefiller is the prefill side of the protocol, for one member of an instance.
type Prefiller struct {
	cfg       PrefillerConfig
	out       PrefillerOut
	own       *layout.Geometry
	topology  []byte   // encoded
	lanes     []laneOf // of all ranks of the member, rank by rank
	firstLane []int    // by rank: its first lane
	tails     bool     // this member sends the tails

	now      Time
	draining bool
	closing  bool
	closed   Time // when Close was called

	peers    map[Peer]*servePeer
	links    []*serveLink // that are not forgotten, oldest first
	lastLink LinkID
	jobs     map[JobID]*job
	named    map[string]*job // by request, chained through job.next
	lastJob  JobID
	live     int                    // jobs
	begun    int                    // of them, those of which a pass has begun
	detached map[string]*detachment // by request
	paired   *Pairing               // the latest
	alarms   alarms
	dirty    []*serveLink // have work that was not there before this event

	passes   []*pass // that have begun and not ended, in order
	lastPass PassID
	words    []uint64 // last progress word of each rank

	posts     []post   // outstanding ones; the index is the cookie
	freePosts []uint32 // not in use
	freeFeeds []*feedState
	posting   Posting // of the call under way
	hungry    []*serveLink
	room      alarm // tries the hungry ones again

	credits    credits
	life       Time // mean time of a job, for RetryAfter
	stats      PrefillerStats
	unexpected [serveStates][serveEvents]uint64
	seen       seenByPrefiller
	unexpJob   [jobStates][jobEvents]uint64
	broken     error // the first broken invariant
}

// laneOf is one layer of one rank of this member.
type laneOf struct {
	rank  int // within the member
	model int // layer of the model
	group int
}

// NewPrefiller makes the machine. The errors are hawser.ErrInvalid.
func NewPrefiller(cfg PrefillerConfig, out PrefillerOut) (*Prefiller, error) {
	if cfg.Jobs == 0 {
		cfg.Jobs = DefaultJobs
	}
	if cfg.JoinWait == 0 {
		cfg.JoinWait = DefaultJoinWait
	}
	if cfg.Window.Writes == 0 {
		cfg.Window.Writes = DefaultWrites
	}
	if cfg.Window.Bytes == 0 {
		cfg.Window.Bytes = DefaultBytes
	}
	if err := cfg.check(); err != nil {
		return nil, fmt.Errorf("kv: prefiller: %w: %w", hawser.ErrInvalid, err)
	}
	p := &Prefiller{
		cfg: cfg, out: out, own: &cfg.Topology.Members[cfg.Member], topology: cfg.Topology.AppendBinary(nil), tails: cfg.Topology.TailWriter() == cfg.Member,
		peers: map[Peer]*servePeer{}, jobs: map[JobID]*job{}, named: map[string]*job{}, detached: map[string]*detachment{},
	}
	for r := range p.own.Ranks {
		k := &p.own.Ranks[r]
		p.firstLane = append(p.firstLane, len(p.lanes))
		for l := range k.Layers {
			p.lanes = append(p.lanes, laneOf{r, k.LayerFirst + l, p.own.GroupOf(k.LayerFirst + l)})
		}
	}
	p.words = make([]uint64, len(p.own.Ranks))
	p.credits.pages = uint64(cfg.Pages)
	p.room.kind = alarmRoom
	return p, nil
}

func (cfg *PrefillerConfig) check() error {
	if cfg.Topology == nil || len(cfg.Topology.Members) > MaxMembers {
		return fmt.Errorf("topology has no members, or more than %d", MaxMembers)
	}
	if err := cfg.Topology.Check(); err != nil {
		return err
	}
	switch {
	case cfg.Instance == "" || len(cfg.Instance) > maxName:
		return fmt.Errorf("instance name has %d bytes, want 1 .. %d", len(cfg.Instance), maxName)
	case cfg.Member < 0 || cfg.Member >= len(cfg.Topology.Members):
		return fmt.Errorf("member %d of %d", cfg.Member, len(cfg.Topology.Members))
	case cfg.Pages < 1 || cfg.Jobs < 1 || cfg.JoinWait < 0 || cfg.Window.Writes < 1 || cfg.Window.Bytes < 1:
		return errors.New("pages, jobs, wait and window must be positive")
	}
	if cfg.SharedProgress {
		ranks := cfg.Topology.Members[cfg.Member].Ranks
		for i := range ranks {
			if ranks[i].LayerFirst != ranks[0].LayerFirst || ranks[i].Layers != ranks[0].Layers {
				return fmt.Errorf("shared progress: rank %d has other layers than rank %d: use a word for each rank", ranks[i].Index, ranks[0].Index)
			}
		}
	}
	return nil
}

// enter begins an event.
func (p *Prefiller) enter(now Time) { p.now = max(p.now, now) }

// leave ends it: what became ready is posted, and links that a draining prefiller has no use for end.
func (p *Prefiller) leave() {
	for i := 0; i < len(p.dirty); i++ {
		p.dirty[i].dirty = false
		p.pump(p.dirty[i])
	}
	p.dirty = p.dirty[:0]
	if p.draining {
		for i := len(p.links) - 1; i >= 0; i-- {
			p.mayPart(p.links[i])
		}
	}
}

// Next is when Tick is due, if at all.
func (p *Prefiller) Next() (Time, bool) { return p.alarms.next() }

// Tick does what is due.
func (p *Prefiller) Tick(now Time) {
	p.enter(now)
	for a := p.alarms.due(p.now); a != nil; a = p.alarms.due(p.now) {
		switch a.kind {
		case alarmRoom:
			p.feed()
		case alarmAttempt:
			p.fail(a.serving, CodeLate, "its deadline is over")
		case alarmJob:
			p.jobTimeout(a.job)
		case alarmBeat:
			p.beat(a.link)
		case alarmBye:
			p.farewell(a.link)
		}
	}
	p.leave()
}

// Room says that the engine may have room again.
func (p *Prefiller) Room(now Time) {
	p.enter(now)
	p.feed()
	p.leave()
}

// Drain takes no new jobs from now on; attempts of jobs that are there may still attach. Each link ends when its decoder has said
// that it has no live attempt.
func (p *Prefiller) Drain(now Time) {
	p.enter(now)
	if !p.draining {
		p.draining = true
		p.partAll()
	}
	p.leave()
}

// Close fails all live attempts. Links end as in Drain, a second later whatever their decoders say.
func (p *Prefiller) Close(now Time) {
	p.enter(now)
	if !p.closing {
		p.closing, p.draining, p.closed = true, true, p.now
		for _, l := range p.links {
			for i := len(l.live) - 1; i >= 0; i-- {
				p.fail(l.live[i], CodeClosed, "prefiller closed")
			}
		}
		for _, j := range p.sortedJobs() {
			p.stepJob(j, jobFail)
		}
		p.partAll()
	}
	p.leave()
}

// Done reports whether Drain or Close has come to its end: no job, no link, no outstanding write.
func (p *Prefiller) Done() bool { return p.draining && len(p.jobs) == 0 && len(p.links) == 0 }

// Stats returns a snapshot.
func (p *Prefiller) Stats() PrefillerStats {
	s := p.stats
	for _, j := range p.jobs {
		switch j.step.state {
		case jobLive:
			s.Jobs++
		case jobWaiting:
			s.Waiting++
		}
	}
	for _, l := range p.links {
		s.Attempts += len(l.live)
		s.Tombs += len(l.attempts) - len(l.live)
		s.Outstanding += l.outstanding
		if l.up && !l.ended {
			s.Links++
		}
	}
	return s
}

// Unexpected calls f for each kind of event that came in a state where it means nothing, and says how often: "attempt" or "job", the state,
// and the event.
func (p *Prefiller) Unexpected(f func(machine, state, event string, n uint64)) {
	for i, row := range p.unexpected {
		for k, n := range row {
			if n > 0 {
				f("attempt", serveStateNames[i], serveEventNames[k], n)
			}
		}
	}
	for i, row := range p.unexpJob {
		for k, n := range row {
			if n > 0 {
				f("job", jobStateNames[i], jobEventNames[k], n)
			}
		}
	}
}

// Links calls f for every link that is up.
func (p *Prefiller) Links(f func(LinkInfo)) {
	for _, l := range p.links {
		if l.up && !l.ended {
			f(LinkInfo{
				Peer: l.peer.id, Instance: l.instance, Member: l.member, Attempts: len(l.live), Granted: l.credit.granted, Used: l.credit.used,
				Outstanding: l.outstanding,
			})
		}
	}
}

// Live calls f for each live attempt.
func (p *Prefiller) Live(f func(ServeInfo)) {
	for _, l := range p.links {
		for _, s := range l.live {
			f(ServeInfo{
				Link: l.id, Peer: l.peer.id, Job: s.job.id, Request: s.job.request, Seq: s.seq, State: s.step.state.String(),
				Posted: s.step.posted, Outstanding: s.step.outstanding, Left: s.step.left, Deadline: s.alarm.at,
			})
		}
	}
}
