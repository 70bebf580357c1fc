package proto

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// setting is a small world: who sends what, and how much harm may be done in it.
type setting struct {
	ranks, steps          int
	records               func(step uint64, from, to int) uint32
	first, chunk, pool    int
	window                int
	stream                bool
	split                 bool // bytes may be placed long before they are counted
	kills, lates, cancels int
	rejoins               int  // of ranks that were killed, as another engine
	after                 int  // steps to begin after a change of view; 0: 1
	unended, unfenced     int  // Transfers that end unfenced, fences without a proof
	losses, doubles       int  // of messages
	swift                 bool // Transfers end at once
}

// world is all ranks and the network between them. Nothing in it happens by itself: choices says what may happen next, take lets it.
// It keeps account of every byte: who may write where, and what must be read.
type world struct {
	*setting
	budget setting // what is left of the harm
	nodes  []*node
	parts  []part
	trs    []transfer
	msgs   []message
	downs  [][2]int // a live rank that is to hear that another is dead
	target View
	nexts  map[uint32]uint64
	faults []string
}

// part is a write with an immediate on its way.
type part struct {
	op       Op
	from, to int
	id       ID // of the sender
	t        Target
	view     uint32
	step     uint64
	region   int
	data     string
	placed   bool
	counted  bool
	gone     bool // it will never be placed
	failed   bool // the sender has been told that it is not quiet
	open     bool // the Transfer has not ended
}

// transfer is what the sender waits for.
type transfer struct {
	from int
	id   Transfer
	view uint32
	step uint64
}

type message struct {
	from, to int
	epoch    uint32
	round    int
	toID     ID
	fromID   ID
	data     string
}

// cell is a place in memory that others write.
type cell struct {
	full    bool
	counted bool // chunks
	owner   int  // rank that may write it, and one more; 0: nobody
	from    int
	step    uint64
	piece   uint32
	data    string
}

type task struct {
	kind         string
	rank         int
	piece, chunk uint32
	unfenced     bool
	desc         string
}

// node is a rank: its machines, its memory, and what it has still to do.
type node struct {
	w     *world
	i     int
	alive bool
	id    ID
	cfg   *Layout
	lane  *Lane
	group *Group
	now   Time
	todo  []task
	steps int // to begin

	region, regions int
	view            uint32 // whose immediates are open
	hd, xb          []cell
	mb              [][Window]cell
	pl              []cell
	c               []cell
	counts          [][Kinds]uint64
	gen             []int // of the descriptors that a rank has
	desc            []string
	missing         []bool
	peers           []ID // that the lane writes to
}

func newWorld(s setting) *world {
	w := &world{setting: &s, budget: s, nexts: map[uint32]uint64{}}
	for i := range s.ranks {
		cfg, err := NewLayout(Config{
			MaxRanks: s.ranks, Rank: i, MaxTokens: 8, Hidden: 8, TopK: 2, Experts: s.ranks * 2, InBytes: 1, WireBytes: 2,
			FirstChunk: s.first, ChunkRecords: s.chunk, PoolRecords: s.chunk * s.pool, Lanes: 1, Window: s.window, StepTimeout: time.Second,
		})
		if err != nil {
			panic(err)
		}
		n := &node{w: w, i: i, alive: true, id: ID{byte(i + 1)}, cfg: &cfg, gen: make([]int, s.ranks), desc: make([]string, s.ranks), steps: s.steps}
		n.lane = NewLane(&cfg, n)
		n.group = NewGroup(&cfg, n.id, []*Lane{n.lane}, n)
		w.nodes = append(w.nodes, n)
	}
	w.wantView()
	for _, n := range w.nodes {
		w.check(n.group.Activate(w.target))
	}
	for again := true; again; {
		again = w.settle()
		for len(w.msgs) > 0 {
			w.deliver(0)
			again = true
		}
		for _, n := range w.nodes {
			for len(n.todo) > 0 {
				n.do(0)
				again = true
			}
		}
	}
	return w
}

func (w *world) fault(format string, args ...any) {
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
}

func (w *world) check(err error) {
	if err != nil {
		w.fault("%v", err)
	}
}

// wantView decides on the next view: everybody who is alive.
func (w *world) wantView() {
	w.target = View{Epoch: w.target.Epoch + 1}
	for _, n := range w.nodes {
		if n.alive {
			w.target.Members = append(w.target.Members, Member{n.i, n.id})
		}
	}
}

