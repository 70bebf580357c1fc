package moetest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// toDo is what a rank does next in its step.
type toDo uint8

const (
	toBegin toDo = iota
	toReceive
	toTake // whole: the rows; streamed: chunks
	toSum
)

var toDoNames = [...]string{"begin", "receive", "take rows", "sum"}

// node is a rank from its birth to its death. Owned by its World.
type node struct {
	w       *World
	rank    int
	id      proto.ID
	cfg     proto.Layout
	dead    bool
	exec    *exec.Exec
	group   *proto.Group
	watch   *watch
	store   *store
	parked  *store
	remote  []*store // of peers, by rank
	cut     []bool   // the session with a rank has ended
	totals  [][proto.Kinds]uint64
	read    map[*slot]int // records of a piece that were read
	member  []bool
	entered uint32 // the latest view that was active here: who gives one up before that is awaited by others until their time is over
	failed  bool   // a view could not be activated

	stage    toDo
	stale    bool // a new view is needed
	refused  bool // and a step was refused for that
	streamed bool
	routing  *Routing
	in       backend.Input
	out      backend.Output
	y        backend.Tensor
	sum      backend.Reduction
	tally    *Tally // streamed
}

func (w *World) newNode(rank int) (*node, error) {
	c := w.c
	n := &node{w: w, rank: rank, read: map[*slot]int{}, totals: make([][proto.Kinds]uint64, c.Ranks)}
	w.born++
	binary.LittleEndian.PutUint32(n.id[:], uint32(w.born))
	bytes := func(t backend.DType) int { return size(t) }
	cfg, err := proto.NewLayout(proto.Config{
		MaxRanks: c.Ranks, MaxTokens: c.Tokens, Hidden: c.Hidden, TopK: c.TopK, Experts: c.Experts, InBytes: bytes(c.In), WireBytes: bytes(c.Wire),
		FirstChunk: c.FirstChunk, ChunkRecords: c.ChunkRecords, PoolRecords: c.PoolRecords, Window: c.Window, Lanes: 1,
		Rank: rank, MaxRecv: c.MaxRecv, StreamRows: c.StreamRows, StepTimeout: stepTimeout,
	})
	if err != nil {
		return nil, err
	}
	n.cfg = cfg
	n.store = newStore(n)
	n.remote, n.cut, n.member = make([]*store, c.Ranks), make([]bool, c.Ranks), make([]bool, c.Ranks)
	lane, err := w.backend.NewLane(backend.Spec{Layout: &n.cfg, In: c.In, Wire: c.Wire, Memory: n.memory()})
	if err != nil {
		return nil, err
	}
	n.watch = &watch{Lane: lane, n: n}
	n.exec = exec.New(&n.cfg, n.watch, n, n.store.areas, exec.Options{ExpertAlign: c.Align})
	n.group = proto.NewGroup(&n.cfg, n.id, []*proto.Lane{n.exec.Lane()}, (*council)(n))
	if n.routing, err = NewRouting(c.Shape); err != nil {
		return nil, err
	}
	rows := max(n.cfg.MaxRecv, n.cfg.StreamRows) + n.cfg.Local*max(c.Align, 1)
	n.in = backend.Input{X: tensor(c.In, c.Tokens, c.Hidden), IDs: tensor(backend.I32, c.Tokens, c.TopK), Weights: tensor(backend.F32, c.Tokens, c.TopK)}
	n.out = backend.Output{X: tensor(c.In, rows, c.Hidden)}
	n.y = tensor(c.Wire, rows, c.Hidden)
	n.sum = backend.Reduction{Out: tensor(c.Out, c.Tokens, c.Hidden), Bias: []backend.Tensor{tensor(c.Out, c.Tokens, c.Hidden)}}
	return n, nil
}

func (n *node) memory() backend.Memory {
	a := &n.store.areas
	return backend.Memory{Send: a[exec.Send], Results: a[exec.Results], Y: a[exec.Y]}
}

func tensor(t backend.DType, rows, cols int) backend.Tensor {
	bytes := 4
	if t != backend.I32 {
		bytes = size(t)
	}
	return backend.Tensor{Data: make([]byte, rows*cols*bytes), Type: t, Shape: [3]int{0, rows, cols}}
}

