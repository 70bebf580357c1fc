package proto

import (
	"fmt"
	"time"
)

// What the machines of both sides count on.
const (
	// seqWindow is how many attempts a decoder may be ahead of the oldest live one of a link, and so the bound of the tombs there.
	seqWindow = 1 << 16
	beatPause = 500 * time.Millisecond // between two Beats, while there is something to tell
)

// Time is the time since an origin of the caller's choosing. It never goes back.
type Time = time.Duration

// Peer is the caller's number of an engine at the other end: an identity, so that a process that was started again is another one.
// Not 0.
type Peer uint32

// LinkInfo is one link that is up, for people.
type LinkInfo struct {
	Peer        Peer
	Instance    string // of the other side
	Member      int
	Attempts    int    // live ones
	Granted     uint64 // credits, source pages, that P ever gave; D may have Granted - Used under way more
	Used        uint64
	Outstanding int // writes, on P
}

// Code says why something was refused or ended. The numbers travel: each keeps its meaning.
type Code uint8

// The codes.
const (
	CodeBusy       Code = 1 + iota // its queue is full
	CodeDraining                   // it takes no new jobs
	CodeInfeasible                 // the request can never be served there
	CodeInvalid                    // the request contradicts itself or the link
	CodePlan                       // the two sides come to different plans
	CodePrompt                     // nobody brought the prompt within JoinWait
	CodeLate                       // its deadline is over
	CodeClosed                     // the prefiller is closing
	CodeTransfer                   // a write failed
	CodeEngine                     // the inference engine gave up
	CodeProgress                   // a progress word made no sense
	CodeMismatch                   // the two sides do not have the same cache
	codeEnd
)

var codeNames = [...]string{
	CodeBusy: "busy", CodeDraining: "draining", CodeInfeasible: "infeasible", CodeInvalid: "invalid", CodePlan: "plan differs", CodePrompt: "unknown prompt",
	CodeLate: "too late", CodeClosed: "closed", CodeTransfer: "transfer", CodeEngine: "engine", CodeProgress: "progress word", CodeMismatch: "mismatch",
}

func (c Code) String() string {
	if c > 0 && c < codeEnd {
		return codeNames[c]
	}
	return fmt.Sprintf("code %d", uint8(c))
}