// renew makes memory as it is at the beginning of a view.
func (n *node) renew() {
	r := n.w.ranks
	n.hd, n.xb, n.mb, n.missing = make([]cell, r), make([]cell, r), make([][Window]cell, r), make([]bool, r)
	n.pl, n.c = make([]cell, n.cfg.PoolChunks), make([]cell, n.cfg.Records())
	n.counts = make([][Kinds]uint64, r)
}

// The lane's wishes.

func (n *node) Pack(step uint64) {
	for _, p := range n.w.parts {
		if p.from == n.i && p.open && (p.op == OpHead || p.op == OpChunk) {
			n.w.fault("rank %d packs step %d while a %v of step %d reads the records", n.i, step, p.op, p.step)
		}
	}
	n.todo = append(n.todo, task{kind: "pack"})
}

func (n *node) PackY(step uint64) {
	n.readsY(step, 0, true)
	n.todo = append(n.todo, task{kind: "packY"})
}

func (n *node) readsY(step uint64, half uint8, all bool) {
	for _, p := range n.w.parts {
		if p.from == n.i && p.open && p.op == OpComb && (all || p.t.Half == half) && p.t.N > 0 {
			n.w.fault("rank %d writes Y of step %d while results of step %d are read from it", n.i, step, p.step)
		}
	}
}

func (n *node) Scatter(op Op, targets []Target) { n.post(op, Transfer{Op: op, Rank: All}, targets) }

func (n *node) Write(op Op, t Target) {
	if op == OpGrant {
		if c := &n.pl[t.Chunk]; (c.owner != 0 || c.full) && !(c.counted && n.missing[c.owner-1]) {
			n.w.fault("rank %d grants chunk %d to rank %d, but rank %d has it", n.i, t.Chunk, t.Rank, c.owner-1)
		} else {
			*c = cell{owner: t.Rank + 1, piece: t.Piece + 1, step: n.lane.step}
		}
	}
	n.post(op, Transfer{Op: op, Rank: t.Rank, Kind: t.Kind}, []Target{t})
}

func (n *node) post(op Op, id Transfer, targets []Target) {
	w := n.w
	w.trs = append(w.trs, transfer{n.i, id, n.lane.view, n.lane.step})
	for _, t := range targets {
		to := w.nodes[t.Rank]
		region, alive := -1, to.alive && to.id == n.peers[t.Rank]
		if _, err := fmt.Sscanf(n.desc[t.Rank], "%d", &region); err != nil || n.desc[t.Rank] != to.descriptors(n.i) && alive && to.group.epoch == n.group.epoch {
			w.fault("rank %d writes to rank %d by descriptors %q, which has %q", n.i, t.Rank, n.desc[t.Rank], to.descriptors(n.i))
		}
		p := part{op: op, id: n.id, from: n.i, to: t.Rank, t: t, view: n.lane.view, step: n.lane.step, region: region, open: true, gone: !alive}
		switch op {
		case OpHead:
			b := make([]byte, n.cfg.HeadBytes)
			first, all := n.lane.Slots(t.Rank)
			n.cfg.PutHeader(b, &Header{View: n.lane.view, Step: n.lane.step, Source: n.i, Tokens: 1, Records: all, Base: first}, []uint32{all})
			p.data = string(b)
		case OpGrant:
			b := make([]byte, GrantBytes)
			(&Grant{n.lane.step, t.Piece, t.Chunk}).Put(b)
			p.data = string(b)
		case OpCancel:
			b, c := make([]byte, CancelBytes), n.lane.Told(t.Rank)
			c.Put(b)
			p.data = string(b)
		}
		w.parts = append(w.parts, p)
	}
}

func (n *node) Head(rank int) []byte {
	c := &n.hd[rank]
	if !c.full {
		n.w.fault("rank %d reads a header of rank %d that is not there", n.i, rank)
	}
	if n.w.records(c.step, rank, n.i) == 0 {
		c.full = false
	}
	return []byte(c.data)
}

func (n *node) Grant(rank, slot int) []byte {
	c := &n.mb[rank][slot]
	if !c.full {
		n.w.fault("rank %d reads a grant of rank %d that is not there", n.i, rank)
	}
	c.full = false
	return []byte(c.data)
}

