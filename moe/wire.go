package moe

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// wire posts what a lane writes, and says what has come: immediates and ends of Transfers. It is exec.Wire over an engine. A step costs
// one Submit for its headers and one for its results; what changes from step to step are offsets, lengths and the mask of targets.
//
// Owner: its lane.
type wire struct {
	cfg    *proto.Layout
	values proto.Values
	imms   *hawser.Reserved
	bell   *hawser.Bell
	queue  *hawser.Queue
	ends   []hawser.Done
	lane   *Lane
	stats  *laneCounts

	rankBits int // of a value

	view   uint32
	blocks []block // open, of the view

	ranks   []int // of the peers, in the order of targets
	at      []int // target of a rank, -1 without
	peers   []link
	heads   post
	cancels post
	combs   []post // Window targets for each peer, one for each value; as many peers in one as MaxTargets allows
	combing int    // Transfers of results under way

	refused []refusal // posts that the engine did not take
	spare   []refusal
}

// block is a block of counters, which begins with a value of kind first.
type block struct {
	b     *hawser.Block
	first int // of kind<<rank bits | rank
}

// post is a template of a scatter, and what changes of it.
type post struct {
	t    *hawser.Template
	args hawser.Args
}

// link is what writes to one peer, and over which session.
type link struct {
	session            uint64
	chunk, grant, comb write
}

// noSession is that of a peer that is not bound yet: the end of an earlier one is no concern of this view.
const noSession = math.MaxUint64

type write struct {
	t    *hawser.Template
	args hawser.Args
}

type refusal struct {
	cookie uint64
	err    error
}

// blockBits is how many bits of a value count inside of one block, when the values of a group are reserved: a block has those of
// several kinds while ranks are few, because an engine has only so many blocks.
func blockBits(l *proto.Layout) int { return max(bits.Len(uint(l.MaxRanks-1)), minBlock) }

const minBlock = 6 // 26 bits of a group, and 2^20 blocks of an engine's range

func newWire(e *hawser.Engine, l *Lane, v proto.Values, imms *hawser.Reserved) wire {
	bell, cfg := e.NewBell(), l.cfg
	depth := 2 * (3 + (3*proto.Window+1)*cfg.MaxRanks) // twice what the gate allows to be under way
	w := wire{
		cfg: cfg, values: v, imms: imms, bell: bell, queue: bell.NewQueue(depth), ends: make([]hawser.Done, 64), lane: l, stats: &l.counts,
		rankBits: bits.Len(uint(cfg.MaxRanks - 1)),
		at:       make([]int, cfg.MaxRanks), peers: make([]link, cfg.MaxRanks),
	}
	return w
}

// openView lets immediates of a view count.
func (w *wire) openView(view uint32) error {
	w.view = view
	if w.cfg.MaxRanks == 1 {
		return nil
	}
	per := blockBits(w.cfg)
	kinds := proto.Kind(1) << (per - w.rankBits) // of a block
	for k := proto.Kind(0); k < proto.Kinds; k += kinds {
		if kinds == 1 && k > proto.KindCancel && k < proto.KindComb {
			continue // nobody uses them
		}
		v := w.values.Of(view, w.lane.index, k, 0)
		b, err := w.bell.Open(w.imms, int(v&(1<<groupBits-1))>>per)
		if err != nil {
			w.closeView()
			return fmt.Errorf("open immediates of view %d, lane %d: %w", view, w.lane.index, err)
		}
		w.blocks = append(w.blocks, block{b, int(k) << w.rankBits})
	}
	return nil
}

// groupBits are those of a value that do not name the group.
const groupBits = 26

// closeView makes immediates of the view stale.
func (w *wire) closeView() {
	for _, b := range w.blocks {
		b.b.Close()
	}
	w.blocks = w.blocks[:0]
}

// bind prepares all writes to the members of a view: those whose remotes are there.
func (w *wire) bind(e *hawser.Engine, m *memory) error {
	w.ranks = w.ranks[:0]
	w.cfg.Order(func(r int) { // the engine posts in the order of the targets
		w.at[r] = -1
		if m.remotes[r].block != nil {
			w.at[r] = len(w.ranks)
			w.ranks = append(w.ranks, r)
		}
	})
	w.heads, w.cancels, w.combs = post{}, post{}, nil
	if len(w.ranks) == 0 {
		return nil
	}
	for _, r := range w.ranks {
		if err := w.bindPeer(e, m, r); err != nil {
			return fmt.Errorf("writes to rank %d: %w", r, err)
		}
	}
	return w.bindAll(e, m)
}