func (n *node) String() string {
	failed, why, blamed, err := n.exec.Failed()
	return fmt.Sprintf("dead %v, view %d, active %v, stale %v, step %d of %d, to %s; received %v, summed %v, failed %v: %v (rank %d) %v; it waits for %v",
		n.dead, n.group.Epoch(), n.group.Active(), n.stale, n.exec.Lane().Step(), n.w.last, toDoNames[n.stage], n.exec.Received(), n.exec.Summed(),
		failed, why, blamed, err, n.group.Awaited())
}

// after is called after each event of the node.
func (n *node) after() {
	if !n.group.Active() {
		n.group.Progress()
	}
	n.unpark()
}

// unpark frees regions that were set aside, once nothing flies towards them.
func (n *node) unpark() {
	if n.parked != nil && !slices.ContainsFunc(n.w.parts, func(p *part) bool { return p.store == n.parked && !p.void }) {
		n.parked = nil
		n.group.Unparked()
	}
}

// act does what the rank has to do next, if it can.
func (n *node) act() bool {
	if failed, _, _, _ := n.exec.Failed(); failed && n.stage != toBegin {
		n.w.report.Failed++
		n.stage, n.stale = toBegin, true
		return true
	}
	switch n.stage {
	case toBegin:
		if n.stale && !n.refused && len(n.watch.tasks) == 0 && n.begin() { // it will not
			return true
		}
		return n.change() || n.begin()
	case toReceive:
		n.receive()
		return true
	case toTake:
		return n.take()
	default:
		return n.summed()
	}
}

// change activates the latest view, or has one made.
func (n *node) change() bool {
	w := n.w
	if n.group.Epoch() == w.view.Epoch && w.outdated() {
		w.publish()
	}
	if n.group.Epoch() >= w.view.Epoch || !n.exec.Lane().Idle() {
		return false
	}
	n.group.Abandon(errors.New("a member died"))
	n.failed = false
	for i := range n.member {
		n.member[i] = slices.ContainsFunc(w.view.Members, func(m proto.Member) bool { return m.Rank == i })
	}
	if err := n.group.Activate(w.view); err != nil {
		w.fault("rank %d: %v", n.rank, err)
	}
	n.exec.Run()
	return true
}

// begin begins the next step, if there is one.
func (n *node) begin() bool {
	lane := n.exec.Lane()
	if !n.group.Active() || n.stale && n.refused || lane.Step() >= n.w.last {
		return false
	}
	step, c := lane.Step()+1, &n.w.c
	if c.Fixed != nil {
		c.Fixed(step, n.routing)
	} else {
		n.w.draw.Step(n.routing, step)
	}
	n.prepare(step)
	switch err := n.exec.Begin(n.w.now, &n.in, backend.Quantize{}, false); {
	case errors.Is(err, hawser.ErrStale):
		n.stale, n.refused = true, true
	case n.stale:
		n.w.fault("rank %d begins step %d, though it needs a new view: %v", n.rank, step, err)
	case err != nil:
		n.w.fault("rank %d: %v", n.rank, err)
	default:
		n.stage = toReceive
	}
	return true
}

// prepare writes what a step sends.
func (n *node) prepare(step uint64) {
	f, tokens := n.w.ref, n.routing.N[n.rank]
	n.in.N = tokens
	f.Input(n.routing, step, n.rank, n.in.X.Data)
	ids, weights := n.routing.Row(n.rank)
	putIDs(n.in.IDs.Data, ids)
	putWeights(n.in.Weights.Data, weights)
	for _, t := range []*backend.Tensor{&n.in.X, &n.in.IDs, &n.in.Weights} {
		t.Shape[1] = tokens
	}
	Poison(n.out.X.Data)
	Poison(n.y.Data)
	n.tally = f.NewTally(n.routing, step, n.rank)
}

func putIDs(b []byte, ids []int32) {
	for i, e := range ids {
		le.PutUint32(b[4*i:], uint32(e))
	}
}

// receive asks for the rows: whole, or in chunks.
func (n *node) receive() {
	n.stage = toTake
	n.streamed = n.w.rng.IntN(4) == 0
	if !n.streamed {
		n.exec.Receive(&n.out)
		return
	}
	n.stream()
}

func (n *node) stream() {
	n.streamed = true
	n.w.report.Streamed++
	if err := n.exec.Stream(&n.out); err != nil {
		if failed, _, _, _ := n.exec.Failed(); !failed {
			n.w.fault("rank %d: %v", n.rank, err)
		}
	}
}