func (n *node) Cancel(rank int) []byte { return []byte(n.xb[rank].data) }

func (n *node) HeadsIn(uint64) {
	if !n.w.stream {
		n.todo = append(n.todo, task{kind: "receive"})
	}
}

func (n *node) Arrived(rank int, piece, chunk uint32) {
	n.todo = append(n.todo, task{kind: "unpack", rank: rank, piece: piece, chunk: chunk})
}
func (n *node) Received(uint64) { n.todo = append(n.todo, task{kind: "combine"}) }
func (n *node) HalfFree(uint8)  {}
func (n *node) CombIn(uint64)   { n.todo = append(n.todo, task{kind: "reduce"}) }

func (n *node) Missing(step uint64, rank int, why Code) {
	if n.missing[rank] {
		n.w.fault("rank %d: rank %d is missing twice", n.i, rank)
	}
	n.missing[rank] = true
	if s := n.w.setting; s.rejoins+s.kills+s.lates+s.unended == 0 {
		n.w.fault("rank %d goes on without rank %d in step %d, which could have told: %v", n.i, rank, step, why)
	}
	n.harmed("rank %d goes on without rank %d in step %d: %v", n.i, rank, step, why)
}

func (n *node) Failed(step uint64, why Code, blamed int) {
	n.todo = slices.DeleteFunc(n.todo, func(t task) bool { return t.kind != "fence" && t.kind != "recycle" && t.kind != "import" })
	n.harmed("rank %d fails step %d: %v of rank %d", n.i, step, why, blamed)
}

// harmed: without any harm no step may be short of anything.
func (n *node) harmed(format string, args ...any) {
	if s := n.w.setting; s.rejoins+s.kills+s.lates+s.cancels+s.unended == 0 {
		n.w.fault(format, args...)
	}
}

// The group's wishes.

func (n *node) Send(to Member, epoch uint32, round int, data []byte) {
	n.w.msgs = append(n.w.msgs, message{n.i, to.Rank, epoch, round, to.ID, n.id, string(data)})
}
func (n *node) Fence(m Member) { n.todo = append(n.todo, task{kind: "fence", rank: m.Rank}) }

func (n *node) Recycle(epoch uint32, fresh bool) {
	if fresh {
		n.regions++
		n.region = n.regions
	}
	n.view = epoch
	n.renew()
	n.peers = make([]ID, n.w.ranks)
	for r := range n.peers {
		n.peers[r] = n.group.seats[r].id
	}
	n.todo = append(n.todo, task{kind: "recycle"})
}

func (n *node) descriptors(to int) string   { return fmt.Sprintf("%d.%d", n.region, n.gen[to]) }
func (n *node) Descriptors(m Member) []byte { return []byte(n.descriptors(m.Rank)) }
func (n *node) Import(m Member, desc []byte) {
	n.todo = append(n.todo, task{kind: "import", rank: m.Rank, desc: string(desc)})
}
func (n *node) Inactive(err error) { n.harmed("%v", err) }

func (n *node) Active(a Activated) error {
	if next, ok := n.w.nexts[a.Epoch]; ok && next != a.Next[0] {
		n.w.fault("view %d begins with step %d at rank %d, elsewhere with %d", a.Epoch, a.Next[0], n.i, next)
	}
	n.w.nexts[a.Epoch] = a.Next[0]
	if a.Epoch > 1 {
		n.steps = max(n.w.after, 1)
	}
	return nil
}

// do lets a node do one of the things that it has to.
func (n *node) do(at int) {
	t := n.todo[at]
	n.todo = slices.Delete(n.todo, at, at+1)
	switch t.kind {
	case "pack":
		n.lane.Packed()
		if n.w.stream {
			n.w.check(n.lane.Receive(Streamed))
		}
	case "receive":
		if n.lane.phase == receiving {
			n.w.check(n.lane.Receive(Whole))
		}
	case "unpack":
		n.unpack(t)
	case "combine":
		n.w.check(n.lane.Combine(n.now))
	case "packY":
		n.lane.YPacked()
	case "reduce":
		n.reduce()
	case "fence":
		n.w.fence(n, t.rank, t.unfenced)
	case "recycle":
		n.group.Recycled()
		for from := range n.counts {
			for k, total := range n.counts[from] {
				n.lane.Counted(from, Kind(k), total)
			}
		}
	case "import":
		if t.desc != "" {
			n.desc[t.rank] = t.desc
		}
		n.group.Imported(Member{t.rank, n.group.seats[t.rank].id}, nil)
	}
	n.group.Progress()
}