func (w *wire) bindPeer(e *hawser.Engine, m *memory, rank int) error {
	to, l := &m.remotes[rank], &w.peers[rank]
	l.session = to.peer.Session()
	for _, x := range []struct {
		w    *write
		from exec.Area
		to   *hawser.Remote
	}{{&l.chunk, exec.Send, to.pool}, {&l.grant, exec.Sources, to.block}, {&l.comb, exec.Y, to.results}} {
		t, err := e.Prepare(hawser.Write{Src: m.areas[x.from].All(), Dst: x.to.All(), Imm: hawser.Imm(0)})
		if err != nil {
			return err
		}
		*x.w = write{t, t.Args()}
	}
	return nil
}

func (w *wire) bindAll(e *hawser.Engine, m *memory) (err error) {
	heads, cancels, combs := make([]hawser.Target, 0, len(w.ranks)), make([]hawser.Target, 0, len(w.ranks)), make([]hawser.Target, 0, proto.Window*len(w.ranks))
	for _, r := range w.ranks {
		to := &m.remotes[r]
		heads = append(heads, hawser.Target{Dst: to.block.All()})
		cancels = append(cancels, hawser.Target{Dst: to.block.All()})
		for range proto.Window {
			combs = append(combs, hawser.Target{Dst: to.results.All()})
		}
	}
	if w.heads, err = newPost(e, m.areas[exec.Send], heads); err != nil {
		return err
	}
	if w.cancels, err = newPost(e, m.areas[exec.Sources], cancels); err != nil {
		return err
	}
	for len(combs) > 0 {
		n := min(len(combs), hawser.MaxTargets)
		p, err := newPost(e, m.areas[exec.Y], combs[:n])
		if err != nil {
			return err
		}
		w.combs, combs = append(w.combs, p), combs[n:]
	}
	return nil
}

func newPost(e *hawser.Engine, from *hawser.Region, targets []hawser.Target) (post, error) {
	t, err := e.Prepare(hawser.Scatter{Src: from.All(), Targets: targets})
	if err != nil {
		return post{}, err
	}
	a := t.Args()
	a.Targets, a.Mask = make([]hawser.TargetArgs, len(targets)), make([]uint64, (len(targets)+63)/64)
	return post{t, a}, nil
}

// Scatter implements exec.Wire.
//
// hot:
func (w *wire) Scatter(op proto.Op, posts []exec.Post) {
	switch op {
	case proto.OpComb:
		w.scatterResults(posts)
	case proto.OpHead:
		w.scatter(&w.heads, op, posts)
	default:
		w.scatter(&w.cancels, op, posts)
	}
}

// hot:
func (w *wire) scatter(to *post, op proto.Op, posts []exec.Post) {
	clear(to.args.Mask)
	for i := range posts {
		p := &posts[i]
		to.aim(w.at[p.Rank], p, p.Len, 1, w.value(p.Kind))
		w.stats.sent(p.Rank, p.Len)
	}
	w.submit(to.t, &to.args, cookie(op, proto.All, 0))
}

// scatterResults sends to each peer one part for each piece, as the posts say, but those with the same value as one target: all of a
// peer's results are one run, so it is of no importance which part of it a value speaks of, once all are counted.
//
// hot:
func (w *wire) scatterResults(posts []exec.Post) {
	for i := range w.combs {
		clear(w.combs[i].args.Mask)
	}
	for i := 0; i < len(posts); {
		first, n := i, 1
		for i++; i < len(posts) && posts[i].Rank == posts[first].Rank; i++ {
			n++
		}
		at := w.at[posts[first].Rank] * proto.Window
		to := &w.combs[at/hawser.MaxTargets]
		for x, next := 0, first; x < w.cfg.Window && x < n; x++ {
			parts := (n - x + w.cfg.Window - 1) / w.cfg.Window
			length := int64(0)
			for _, p := range posts[next : next+parts] {
				length += p.Len
			}
			to.aim((at+x)%hawser.MaxTargets, &posts[next], length, parts, w.value(proto.KindComb+proto.Kind(x)))
			w.stats.sent(posts[first].Rank, length)
			next += parts
		}
	}
	w.combing = len(w.combs)
	for i := range w.combs {
		w.submit(w.combs[i].t, &w.combs[i].args, cookie(proto.OpComb, proto.All, proto.Kind(i)))
	}
}

// hot:
func (p *post) aim(i int, x *exec.Post, n int64, parts int, imm hawser.OptImm) {
	p.args.Mask[i/64] |= 1 << (i % 64)
	p.args.Targets[i] = hawser.TargetArgs{SrcOff: uint64(x.Src), DstOff: uint64(x.Dst), Len: uint64(n), Imm: imm, Parts: parts}
}

