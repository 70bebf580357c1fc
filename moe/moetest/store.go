package moetest

import (
	"fmt"

	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// slotState is what may happen to a place in memory that peers write.
type slotState uint8

const (
	free    slotState = iota // nobody may write, or, of the places that belong to one source, the source may
	granted                  // one source may write
	writing                  // fragments of one part have landed
	written                  // and its immediate was counted
)

var stateNames = [...]string{"free", "granted", "being written", "written"}

// slot is such a place: a block's header and first records, a grant, a cancel record, a chunk of the pool, the place of one result.
type slot struct {
	state slotState
	from  int   // who may write, or writes
	part  *part // that is landing, or has
}

// store is the memory of a node, with a shadow that says what may be written and read. After Recycle with fresh regions the old store
// lives on until nothing flies towards it.
type store struct {
	w     *World
	n     *node
	view  uint32 // that it was recycled for
	valid map[proto.ID]bool
	areas exec.Memory
	all   [exec.Areas][]byte // areas with canaries around them

	heads, grants, cancels, chunks, results []slot
}

const (
	canary = 64
	guard  = 0xa5
)

// poison is a signalling NaN of float32, and of both halves of bfloat16 pairs.
var poison = [4]byte{0xa7, 0x7f, 0xa7, 0x7f}

// Poison fills memory with signalling NaN: what is read of it can be no result.
func Poison(b []byte) {
	for i := range b {
		b[i] = poison[i%4]
	}
}

func newStore(n *node) *store {
	s := &store{w: n.w, n: n, valid: map[proto.ID]bool{}}
	for a := range exec.Areas {
		size := int(exec.PlacesOf(&n.cfg).Bytes(a))
		b := make([]byte, size+2*canary)
		for i := range canary {
			b[i], b[len(b)-1-i] = guard, guard
		}
		s.all[a], s.areas[a] = b, b[canary:canary+size:canary+size]
	}
	s.recycle(0)
	return s
}

// recycle begins a view: nothing may fly towards the store any more.
func (s *store) recycle(view uint32) {
	s.view = view
	ranks := s.n.cfg.MaxRanks
	s.heads, s.grants, s.cancels = make([]slot, ranks), make([]slot, ranks*proto.Window), make([]slot, ranks)
	s.chunks, s.results = make([]slot, s.n.cfg.PoolChunks), make([]slot, s.n.cfg.Records())
	for _, a := range []exec.Area{exec.Blocks, exec.Pool, exec.Results} {
		Poison(s.areas[a])
	}
}

// canaries says whether something was written beside an area.
func (s *store) canaries() {
	for a, b := range s.all {
		for i := range canary {
			if b[i] != guard || b[len(b)-1-i] != guard {
				s.w.fault("rank %d: bytes beside area %d were written", s.n.rank, a)
				return
			}
		}
	}
}

// targets are the slots that a part writes, and what state they must be in before it does.
func (s *store) targets(p *part) (slots []slot, want slotState) {
	c, rank := &s.n.cfg, p.from.rank
	switch k := p.post.Kind; {
	case k == proto.KindHead:
		return s.heads[rank : rank+1], free
	case k == proto.KindCancel:
		return s.cancels[rank : rank+1], free
	case k >= proto.KindChunk:
		i := p.post.Dst / int64(c.ChunkRecords*c.Dispatch)
		return s.chunks[i : i+1], granted
	case k >= proto.KindGrant:
		i := rank*proto.Window + int(k-proto.KindGrant)
		return s.grants[i : i+1], free
	default:
		i := p.post.Dst / int64(c.Combine)
		return s.results[i : i+p.post.Len/int64(c.Combine)], granted
	}
}

// land writes a fragment.
func (s *store) land(p *part, from, to int64) {
	slots, want := s.targets(p)
	for i := range slots {
		t := &slots[i]
		if t.state == writing && t.part == p {
			continue
		}
		if t.state != want || want == granted && t.from != p.from.rank {
			s.w.fault("%v writes to rank %d, where place %d is %s (of rank %d)", p, s.n.rank, i, stateNames[t.state], t.from)
		}
		*t = slot{writing, p.from.rank, p}
	}
	at := p.post.Dst
	if p.post.To == exec.Blocks {
		at += int64(p.from.rank) * exec.PlacesOf(&s.n.cfg).Block()
	}
	copy(s.areas[p.post.To][at+from:at+to], p.sent[from:to])
}

// counted: all fragments of a part have landed.
func (s *store) counted(p *part) {
	slots, _ := s.targets(p)
	for i := range slots {
		if slots[i].part != p {
			s.w.fault("%v is counted at rank %d, where place %d was not written by it", p, s.n.rank, i)
		}
		slots[i].state = written
	}
}

// take ends the use of a slot, whose memory nobody may read any more.
func (s *store) take(t *slot, memory []byte) {
	*t = slot{}
	Poison(memory)
}

// locate says where a slice of an area lies.
func (s *store) locate(b []byte) (a exec.Area, at int, ok bool) {
	if cap(b) == 0 {
		return 0, 0, false
	}
	end := &b[:cap(b)][cap(b)-1]
	for a := range exec.Areas {
		if m := s.areas[a]; len(m) > 0 && &m[len(m)-1] == end {
			return a, len(m) - cap(b), true
		}
	}
	return 0, 0, false
}

func (p *part) String() string {
	return fmt.Sprintf("%v of rank %d in view %d (%d bytes)", p.post.Kind, p.from.rank, p.view, p.post.Len)
}
