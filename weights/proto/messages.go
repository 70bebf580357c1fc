package proto

import "fmt"

// Limits of the fields.
const (
	MaxMembers     = 1 << 14 // of an epoch
	MaxInstances   = MaxMembers
	MaxStages      = 1 << 12
	MaxBuffers     = 1 << 12 // of a member
	maxRank        = 1 << 24
	maxText        = 512 // bytes of a text for people
	maxAddr        = 4096
	maxName        = 128
	maxDescriptor  = 2048
	maxSums        = 1 << 16 // of one Stage
	memberLeast    = 16 + 2 + 1 + 4*3 + 2 + 32
	grantLeast     = 8 + 4 + 4
	stageSumLeast  = 4 + 4 + 4 + 24
	decisionsLimit = 16 // that a member remembers
)

// Kind tells messages apart. The numbers travel: each keeps its meaning.
type Kind uint8

// The kinds. C is the controller, M any member, P a publisher (in a copy: the receiver that is copied from), R a receiver.
const (
	KindAck      Kind = 1 + iota // all: the message with this seq has come and need not come again
	KindJoin                     // M to C: who it is and its state; again whenever that changes
	KindJoined                   // C to M: it is a member under this term
	KindStale                    // M to C: it obeys a higher term
	KindWant                     // C to M, M to C: send me what has this hash
	KindPlan                     // C to M: the plan, the member's slice
	KindPlanned                  // M to C: it has the slice
	KindBegin                    // C to M
	KindStopped                  // leader to its ranks: the whole instance is stopped
	KindGrant                    // M to C: the right to write into it
	KindStart                    // C to P: all grants that it needs
	KindDrop                     // C to P: these receivers are out: their grants end
	KindStage                    // P to C, C to R: a stage is written
	KindQuiet                    // P to C: no write is under way, none will be
	KindPrepared                 // R to C: it has everything
	KindFailed                   // M to C: it cannot
	KindHalt                     // C to M: write nothing more; fence
	KindHalted                   // M to C: who was to be fenced is
	KindDecision                 // C to M: commit or abort
	KindOut                      // C to R: its instance is no part of the epoch any more; the epoch may still commit elsewhere
	KindDone                     // M to C: what became of the decision
	KindFlip                     // leader to its ranks: the decision is commit, the instance is stopped: flip
	KindFlipped                  // rank to leader
	KindAsk                      // all: how did that epoch end?
	KindTold                     // all: so
	kindEnd
)