// Write implements exec.Wire.
//
// hot:
func (w *wire) Write(op proto.Op, p exec.Post) {
	l := &w.peers[p.Rank]
	x := &l.comb
	switch op {
	case proto.OpChunk:
		x = &l.chunk
	case proto.OpGrant:
		x = &l.grant
	case proto.OpHead, proto.OpComb, proto.OpCancel:
	}
	x.args.SrcOff, x.args.DstOff, x.args.Len, x.args.Imm = uint64(p.Src), uint64(p.Dst), uint64(p.Len), w.value(p.Kind)
	w.stats.wrote(op, p.Rank, p.Len)
	w.submit(x.t, &x.args, cookie(op, p.Rank, p.Kind))
}

// value is the immediate of a kind that this rank sends.
//
// hot:
func (w *wire) value(k proto.Kind) hawser.OptImm {
	return hawser.Imm(w.values.Of(w.view, w.lane.index, k, w.cfg.Rank))
}

// submit posts. What the engine refuses has failed, which is told with the next ends.
//
// hot:
func (w *wire) submit(t *hawser.Template, a *hawser.Args, cookie uint64) {
	w.stats.posts.Add(1)
	if err := w.queue.Submit(t, *a, cookie); err != nil {
		w.refused = append(w.refused, refusal{cookie, err})
		w.bell.Ring()
	}
}

// cookie names a Transfer.
func cookie(op proto.Op, rank int, k proto.Kind) uint64 {
	return uint64(op)<<56 | uint64(k)<<48 | uint64(uint32(rank+1))
}

func transferOf(cookie uint64) proto.Transfer {
	return proto.Transfer{Op: proto.Op(cookie >> 56), Kind: proto.Kind(cookie >> 48), Rank: int(uint32(cookie)) - 1}
}

// take tells x what has come, and reports whether anything had.
//
// hot:
func (w *wire) take(x *exec.Exec) (any bool) {
	var now proto.Time
	for i := range w.blocks {
		b := &w.blocks[i]
		for word := range b.b.Words() {
			for m := b.b.Changed(word); m != 0; m &= m - 1 {
				at := 64*word + bits.TrailingZeros64(m)
				k, rank := proto.Kind((b.first+at)>>w.rankBits), (b.first+at)&(1<<w.rankBits-1)
				if rank < w.cfg.MaxRanks && k < proto.Kinds {
					if !any {
						now = w.lane.now()
					}
					w.lane.came(rank, k, now)
					x.Counted(rank, k, b.b.Counter(at).Load())
				}
				any = true
			}
		}
	}
	for n := len(w.ends); n == len(w.ends); {
		n = w.queue.Poll(w.ends)
		for i := range w.ends[:n] {
			w.ended(x, w.ends[i].Cookie, w.ends[i].Err)
			w.ends[i].Err = nil
			any = true
		}
	}
	for len(w.refused) > 0 {
		w.refused, w.spare = w.spare[:0], w.refused
		for _, r := range w.spare {
			w.ended(x, r.cookie, r.err)
		}
		any = true
	}
	return any
}

// ended tells x of the end of a Transfer.
//
// hot:
func (w *wire) ended(x *exec.Exec, cookie uint64, err error) {
	t := transferOf(cookie)
	if err != nil {
		w.faults(x, t, err)
	}
	if t.Op == proto.OpComb && t.Rank == proto.All {
		t.Kind = 0
		if w.combing--; w.combing > 0 {
			return
		}
	}
	x.Ended(t)
}

// faults tells x for which peers a Transfer has failed.
func (w *wire) faults(x *exec.Exec, t proto.Transfer, err error) {
	var many *hawser.ScatterError
	switch {
	case errors.As(err, &many):
		for i := range many.Failed {
			f := &many.Failed[i]
			x.Fault(w.rankOf(t, f.Index), errors.Is(f.Err, hawser.ErrUnfenced))
		}
	case t.Rank != proto.All:
		x.Fault(t.Rank, errors.Is(err, hawser.ErrUnfenced))
	case errors.Is(err, hawser.ErrClosed):
		x.Cancel(proto.CodeClosed)
	default: // the engine did not take it
		x.Cancel(proto.CodeBackend)
	}
}

func (w *wire) rankOf(t proto.Transfer, target int) int {
	if t.Op != proto.OpComb {
		return w.ranks[target]
	}
	return w.ranks[(int(t.Kind)*hawser.MaxTargets+target)/proto.Window]
}