// take takes rows that are there, and sends results.
func (n *node) take() bool {
	switch {
	case !n.streamed && n.exec.Limit() != nil:
		n.stream()
		return true
	case n.streamed && n.exec.Chunk():
		if !n.exec.HalfFree() {
			return false
		}
		n.wrong(n.tally.Chunk(n.exec.Counts(), n.exec.Offsets(), n.out.X.Data))
		n.compute()
		if err := n.exec.CombineChunk(n.y); err != nil {
			n.w.fault("rank %d: %v", n.rank, err)
		}
		return true
	case !n.exec.Received():
		return false
	case n.streamed:
		n.wrong(n.tally.Done(n.outside, n.missing()))
	default:
		n.wrong(n.w.ref.CheckDispatch(n.routing, n.exec.Lane().Step(), n.rank, n.exec.Counts(), n.exec.Offsets(), n.out.X.Data, n.outside, n.missing()))
		n.compute()
	}
	if n.partial() {
		n.w.report.Partial++
	}
	if err := n.exec.Combine(n.w.now, n.y); err != nil {
		n.w.fault("rank %d: %v", n.rank, err)
	}
	n.stage = toSum
	step := n.exec.Lane().Step()
	s, tokens := SumOf(step), n.routing.N[n.rank]
	bias := n.sum.Bias[:1]
	n.w.ref.Before(step, n.rank, tokens, n.sum.Out.Data)
	n.w.ref.Bias(step, n.rank, tokens, bias[0].Data)
	n.sum.Out.Shape[1], bias[0].Shape[1] = tokens, tokens
	n.sum.Accumulate, n.sum.Weights = s.Accumulate, n.in.Weights
	n.sum.Bias = bias[:0]
	if s.Bias {
		n.sum.Bias = bias
	}
	n.exec.Reduce(&n.sum)
	n.after()
	return true
}

func (n *node) compute() {
	n.w.ref.Compute(n.rank, n.exec.Counts(), n.exec.Offsets(), n.out.X.Data, n.y.Data)
}

// outside: the rank is no member.
func (n *node) outside(rank int) bool { return !n.member[rank] }

// missing are the ranks that the step goes on without.
func (n *node) missing() (ranks []int) {
	for i := range n.cfg.MaxRanks {
		if m, _ := n.exec.Lane().Held(i); m {
			ranks = append(ranks, i)
		}
	}
	return ranks
}

func (n *node) partial() bool { return len(n.missing()) > 0 }

// wrong takes note of bytes that differ.
func (n *node) wrong(x Wrong) {
	if x.Bytes > 0 {
		n.w.report.Wrong.note(x.Bytes, "%s", x.First)
		n.w.fault("%d bytes differ: %s", x.Bytes, x.First)
	}
}

// summed ends the step when it is complete.
func (n *node) summed() bool {
	if !n.exec.Summed() {
		return false
	}
	w, step := n.w, n.exec.Lane().Step()
	n.stage = toBegin
	partial := n.exec.PartialError()
	var but func(token int) bool
	gone := n.outside
	if partial != nil {
		w.report.Partial++
		n.stale = true
		if !slices.Equal(partial.Missing, n.missing()) {
			w.fault("rank %d: step %d: %v, but rank %v is missing", n.rank, step, partial, n.missing())
		}
		for _, rank := range partial.Missing {
			if !w.suspect(rank) && w.nodes[rank].entered == n.store.view {
				w.fault("rank %d: step %d: rank %d is missing, to which nothing has happened", n.rank, step, rank)
			}
		}
		// Tokens that are not named have their whole sum, those that are have the sum without who is missing.
		n.wrong(w.ref.CheckCombine(n.routing, step, n.rank, n.sum.Out.Data, n.outside, partial.Tokens.Has))
		gone = func(rank int) bool { return n.outside(rank) || slices.Contains(partial.Missing, rank) }
	}
	n.wrong(w.ref.CheckCombine(n.routing, step, n.rank, n.sum.Out.Data, gone, but))
	n.store.canaries()
	if w.checked[step]++; partial == nil && w.checked[step] == len(w.view.Members) {
		w.report.Steps++
	}
	for s := range w.checked {
		if s+2 < step {
			delete(w.checked, s)
		}
	}
	n.after()
	return true
}