func (n *node) unpack(t task) {
	c := &n.hd[t.rank]
	if t.piece > 0 {
		c = &n.pl[t.chunk]
	}
	if !n.missing[t.rank] && (!c.full || c.from != t.rank || c.step != n.lane.step || c.piece != t.piece) {
		n.w.fault("rank %d unpacks piece %d of rank %d, step %d, and finds %+v", n.i, t.piece, t.rank, n.lane.step, *c)
	}
	c.full, c.counted, c.owner = false, false, 0
	step := n.lane.step
	n.lane.Unpacked(t.rank, t.piece)
	if n.w.stream && !n.missing[t.rank] && n.lane.step == step {
		half := uint8(0)
		if !n.lane.HalfFree(0) {
			half = 1
		}
		n.readsY(step, half, false)
		if n.lane.phase != idle {
			n.w.check(n.lane.CombinePiece(t.rank, t.piece, half))
		}
	}
}

func (n *node) reduce() {
	for r := range n.w.ranks {
		first, k := n.lane.Slots(r)
		for s := first; s < first+k; s++ {
			c := &n.c[s]
			if r != n.i && !n.missing[r] && n.lane.peers[r].member && (!c.full || c.from != r || c.step != n.lane.step) {
				n.w.fault("rank %d sums slot %d of rank %d, step %d, and finds %+v", n.i, s, r, n.lane.step, *c)
			}
			c.full = false
		}
	}
	n.lane.Reduced()
}

// place writes a part's bytes, if they may be written.
func (w *world) place(i int) {
	p := &w.parts[i]
	p.placed = true
	n := w.nodes[p.to]
	if p.region != n.region {
		return // set aside
	}
	if p.view != n.view {
		w.fault("a %v of rank %d, view %d, lands in memory of view %d of rank %d", p.op, p.from, p.view, n.view, n.i)
		return
	}
	put := func(c *cell, ok bool) {
		if c.full || !ok {
			w.fault("%v %d of rank %d, step %d, lands on %+v at rank %d, step %d", p.op, p.t.Piece, p.from, p.step, *c, n.i, n.lane.step)
		}
		*c = cell{full: true, owner: c.owner, from: p.from, step: p.step, piece: p.t.Piece, data: p.data}
	}
	switch p.op {
	case OpHead:
		put(&n.hd[p.from], true)
	case OpCancel:
		put(&n.xb[p.from], true)
	case OpGrant:
		put(&n.mb[p.from][p.t.Kind-KindGrant], true)
	case OpChunk:
		c := &n.pl[p.t.Chunk]
		put(c, c.owner == p.from+1 && c.piece == p.t.Piece && c.step == p.step)
	case OpComb:
		for s := p.t.First; s < p.t.First+p.t.N; s++ {
			put(&n.c[s], n.lane.step == p.step && (n.lane.phase != idle || n.lane.stale))
		}
	}
}

// count lets a part's immediate arrive.
func (w *world) count(i int) {
	if !w.parts[i].placed {
		w.place(i)
	}
	p := &w.parts[i]
	p.counted = true
	if n := w.nodes[p.to]; p.op == OpChunk && p.region == n.region && p.view == n.view {
		n.pl[p.t.Chunk].counted = true
	}
	if n := w.nodes[p.to]; p.view == n.view && p.region == n.region {
		n.counts[p.from][p.t.Kind]++
		n.lane.Counted(p.from, p.t.Kind, n.counts[p.from][p.t.Kind])
		n.group.Progress()
	}
}

// mine says whether a part belongs to a Transfer.
func (t *transfer) mine(p *part) bool {
	return p.open && p.from == t.from && p.op == t.id.Op && p.step == t.step && p.view == t.view && (t.id.Rank == All || p.to == t.id.Rank && p.t.Kind == t.id.Kind)
}

