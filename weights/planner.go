package weights

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// planner computes the plans of a controller, and remembers the last one for each pair of layouts. Safe for concurrent use: the plan of an epoch that
// has ended may still be under way when the next one is wanted.
type planner struct {
	rules   []reshard.Rule
	options reshard.Options

	mu       sync.Mutex // held while a plan is computed
	src, dst proto.Hash // of what last is for
	last     *reshard.Plan
	byID     map[proto.Hash]*reshard.Plan
	made     made
}

// made is what the last plan came to for its members: cutting, encoding and hashing all slices takes several times as long as a small push, and pushes in a row have
// the same ones. It is not changed any more.
type made struct {
	plan    proto.Hash
	members []proto.Member // role and rank alone
	planned *proto.Planned
	blobs   map[proto.Hash][]byte
}

// of reports whether it is for a plan and members in this order.
func (m *made) of(plan proto.Hash, members []proto.Member) bool {
	return m.planned != nil && m.plan == plan && slices.EqualFunc(m.members, members, func(a, b proto.Member) bool { return a.Role == b.Role && a.Rank == b.Rank })
}

// plan answers a request with slices and their encodings.
func (p *planner) plan(ctx context.Context, r *proto.PlanRequest, layouts map[proto.Hash][]byte) (*proto.Planned, map[proto.Hash][]byte, error) {
	if r.Mode == proto.ModeCopy {
		slices, err := copies(r, layouts)
		if err != nil {
			return nil, nil, err
		}
		out, blobs := encode(proto.Hash(sha256.Sum256([]byte(r.Epoch.String()))), slices, r.Members)
		return out, blobs, nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	plan, err := p.push(ctx, r, layouts)
	if err != nil {
		return nil, nil, err
	}
	if id := proto.Hash(plan.ID()); !p.made.of(id, r.Members) {
		p.made = made{plan: id}
		for i := range r.Members {
			p.made.members = append(p.made.members, proto.Member{Role: r.Members[i].Role, Rank: r.Members[i].Rank})
		}
		p.made.planned, p.made.blobs = encode(id, slicesOf(plan, r.Members), r.Members)
	}
	return p.made.planned, p.made.blobs, nil
}

// encode names and encodes the slices of members.
func encode(id proto.Hash, all []*reshard.Slice, members []proto.Member) (*proto.Planned, map[proto.Hash][]byte) {
	out := &proto.Planned{Plan: id, Slices: make([]proto.Hash, len(all)), Writes: make([][]int, len(all))}
	blobs := map[proto.Hash][]byte{}
	for i, s := range all {
		if s == nil {
			continue
		}
		b := s.Append(nil)
		h := proto.Hash(sha256.Sum256(b))
		blobs[h], out.Slices[i] = b, h
		out.Writes[i] = writes(s, members)
	}
	return out, blobs
}

// push computes the plan of a push, or repairs one.
func (p *planner) push(ctx context.Context, r *proto.PlanRequest, layouts map[proto.Hash][]byte) (*reshard.Plan, error) {
	var src, dst proto.Hash
	for i := range r.Members {
		m := &r.Members[i]
		h := &dst
		if m.Role == proto.RolePublisher {
			h = &src
		}
		if *h != (proto.Hash{}) && *h != m.Layout {
			return nil, fmt.Errorf("%w: %v has another layout (%v) than the others of its side (%v)", reshard.ErrLayout, m, m.Layout, *h)
		}
		*h = m.Layout
	}
	if r.Of != (proto.Hash{}) {
		return p.repair(r)
	}
	if p.last == nil || p.src != src || p.dst != dst {
		from, names, err := decodeLayout(layouts[src])
		if err != nil {
			return nil, fmt.Errorf("source: %w", err)
		}
		to, rules, err := decodeLayout(layouts[dst])
		if err != nil {
			return nil, fmt.Errorf("destination: %w", err)
		}
		plan, err := reshard.Compute(ctx, from, to, slices.Concat(p.rules, rules, names), p.options)
		if err != nil {
			return nil, err
		}
		p.src, p.dst, p.last = src, dst, plan
		p.byID = map[proto.Hash]*reshard.Plan{}
	}
	p.byID[proto.Hash(p.last.ID())] = p.last
	if len(r.Lost) > 0 {
		return p.without(p.last, r)
	}
	return p.last, nil
}

// repair plans without those who are lost. What is verified is not sent again.
func (p *planner) repair(r *proto.PlanRequest) (*reshard.Plan, error) {
	of := p.byID[r.Of]
	if of == nil {
		return nil, fmt.Errorf("%w: plan %v is not known any more", hawser.ErrStale, r.Of)
	}
	return p.without(of, r)
}

func (p *planner) without(of *reshard.Plan, r *proto.PlanRequest) (*reshard.Plan, error) {
	var lost []int
	for i := range r.Lost {
		lost = append(lost, r.Lost[i].Rank)
	}
	verified := map[int][]uint64{}
	for i := range r.Members {
		if r.Members[i].Role == proto.RoleReceiver && r.Verified != nil {
			verified[r.Members[i].Rank] = r.Verified[i]
		}
	}
	plan, err := of.Repair(lost, func(dst, stage int) bool {
		b := verified[dst]
		return stage/64 < len(b) && b[stage/64]>>(stage%64)&1 != 0
	})
	if err != nil {
		return nil, err
	}
	p.byID[proto.Hash(plan.ID())] = plan
	return plan, nil
}

// slicesOf are the slices of members: without what goes to receivers that are none.
func slicesOf(p *reshard.Plan, members []proto.Member) []*reshard.Slice {
	there := map[int]bool{}
	for i := range members {
		if members[i].Role == proto.RoleReceiver {
			there[members[i].Rank] = true
		}
	}
	out := make([]*reshard.Slice, len(members))
	for i := range members {
		if members[i].Role == proto.RoleReceiver {
			out[i] = p.Dest(members[i].Rank)
			continue
		}
		s := p.Source(members[i].Rank)
		for k := range s.Tasks {
			s.Tasks[k].Runs = slices.DeleteFunc(s.Tasks[k].Runs, func(r reshard.Run) bool { return !there[r.Peer] })
		}
		s.Tasks = slices.DeleteFunc(s.Tasks, func(t reshard.Task) bool { return len(t.Runs) == 0 })
		out[i] = s
	}
	return out
}

// writes are the members that a slice writes into: receivers, and partners for maxima.
func writes(s *reshard.Slice, members []proto.Member) (to []int) {
	ranks, partners := destinations(s), partnersOf(s)
	for i := range members {
		m := &members[i]
		if m.Role == proto.RoleReceiver && slices.Contains(ranks, m.Rank) || m.Role == proto.RolePublisher && slices.Contains(partners, m.Rank) {
			to = append(to, i)
		}
	}
	return to
}

// copyStage is the only stage of a copy.
const copyStage = "copy"

// copies are the slices of a copy: each receiver without a version gets everything from one that serves the same shard.
func copies(r *proto.PlanRequest, layouts map[proto.Hash][]byte) ([]*reshard.Slice, error) {
	out := make([]*reshard.Slice, len(r.Members))
	for i := range r.Members {
		m := &r.Members[i]
		l, _, err := decodeLayout(layouts[m.Layout])
		if err != nil {
			return nil, err
		}
		out[i] = &reshard.Slice{Source: slices.Contains(r.Sources, i), Rank: m.Rank, Stages: []string{copyStage}, Buffers: l.Buffers[m.Rank]}
	}
	for i := range r.Members {
		if out[i].Source {
			continue
		}
		from := slices.IndexFunc(r.Sources, func(s int) bool { return r.Members[s].Shard == r.Members[i].Shard })
		if from < 0 {
			return nil, fmt.Errorf("receiver %d: %w: nobody serves its shard %d", r.Members[i].Rank, proto.ErrNoReplica, r.Members[i].Shard)
		}
		from = r.Sources[from]
		l, _, err := decodeLayout(layouts[r.Members[i].Layout])
		if err != nil {
			return nil, err
		}
		if err := copySlice(l, out[from], out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// copySlice adds the runs from one rank to another that holds the same.
func copySlice(l *reshard.Layout, from, to *reshard.Slice) error {
	a, err := l.Held(from.Rank)
	if err != nil {
		return err
	}
	b, err := l.Held(to.Rank)
	if err != nil {
		return err
	}
	if len(a) != len(b) {
		return fmt.Errorf("ranks %d and %d: %w: they hold different tensors", from.Rank, to.Rank, reshard.ErrLayout)
	}
	done := map[[2]int64]bool{} // buffer and offset: an alias is copied once
	for i := range a {
		if a[i].Tensor != b[i].Tensor || !slices.Equal(a[i].Lo, b[i].Lo) || !slices.Equal(a[i].Extent, b[i].Extent) {
			return fmt.Errorf("ranks %d and %d: %w: they hold different boxes of %s", from.Rank, to.Rank, reshard.ErrLayout, l.Tensors[a[i].Tensor].Name)
		}
		if at := [2]int64{int64(b[i].Buffer), b[i].Offset}; !done[at] {
			done[at] = true
			copyHeld(&a[i], &b[i], from, to)
		}
	}
	return nil
}

// maxCopy is the longest run of a copy, bytes.
const maxCopy = 16 << 20

// copyHeld makes runs of what is one range on both sides.
func copyHeld(a, b *reshard.Held, from, to *reshard.Slice) {
	type span struct{ off, n int64 }
	var src []span
	a.Spans(func(off, n int64) bool { src = append(src, span{off, n}); return true })
	k, used := 0, int64(0)
	b.Spans(func(off, n int64) bool {
		for n > 0 {
			step := min(n, src[k].n-used, maxCopy)
			t := reshard.Task{Buffer: a.Buffer, Runs: []reshard.Run{{Peer: to.Rank, Buffer: b.Buffer, Offset: off, Len: step, From: src[k].off + used}}}
			from.Tasks = append(from.Tasks, t)
			to.Runs = append(to.Runs, reshard.Run{Peer: from.Rank, Buffer: b.Buffer, Offset: off, Len: step})
			off, n, used = off+step, n-step, used+step
			if used == src[k].n {
				k, used = k+1, 0
			}
		}
		return true
	})
}
