package proto

import (
	"cmp"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
)

// Time is the time since an origin of the caller's choosing. It never goes back.
type Time = time.Duration

// ID is an engine's. The zero ID is nobody.
type ID = hawser.ID

// Hash is a SHA-256: of a layout, a plan, a slice, or the content of a version.
type Hash [32]byte

func (h Hash) String() string { return fmt.Sprintf("%x", h[:6]) }

// Version names content: what a trainer calls it. Not 0.
type Version uint64

// Term is a controller's right to give orders. Members obey the highest they have seen: the larger number, then the larger ID. The ID
// is the controller's engine, random per Open, so no two controllers ever have the same term.
type Term struct {
	Number uint64
	ID     ID
}

// Compare is negative when t is below u.
func (t Term) Compare(u Term) int {
	return cmp.Or(cmp.Compare(t.Number, u.Number), compareID(t.ID, u.ID))
}

func compareID(a, b ID) int {
	for i := range a {
		if a[i] != b[i] {
			return cmp.Compare(a[i], b[i])
		}
	}
	return 0
}

func (t Term) String() string { return fmt.Sprintf("%d/%x", t.Number, t.ID[:3]) }

// Key names an epoch: one attempt of one version. The zero Key is none.
type Key struct {
	Term   Term   // of the controller that began it
	Number uint64 // terms and epochs share one number line, so later epochs have larger numbers
}

// Compare orders by number, then by term.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Number, o.Number), k.Term.Compare(o.Term))
}

func (k Key) String() string { return fmt.Sprintf("e%d of term %v", k.Number, k.Term) }

// Role is what a member is.
type Role uint8

// The roles.
const (
	RolePublisher Role = 1 + iota
	RoleReceiver
	roleEnd
)

func (r Role) String() string {
	switch r {
	case RolePublisher:
		return "publisher"
	case RoleReceiver:
		return "receiver"
	}
	return fmt.Sprintf("role %d", uint8(r))
}

// Mode is what an epoch does.
type Mode uint8

// The modes.
const (
	ModePush Mode = 1 + iota // publishers write a version into receivers
	ModeCopy                 // receivers that serve a version write it into receivers that have none
	ModeBack                 // receivers take back a version that they kept: nobody writes
	modeEnd
)

func (m Mode) String() string {
	switch m {
	case ModePush:
		return "push"
	case ModeCopy:
		return "copy"
	case ModeBack:
		return "back"
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

// State is what a member says of itself. A receiver: of the copy that it writes, in place the only one.
type State uint8

// The states.
const (
	StateEmpty     State = 1 + iota // receiver: no version
	StateCommitted                  // receiver: Version, whole
	StateFailed                     // receiver: an epoch failed in its only copy; out of routing until another one succeeds
	StateSuspended                  // receiver: its memory may be unmapped
	StateBegun                      // in an epoch; nothing may write yet
	StateDirty                      // receiver: may be written
	StatePrepared                   // receiver: has everything, publisher: its writes are over; waits for the decision
	StateInDoubt                    // the decision did not come for DoubtAfter
	StateHalted                     // the epoch is being ended or repaired
	StateSwitching                  // receiver: the decision is commit, its instance is not resumed yet
	StateIdle                       // publisher: no Push
	StateOffered                    // publisher: Push was called for Version
	StateWriting                    // publisher
	stateEnd
)

var stateNames = [...]string{
	StateEmpty: "empty", StateCommitted: "committed", StateFailed: "failed", StateSuspended: "suspended", StateBegun: "begun",
	StateDirty: "dirty", StatePrepared: "prepared", StateInDoubt: "in-doubt", StateHalted: "halted", StateSwitching: "switching",
	StateIdle: "idle", StateOffered: "offered", StateWriting: "writing",
}

func (s State) String() string {
	if s > 0 && s < stateEnd {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", uint8(s))
}

// inEpoch reports whether a member in this state is part of an epoch that it does not know to be over.
func (s State) inEpoch() bool {
	switch s {
	case StateBegun, StateDirty, StatePrepared, StateInDoubt, StateHalted, StateSwitching, StateWriting:
		return true
	}
	return false
}

// Code says why something failed. The numbers travel: each keeps its meaning.
type Code uint8

// The codes.
const (
	CodePlan      Code = 1 + iota // the plan or slice does not fit what the member has
	CodePause                     // the engine did not stop
	CodeGrant                     // no immediates, or memory could not be granted
	CodeWrite                     // the publisher could not read, stage or write
	CodeDigest                    // what arrived is not what was sent
	CodePostLoad                  // the engine's PostLoad
	CodeRestore                   // the kept version is not there
	CodeBusy                      // in another epoch, or leased
	CodeSuspended                 // a rank is suspended
	CodeUnfenced                  // somebody may still write: see the text for whom and where
	CodeFlip                      // the engine could not flip or resume
	CodeLost                      // a member of the instance is gone
	CodeTimeout                   // a member did not answer in time
	CodeCancelled                 // the user ended it
	CodeReplica                   // nobody left has what is missing
	CodeLog                       // the decision log cannot be written
	CodeStale                     // another controller has the higher term
	CodeFew                       // fewer than MinInstances are left
	codeEnd
)

var codeNames = [...]string{
	CodePlan: "plan", CodePause: "pause", CodeGrant: "grant", CodeWrite: "write", CodeDigest: "digest", CodePostLoad: "post-load",
	CodeRestore: "restore", CodeBusy: "busy", CodeSuspended: "suspended", CodeUnfenced: "not fenced", CodeFlip: "flip", CodeLost: "lost",
	CodeTimeout: "timeout", CodeCancelled: "cancelled", CodeReplica: "no replica", CodeLog: "log", CodeStale: "stale term", CodeFew: "too few instances",
}

func (c Code) String() string {
	if c > 0 && c < codeEnd {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}

// Member is a participant of an epoch, as all of its members know it.
type Member struct {
	ID       ID
	Addr     string // of its engine
	Role     Role
	Rank     int // of the layout of its side
	Instance int // receivers: the inference engine that it is part of, the unit of commit
	Shard    int // receivers: its rank within the instance; equal shards of all instances hold the same bytes
	Leader   bool
	Shadow   bool // receivers: new versions go into a second copy
	Layout   Hash
}

func (m *Member) String() string { return fmt.Sprintf("%v %d", m.Role, m.Rank) }

// Grant is the right to write into a member in one epoch.
type Grant struct {
	Serial      uint64   // of the Descriptors: the same number, the same descriptors
	Imms        []uint32 // the immediate of each stage
	Descriptors [][]byte // of each buffer; in a Start nil when the publisher has imported those of Serial
}

// StageSum is what one publisher has written into one receiver in one stage.
type StageSum struct {
	From   int // index of the publisher in the members of the epoch; the controller says it
	To     int // and of the receiver
	Stage  int
	Digest uint64 // the transfer digest; 0 when Verify is off
	Runs   uint64
	Bytes  uint64
}

// Decision is how an epoch ended: a fact, whoever tells it.
type Decision struct {
	Of        Key
	Version   Version
	Commit    bool
	Instances []int // commit: those that switch, ascending; to all others the epoch is an aborted one
	Operator  bool  // a person decided, not the log of the controller that ran it
}

// Commits reports whether the decision is commit for this instance. Publishers have none: they ask with -1.
func (d *Decision) Commits(instance int) bool {
	if !d.Commit || instance < 0 {
		return d.Commit
	}
	for _, i := range d.Instances {
		if i == instance {
			return true
		}
	}
	return false
}