func (w *world) ends(t *transfer) bool {
	for i := range w.parts {
		if p := &w.parts[i]; t.mine(p) && !p.counted && !p.gone && !p.failed {
			return false
		}
	}
	return true
}

// end completes a Transfer.
func (w *world) end(at int) {
	t := w.trs[at]
	w.trs = slices.Delete(w.trs, at, at+1)
	n := w.nodes[t.from]
	for i := range w.parts {
		if p := &w.parts[i]; t.mine(p) {
			p.open = false
			if (p.gone || p.failed) && !p.counted && n.alive {
				n.lane.Fault(p.to, p.failed)
			}
		}
	}
	if n.alive {
		n.lane.Ended(t.id)
		n.group.Progress()
	}
	w.sweep()
}

func (w *world) sweep() {
	w.parts = slices.DeleteFunc(w.parts, func(p part) bool { return !p.open && (p.counted || p.gone) })
}

// fence proves that nothing of a rank lands any more, or says that it cannot.
func (w *world) fence(n *node, rank int, unfenced bool) {
	x, id := w.nodes[rank], n.group.seats[rank].holder
	for i := range w.parts {
		p := &w.parts[i]
		if p.from == rank && p.id == id && p.to == n.i && !p.counted && !unfenced || p.from == n.i && p.to == rank && !p.counted {
			p.gone = true
		}
	}
	n.gen[rank]++
	var cut []message
	w.msgs = slices.DeleteFunc(w.msgs, func(m message) bool {
		if between := m.from == n.i && m.to == rank || m.from == rank && m.to == n.i; between {
			cut = append(cut, m)
			return true
		}
		return false
	})
	for _, m := range cut {
		w.unsent(m)
	}
	if x.alive {
		x.group.PeerDown(n.i)
	}
	w.sweep()
	n.group.Fenced(Member{rank, id}, unfenced)
}

func (w *world) unsent(m message) {
	if s := w.nodes[m.from]; s.alive {
		s.group.Unsent(Member{m.to, m.toID}, m.epoch, m.round)
	}
}

func (w *world) deliver(i int) {
	m := w.msgs[i]
	w.msgs = slices.Delete(w.msgs, i, i+1)
	if n := w.nodes[m.to]; n.alive {
		if err := n.group.Message(m.fromID, []byte(m.data)); err != nil && !errors.Is(err, ErrCorrupt) {
			w.fault("%v", err)
		}
	}
}

// kill ends a rank. What it has begun may still land.
func (w *world) kill(x *node) {
	x.alive = false
	x.todo = nil
	for i := range w.parts {
		p := &w.parts[i]
		if p.to == x.i && !p.counted {
			p.gone = true
		}
		if p.from == x.i {
			p.open = false
		}
	}
	w.trs = slices.DeleteFunc(w.trs, func(t transfer) bool { return t.from == x.i })
	w.msgs = slices.DeleteFunc(w.msgs, func(m message) bool { return m.to == x.i })
	w.sweep()
	for _, n := range w.nodes {
		if n.alive {
			w.downs = append(w.downs, [2]int{n.i, x.i})
		}
	}
	if slices.ContainsFunc(w.target.Members, func(m Member) bool { return m.Rank == x.i }) && w.changing() {
		for _, n := range w.nodes {
			if n.alive {
				n.group.Abandon(errors.New("a member died"))
			}
		}
		w.wantView()
	}
}

// rejoin starts a rank again, as another engine that has forgotten everything.
func (w *world) rejoin(x *node) {
	x.alive = true
	x.id[1]++
	x.regions++
	x.region, x.view, x.steps, x.now = x.regions, 0, 0, 0
	x.gen, x.desc, x.peers = make([]int, w.ranks), make([]string, w.ranks), make([]ID, w.ranks)
	x.lane = NewLane(x.cfg, x)
	x.group = NewGroup(x.cfg, x.id, []*Lane{x.lane}, x)
	for _, n := range w.nodes {
		if n.alive && n != x && w.changing() {
			n.group.Abandon(errors.New("a member came"))
		}
	}
	w.wantView()
}

// changing: some rank has tried the view that is wanted, and not all members are active in it.
func (w *world) changing() bool {
	tried := false
	for _, n := range w.nodes {
		if n.alive && (n.group.Epoch() != w.target.Epoch || !n.group.Active()) {
			tried = true
		}
	}
	return tried
}
