//go:build soak

package soak

import (
	"encoding/json"
	"maps"
	"sync"
)

// Kinds of the messages between the parent and its members.
const (
	kindOpen  = "open"  // entry: an engine is there; from its member, and to all others
	kindShut  = "shut"  // identity: an engine is gone
	kindRoute = "route" // packet: from one engine to another
	kindWrong = "wrong" // text: a check has failed
	kindTally = "tally" // tally: what has been done since the last one
	kindOrder = "order" // order, to a member
	kindReply = "reply" // its reply
)

// entry is an engine that others can reach.
type entry struct{ ID, Addr string }

// packet is what one engine says to another, by identity.
type packet struct {
	From, To string
	Ask      *ask     `json:",omitempty"`
	Grant    *grant   `json:",omitempty"`
	Report   *outcome `json:",omitempty"`
}

// ask asks for a lease: of a cell, or of an immediate alone.
type ask struct {
	N    uint64
	Cell bool
}

// grant answers an ask; Token is 0 when there is nothing to lease.
type grant struct {
	N, Token uint64
	Field    int    // which region
	Desc     string // of it
	Off, Len uint64 // of the cell
	Imm      uint32
}

// outcome is how the operation of a lease ended.
type outcome struct {
	Token         uint64
	Sent, OK      bool   // it was submitted; it ended without error
	Pages         uint64 // of PageLen bytes each, Stride apart
	PageLen, Step uint64
	Count         uint64 // immediates that arrive when it ends well
}

// What the parent orders. A member replies when it has done it.
type order struct {
	N      uint64
	What   string
	Strict bool   // of run: no operation may fail
	Round  uint32 // of barrier
	Rude   bool   // of reopen: without giving what is in flight any time
}

const (
	orderRun     = "run"     // begin to operate
	orderPause   = "pause"   // stop, when what is under way has ended
	orderSettle  = "settle"  // fence everybody, and check all that is left
	orderConnect = "connect" // to everybody
	orderBarrier = "barrier" // all together
	orderMeasure = "measure" // usage
	orderMail    = "mail"    // which messages were sent and received since the last pause
	orderReopen  = "reopen"  // another engine
	orderClose   = "close"   // the engine; then usage, and the end
)

type reply struct {
	N     uint64
	Err   string `json:",omitempty"`
	Usage *usage `json:",omitempty"`
	Mail  *mail  `json:",omitempty"`
}

// tally counts, by name.
type tally struct {
	mu     sync.Mutex
	counts map[string]uint64 // guarded by mu
}

func (t *tally) add(name string, n uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.counts == nil {
		t.counts = map[string]uint64{}
	}
	t.counts[name] += n
}

// take returns the counts and begins anew.
func (t *tally) take() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	t.counts = nil
	return c
}

func (t *tally) copy() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.counts)
}

func encode(v any) json.RawMessage {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // all of the types above can be encoded
	}
	return b
}
