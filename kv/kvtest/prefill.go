package kvtest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// joinWait is that of the prefillers.
const joinWait = 3 * time.Second

// prefiller is a host with a Prefiller and its inference engine, which is in engine.go.
type prefiller struct {
	host
	m        *proto.Prefiller
	instance int
	member   int
	mem      *memory
	window   int
	full     proto.Time // the network engine takes no writes until then
	wakes    bool       // Room is on its way
	links    map[proto.LinkID]*imported
	reading  [][]int // by group and page: writes that may still read it
	draining bool
	closed   bool

	// The inference engine.
	pools     []*pool.Pool
	jobs      map[proto.JobID]*job
	order     []*job // not over
	passes    []*pass
	words     []uint64 // by rank
	woken     []bool   // by rank: Progress is on its way
	callAt    proto.Time
	running   bool
	begins    bool // an event will begin passes
	gen       uint8
	expecting *asked // Expect is under way
}

// imported is a link whose descriptors P has.
type imported struct {
	x      *pair
	serial uint64
	ok     bool
	forgot bool
}

func (w *world) startPrefiller(instance, member int) {
	g := &w.shape.src.Members[member]
	p := &prefiller{
		instance: instance, member: member, mem: newMemory(g), window: []int{4, 9, 128}[w.rng.IntN(3)],
		links: map[proto.LinkID]*imported{}, jobs: map[proto.JobID]*job{},
		words: make([]uint64, len(g.Ranks)), woken: make([]bool, len(g.Ranks)),
	}
	name := fmt.Sprintf("p%d.%d", instance, member)
	w.born(&p.host, name, name)
	pages := 0
	for i := range g.Groups {
		n := w.poolPages(w.shape.src, i)
		pages += n
		p.reading = append(p.reading, make([]int, n))
		pl, err := pool.New(n, w.sc.Seed)
		if err != nil {
			panic(err)
		}
		p.pools = append(p.pools, pl)
	}
	cfg := proto.PrefillerConfig{
		Instance: fmt.Sprintf("p%d", instance), Member: member, Topology: w.shape.src, Options: layout.Options{AllowSmallWrites: true},
		Pages: pages, Jobs: []int{3, 16}[w.rng.IntN(2)], JoinWait: joinWait, Verify: w.sc.Digests,
	}
	cfg.Window.Writes = p.window
	m, err := proto.NewPrefiller(cfg, p)
	if err != nil {
		panic(err)
	}
	p.m, p.host.m = m, m
	w.prefillers = append(w.prefillers, p)
	w.at[name] = p
}

// Send and what follows is [proto.PrefillerOut].
func (p *prefiller) Send(to proto.Peer, data []byte) {
	x := p.w.pairOf(to, p.id)
	if x == nil {
		p.w.fail("model", "%s: peer %d is not known", p.name, to)
		return
	}
	p.w.judge.fromP(x, data)
	x.send(atP, data)
}

func (p *prefiller) Import(l proto.LinkID, from proto.Peer, h *proto.Hello) {
	w := p.w
	x := w.pairOf(from, p.id)
	i := &imported{x: x, serial: binary.LittleEndian.Uint64(h.Descriptors[0]) & (1<<32 - 1)}
	if p.links[l] != nil {
		w.fail("model", "%s: link %d is imported twice", p.name, l)
	}
	p.links[l] = i
	p.do(min(w.delay(), time.Second), func() {
		var err error
		switch {
		case x.s == nil || !x.s.up[atP]:
			err = hawser.ErrPeerDown
		case i.serial <= x.fenced || w.chance(w.sc.Net.Import):
			err = hawser.ErrStale
		}
		i.ok = err == nil
		p.m.Imported(w.now, l, err)
	})
}

func (p *prefiller) Forget(l proto.LinkID) {
	i := p.links[l]
	switch {
	case i == nil || i.forgot:
		p.w.fail("model", "%s: Forget of link %d, which is not there", p.name, l)
		return
	case i.x.s != nil:
		for _, o := range i.x.s.ops {
			if o.link == i {
				p.w.fail("I2", "%s: Forget of link %d, which has writes outstanding", p.name, l)
			}
		}
	}
	i.forgot = true
}