var kindNames = [...]string{
	KindAck: "ack", KindJoin: "join", KindJoined: "joined", KindStale: "stale", KindWant: "want", KindPlan: "plan", KindPlanned: "planned",
	KindBegin: "begin", KindStopped: "stopped", KindGrant: "grant", KindStart: "start", KindDrop: "drop", KindStage: "stage",
	KindQuiet: "quiet", KindPrepared: "prepared", KindFailed: "failed", KindHalt: "halt", KindHalted: "halted", KindDecision: "decision",
	KindOut: "out", KindDone: "done", KindFlip: "flip", KindFlipped: "flipped", KindAsk: "ask", KindTold: "told",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

func newBody(k Kind) Body {
	if int(k) < len(bodyOf) && bodyOf[k] != nil {
		return bodyOf[k]()
	}
	return nil
}

var bodyOf = [kindEnd]func() Body{
	KindAck: func() Body { return &Ack{} }, KindJoin: func() Body { return &Join{} }, KindJoined: func() Body { return &Joined{} },
	KindStale: func() Body { return &Stale{} }, KindWant: func() Body { return &Want{} }, KindPlan: func() Body { return &Plan{} },
	KindPlanned: func() Body { return &PlannedBy{} }, KindBegin: func() Body { return &Begin{} }, KindStopped: func() Body { return &Stopped{} },
	KindGrant: func() Body { return &GrantOf{} }, KindStart: func() Body { return &Start{} }, KindDrop: func() Body { return &Drop{} },
	KindStage: func() Body { return &Stage{} }, KindQuiet: func() Body { return &Quiet{} }, KindPrepared: func() Body { return &Prepared{} },
	KindFailed: func() Body { return &Failed{} }, KindHalt: func() Body { return &Halt{} }, KindHalted: func() Body { return &Halted{} },
	KindDecision: func() Body { return &Decided{} }, KindOut: func() Body { return &OutOf{} }, KindDone: func() Body { return &Done{} },
	KindFlip: func() Body { return &Flip{} }, KindFlipped: func() Body { return &Flipped{} }, KindAsk: func() Body { return &Ask{} },
	KindTold: func() Body { return &Told{} },
}

// Ack ends the repetition of a message. It is sent when the message has done its work, or is kept.
type Ack struct{ Seq uint64 }

// Join says who a member is, and how it is. The head has the highest term it has seen.
type Join struct {
	Member Member
	Name   string // for people
	Group  int    // how many there are of its kind: publishers, or ranks of its instance

	State   State
	Version Version // receivers: what it serves
	Pending Version // in an epoch: the epoch's; publishers: what Push was called for
	Root    Hash    // content root of Version
	Held    Version // receivers: an older version that it could take back (ModeBack); 0: none
	Epoch   Key     // the one that it is in, or was in last
	Log     ID      // of the controller's log that has the decision of Epoch
	Since   Key     // the first epoch of the chain of repairs that Epoch is part of
	Last    Decision
	// Others are all members of Epoch, of a member that is prepared or in doubt: so an operator knows who is missing.
	Others []Member
	Stuck  []ID // peers that may still write into it: it takes part in no epoch
}

// Joined answers Join.
type Joined struct{}

// Stale says whom the member obeys.
type Stale struct{ Highest Term }

// Want asks for a blob.
type Want struct{ Hash Hash }

// Plan names a member's part of an epoch. Nothing is stopped or written yet.
type Plan struct {
	Mode  Mode
	Plan  Hash
	Slice Hash // zero: it has no part in the transfer
}

// PlannedBy: the slice is here and fits.
type PlannedBy struct{}

// Begin begins an epoch.
type Begin struct {
	Mode    Mode
	Log     ID
	Since   Key // the epoch that this one continues, after repairs; the zero Key: none
	Plan    Hash
	Slice   Hash
	Members []Member
	Kept    []uint64 // receivers: bit s: the plan counts on that stage s is here
	Writers []int    // who will write into this member: indices of Members
	Targets []int    // whom this member writes into
}

// Stopped: the instance is stopped, as a whole.
type Stopped struct{}

// GrantOf lets the writers of a member write, once they are told to start.
type GrantOf struct {
	Grant Grant
	Holds []Import // sources: what it has imported, so that Start can leave the descriptors out
}

// Import is a grant whose descriptors are known already.
type Import struct {
	Member int // index in the members of the epoch
	Serial uint64
}

// PeerGrant is a grant and whose it is.
type PeerGrant struct {
	Member int // index in the members of the epoch
	Grant  Grant
}

// Start lets a publisher write.
type Start struct{ Grants []PeerGrant }

// Drop takes receivers out.
type Drop struct{ Members []int }

// Stage says what has been written, and that these writes have completed: to the controller what one publisher wrote, to a receiver what all
// of them wrote into it since the last one.
type Stage struct{ Sums []StageSum }

// QuietKind says how a publisher became quiet.
type QuietKind uint8

// The kinds of quiet.
const (
	QuietPushed QuietKind = 1 + iota // everything is written
	QuietHalted                      // it was told to stop
	QuietLeft                        // its caller gave up
	quietEnd
)

// Quiet says that nothing of the publisher is under way, except to Unquiet.
type Quiet struct {
	How     QuietKind
	Missed  []int // receivers that did not get everything, though it has tried
	Unquiet []int // members that something may still arrive at
}

// Prepared says that all stages are here, verified and loaded.
type Prepared struct{ Root Hash }

// Failed ends a member's part.
type Failed struct {
	Code  Code
	Stage int // where one is to blame
	Text  string
}

// Halt ends all writing of an epoch before it was decided.
type Halt struct {
	Round int   // the answer has it, too: a later round lists more who are lost
	Fence bool  // second pass: everybody who writes is quiet, except Lost; take their right away and say so
	Lost  []int // members that are not known to be quiet
}

// Halted answers Halt: to the first pass publishers answer Quiet instead.
type Halted struct {
	Round    int
	Verified []uint64 // bit s: stage s is here and verified
	Stuck    []ID     // could not be fenced
}

// Decided carries the decision. Instances, for a commit, are those that switch.
type Decided struct {
	Decision Decision
	Since    Key  // abort: of this epoch and of those it continues
	Clean    bool // abort: nobody was told to start: what was there is there
	Quiet    []ID // abort: who wrote and is known to be quiet; all others are fenced
	Code     Code // abort: why
	Text     string
}

// OutOf: the instance failed. Nobody answers for the others.
type OutOf struct {
	Of    Key
	Since Key // and of those that it continues
	// Commit: the epoch is committed, also for this instance, which could not switch.
	Commit bool
	Code   Code
	Text   string
}

// Done says what a member made of a decision.
type Done struct {
	Of    Key
	OK    bool // commit: it serves the version (a leader: the whole instance does); abort: nothing can be written any more
	Code  Code
	Text  string
	Stuck []ID
}

// Flip tells a rank to flip. It is proof of the decision.
type Flip struct{ Decision Decision }

// Flipped: it has.
type Flipped struct {
	OK   bool
	Text string
}

// Ask asks how an epoch ended.
type Ask struct {
	Of  Key
	Log ID
}

// Told answers Ask. Not known is not abort.
type Told struct {
	Of       Key
	Known    bool
	Pending  bool // not known: a controller that runs the epoch has not decided yet
	Decision Decision
}
