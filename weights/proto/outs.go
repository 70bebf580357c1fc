package proto

// Out is what every machine wants done. No method may call the machine, and none may block: what takes time is answered by an event.
type Out interface {
	// Send sends a message. It may be lost, and may arrive though the call below it failed; data is the receiver's. What is longer than
	// the engine's Send takes goes by SendBulk.
	Send(to ID, data []byte)
	// Meet says where an engine is, before the first Send to it: connect when there is something to send. No answer.
	Meet(id ID, addr string)
	// Has reports whether a blob is here.
	Has(h Hash) bool
	// SendBlob sends a blob that is here (if not: it says nothing). It may be asked for again while it is under way: then once is enough.
	// The shell of the other side calls Blob when it has come.
	SendBlob(to ID, h Hash)
	Note(n Note)
}

// Epoch is what a member's shell must know of an epoch. It must not be changed.
type Epoch struct {
	Key     Key
	Since   Key // of the first epoch of the chain that this one continues; Key when it continues none
	Log     ID
	Version Version
	Mode    Mode
	Plan    Hash
	Slice   Hash
	Members []Member
	Me      int   // index of this member
	Writers []int // indices of those who write into this member
	Targets []int // indices of those whom it writes into
}

// MemberOut is what publishers and receivers want done. A receiver writes, too, when another instance is filled from its memory.
type MemberOut interface {
	Out
	// Adopt checks that a slice, which is here, covers exactly what this member has. Answered by Adopted(key, err).
	Adopt(e Key, m Mode, v Version, plan, slice Hash)
	// Grant takes an immediate for each stage that is not kept (bit s of kept: stage s is here, from the epoch that e continues), and issues
	// descriptors, or the same as before if serial is that of the last Grant. A publisher grants its inbox for maxima. Receivers: nothing
	// has been written yet, and all may be from now on. Answered by Granted(key, imms, descriptors, err).
	Grant(e *Epoch, serial uint64, kept []uint64)
	// Imported is the serial of the descriptors of this engine's memory that are imported, and good as long as the session with it lasts;
	// 0: none.
	Imported(id ID) uint64
	// Put gives the immediates of the epoch back: it is over, no write of it can arrive any more, whatever verifies it stops. Once per
	// Grant, and not before that is answered.
	Put(e Key)
	// Fence takes from a peer the right to write into this member. hard: it is not known to be quiet: fence its engine; else revoke the
	// regions. Answered by Fenced(id) or Unfenced(id, err); it is called again a second after Unfenced.
	Fence(id ID, hard bool)
	// Start lets this member write. The shell checks that the grants cover exactly its runs. It calls Staged(key, sums) when stages are
	// quiet, and at the end Wrote(key, ...), exactly once.
	Start(e *Epoch, grants []PeerGrant)
	// Drop: what is still to be written into these members is left out, and they are no Missed ones of Wrote.
	Drop(e Key, members []int)
	// Stop: submit nothing more; Wrote follows, when nothing is under way. Comes only between Start and Wrote.
	Stop(e Key)
	// Doubt: the decision did not come in time. Told until it is known (false).
	Doubt(e *Epoch, doubt bool)
}

// PublisherOut is what a Publisher wants done.
type PublisherOut interface {
	MemberOut
	// Wanted: the controller is about to push this version, and Push was not called for it.
	Wanted(v Version)
	// Ended ends a Push: err is nil when the version is committed. Nothing reads the publisher's memory any more, and it may change it.
	Ended(v Version, e Key, err error)
}

// ReceiverOut is what a Receiver wants done.
type ReceiverOut interface {
	MemberOut
	// Pause stops the whole engine of the instance (leader only), Resume starts it. Pause of an engine that is stopped is no error.
	// Answered by Paused(err), Resumed(err), which come after the hook's own timeout at the latest.
	Pause(v Version)
	Resume(v Version)
	// Flip makes v the version of this rank; shadow: swaps the copies. Then it tells the engine that v is committed, and rebuilds what is derived. Answered by Flipped(err).
	Flip(e Key, v Version)
	// Sums brings what writers say of stages. The shell waits for the counts, compares digests, calls PostLoad, then Verified(key,
	// stage), for each stage that has runs and is not kept; and after the last one Ready(key, root, nil). A stage that fails: Ready with
	// an error. If nothing is to come at all, Ready comes after Grant.
	Sums(e Key, sums []StageSum)
	// Restore makes the kept version v ready to flip to; answered by Ready(key, root, err).
	Restore(e Key, v Version)
	// Suspended: nobody can write: memory may be unmapped. It ends Suspend.
	Suspended()
}

// ControllerOut is what a Controller wants done.
type ControllerOut interface {
	Out
	// Plan computes a plan, and slices, which Has and SendBlob know from then on. Layouts of all members are here. Answered by Planned(key,
	// planned, err).
	Plan(r *PlanRequest)
	// Log appends a record and makes it durable. Answered by Logged(seq, err). What depends on the record is not said before.
	Log(r Record)
	// Owed says for people what the receivers among the members still wait for, when the limit of an epoch is over; empty: it is not known.
	Owed(e Key, members []Member, after Time) string
	// Ended ends an Update, Rollback or Decide.
	Ended(op uint64, o Outcome)
}

// PlanRequest says what is to be planned.
type PlanRequest struct {
	Epoch   Key
	Version Version
	Mode    Mode
	Members []Member
	Sources []int    // indices of those who write; none: ModeBack, which needs no plan
	Lost    []Member // publishers that are no members: the others must have all that they had
	// A repair: the plan of an epoch is done again without those who were lost, Lost. Members are those who are left.
	Of       Hash       // the plan; zero: no repair
	Verified [][]uint64 // of each of Members: bit s: stage s is there
}

// Planned is a plan.
type Planned struct {
	Plan   Hash
	Slices []Hash  // of each member; zero: it has no part
	Writes [][]int // of each member: the members that it writes into, receivers and partners for maxima
}

// Outcome is how an operation of a Controller ended.
type Outcome struct {
	Version Version
	Epoch   Key // the last one
	Err     error
	Serving []int         // instances that serve Version
	Out     []InstanceOut // instances that were part of it and do not
	Repairs int
}

// InstanceOut says why an instance is not part of a commit.
type InstanceOut struct {
	Instance int
	Member   ID // to blame
	Code     Code
	Text     string
}

// Note is something that an observer may want to know.
type Note struct {
	Kind    NoteKind
	Peer    ID
	Epoch   Key
	Version Version
	From    string // phases and states
	To      string
	Code    Code
	Text    string
}

// NoteKind tells notes apart.
type NoteKind uint8

// The kinds.
const (
	NoteTerm       NoteKind = 1 + iota // a term is obeyed, or begun
	NotePhase                          // an epoch, or a member's part of it, goes on; To is empty: the part is over
	NoteState                          // a member's state
	NoteJoined                         // controller: a member
	NoteLost                           // a member is gone
	NoteOut                            // an instance left the epoch
	NoteDecision                       // a decision is known
	NoteFence                          // somebody was fenced, or could not be
	NoteStale                          // a message of a lower term, or an epoch that is over
	NoteProtocol                       // a message made no sense
	NoteUnexpected                     // an event meant nothing in its state
)