// begin makes an operation, if the engine takes one now.
func (p *prefiller) begin(cookie uint64, w *proto.Posting, writes int) (*op, *attempt, error) {
	world := p.w
	l, j := p.links[w.Link], p.jobs[w.Job]
	if l == nil || !l.ok || l.forgot || j == nil {
		world.fail("model", "%s: post on link %d for job %d: no such link or job", p.name, w.Link, w.Job)
		return nil, nil, hawser.ErrInvalid
	}
	x := l.x
	a := x.d.attempts[w.Seq]
	if x.s == nil || !x.s.up[atP] {
		return nil, nil, hawser.ErrPeerDown
	}
	if world.now < p.full || world.chance(world.sc.Net.NoRoom) {
		if !p.wakes {
			p.wakes = true
			p.do(max(p.full-world.now, 0)+world.delay(), func() {
				p.wakes = false
				p.m.Room(world.now)
			})
		}
		return nil, nil, proto.ErrRoom
	}
	world.judge.posts(p, x, a, w, writes)
	if world.broken != nil {
		return nil, nil, hawser.ErrInvalid
	}
	if !j.sourced {
		world.fail("I2", "%s: a write of %s, whose source pages were given back", p.name, a)
	}
	o := &op{x: x, s: x.s, cookie: cookie, job: j, link: l, writes: make([]*write, 0, writes)}
	return o, a, nil
}

// launch starts an operation.
func (p *prefiller) launch(o *op, a *attempt) {
	a.writer(p).outstanding += len(o.writes)
	o.job.outstanding++
	p.w.Posts++
	o.start()
}

func (p *prefiller) Post(cookie uint64, w *proto.Posting) (uint64, error) {
	o, a, err := p.begin(cookie, w, w.Batch.N)
	if err != nil {
		return 0, err
	}
	group := w.Batch.Group()
	all := make([]write, w.Batch.N)
	sum := uint64(0)
	for i := range all {
		lw := w.Batch.Write(i)
		src, dst := w.Src.Index[lw.SrcPage-w.Src.First], w.Dst.Index[lw.DstPage-w.Dst.First]
		from := p.mem.bytes[lw.Src.Base+int64(src)*lw.Src.Page+lw.SrcOff:][:lw.Len]
		t := &all[i]
		*t = write{
			x: o.x, s: o.s, a: a, imm: w.Imm, serial: o.link.serial, from: from, held: slices.Clone(from),
			to:  o.x.d.mem.bytes[lw.Dst.Base+int64(dst)*lw.Dst.Page+lw.DstOff:][:lw.Len],
			src: src, group: group, page: int(dst), sum: lw.Layer / proto.SumLayers,
			key: uint32(lw.Layer)<<24 ^ uint32(lw.Plane)<<20 ^ uint32(lw.Unit)<<8 ^ uint32(lw.Rep),
		}
		p.reading[group][src]++
		sum += t.digest(t.held)
		o.writes = append(o.writes, t)
	}
	p.launch(o, a)
	return sum, nil
}

func (p *prefiller) PostTail(cookie uint64, w *proto.Posting) (uint64, error) {
	o, a, err := p.begin(cookie, w, 1)
	if err != nil {
		return 0, err
	}
	from := o.job.tail
	if from == nil {
		p.w.fail("I2", "%s: the tail of %s is sent, and was not given", p.name, a)
		return 0, hawser.ErrInvalid
	}
	t := &write{
		x: o.x, s: o.s, a: a, imm: w.Imm, serial: o.link.serial, from: from, held: slices.Clone(from),
		to: o.x.d.tails[w.TailSlot*wordBytes:][:wordBytes], group: -1, page: int(w.TailSlot), sum: -1,
	}
	o.writes = append(o.writes, t)
	p.launch(o, a)
	return t.digest(t.held), nil
}

func (p *prefiller) Note(n proto.ServeNote) { p.w.servedNote(p.name, n) }

// digest is what a write adds to the sums.
func (t *write) digest(b []byte) uint64 {
	h := mix(t.key, uint32(len(b)))
	for ; len(b) >= 4; b = b[4:] {
		h = mix(h, binary.LittleEndian.Uint32(b))
	}
	return uint64(h)
}

// close ends the host when its machine is done.
func (p *prefiller) close(after proto.Time) {
	p.m.Close(p.w.now)
	p.closed = true
	p.waitDone(after, p.w.now+30*time.Second)
}

func (p *prefiller) waitDone(after, until proto.Time) {
	w := p.w
	switch {
	case p.dead:
	case p.m.Done():
		w.note("%s has closed", p.name)
		w.crash(&p.host)
		w.after(after, func() { w.startPrefiller(p.instance, p.member) })
	case w.now > until:
		w.fail("I9", "%s: Close has not come to its end in %v", p.name, 30*time.Second)
	default:
		w.after(100*time.Millisecond, func() { p.waitDone(after, until) })
	}
}
