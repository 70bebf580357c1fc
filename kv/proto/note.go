package proto

// Note is something that an observer may want to know: a plain value, so that it costs nothing when nobody looks. Which fields are set
// depends on Kind.
type Note struct {
	Kind    NoteKind
	Request Request
	Seq     uint64
	Link    Link
	Peer    Peer
	N       uint64 // NoteQuarantine, NotePublish: pages
	From    string // NoteAttempt, NoteWriter: state before
	To      string // state after
	Err     error
	Timing  *Timing // NoteTiming
}

// NoteKind tells notes apart.
type NoteKind uint8

// The kinds.
const (
	NoteAttempt    NoteKind = 1 + iota // an attempt changed its state
	NoteWriter                         // a writer of an attempt changed its state
	NoteReserve                        // an attempt has its pages and its immediate
	NoteAccept                         // a prefiller took a Dispatch
	NoteRetry                          // a request begins another attempt: Err says why
	NoteLinkUp                         // the link can be used
	NoteLinkDown                       // it cannot any more; Err says why
	NoteFence                          // a fence began
	NoteFenced                         // it is proved
	NoteUnfenced                       // it has no proof yet
	NoteQuarantine                     // N pages are out of service until the fence is proved
	NotePublish                        // N pages went into the prefix cache
	NoteTiming                         // how the computation went, after the fact
	NoteUnexpected                     // an event that means nothing in its state: From is the state, To the event
	NoteEnd                            // an attempt is quiet: nothing of it can land any more
)
