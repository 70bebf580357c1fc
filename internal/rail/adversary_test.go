package rail

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// The adversary: the code that workers run, on a simulated network, stepped in an order that a seed decides. Nothing else moves:
// no goroutine, no clock. Equal seeds give equal runs.

var (
	simSeed = flag.Uint64("sim.seed", 0, "run only the schedule of this seed, and tell what happens")
	simTime = flag.Duration("sim.time", 2*time.Second, "for how long random schedules are tried")
	simRuns = flag.Int("sim.runs", 1<<30, "how many random schedules are tried at most")
)

const (
	cellLen   = 3000
	maxOps    = 64     // of a run
	settling  = 300    // events after the last end: what comes too late comes then
	maxEvents = 200000 // of a run; one takes some thousands
	recovery  = 1000   // ticks after which every link is back: more than the longest pause, for each rail that it may join
)

// story is what happens in one run.
type story struct {
	seed    uint64
	hosts   int
	rails   [2]int // of host 0, and of the others
	ops     int
	fault   int // the number of the event before which something fails; -1: at random; -2: never
	kind    int // of the fault, see world.fail
	without guard
	ordered bool
	crowded bool // many operations have immediates of one class
}

// adversaryWorld is some hosts, the channels between them, and what must be true of them.
type adversaryWorld struct {
	story
	rng     *rand.Rand
	f       *sim.Fabric
	host    []*simHost
	jobs    []*job
	pool    []*Op // operations that have ended
	events  int
	faults  int
	stalled time.Duration // until then some NIC may do nothing
	log     []string
	loud    bool
	wrong   string // the first thing that is not as it must be
}

// simHost is one engine without its goroutines: a group, counters, memory.
type simHost struct {
	w     *adversaryWorld
	name  string
	g     *Group
	imms  *imm.Table
	peers []*Peer              // by host
	src   imm.Source           // as others see it
	in    [][]*wire.LinkNotice // notices on their way here, by host
	dst   []byte               // where others write; a cell for each job
	out   []byte               // what it writes, until that has ended,
	want  []byte               // and how it arrives
	dstMR *Memory
	srcMR *Memory
	msgs  map[uint32]int
	ended []bool // sessions, by host,
	quiet []bool // and those of them that are proved silent
}

// job is what is asked of an operation, as it would be filled, and what is known of it.
type job struct {
	Op
	run    *Op // the operation that does it, until it has ended
	w      *adversaryWorld
	id     int
	from   int
	to     int
	remote *Remote
	count  uint64 // immediates that it carries
	bytes  []span // that it writes, in the destination
	ends   int
	read   bool // the receiver has taken the memory back
	bad    bool // the receiver refuses it
	closed bool // its remote was closed
}

func (j *job) Complete(op *Op) {
	w := j.w
	j.ends++
	w.note("job %d ends: %v", j.id, op.Status)
	if j.ends > 1 || op != j.run {
		w.fail("job %d ended twice", j.id)
	}
	if op.inflight != 0 || op.listed || len(op.redo) != 0 || op.begun || op.Status == provider.StatusOK && op.frags != 0 {
		w.fail("job %d ends with open accounts: %+v", j.id, op)
	}
	j.Status = op.Status
	if op.Status == provider.StatusOK && !j.read {
		w.checkBytes(j, "its end")
		if !j.HasImm {
			w.take(j)
		}
	}
	for _, s := range j.bytes { // the memory is the caller's again
		fill(w.host[j.from].out[s.from:s.to], scrap)
	}
	if w.rng.IntN(2) == 0 { // and so is the operation
		op.Reset()
	} else {
		op.Rewind()
	}
	j.run, w.pool = nil, append(w.pool, op)
}

// start makes an operation for a job, of one that has ended if possible.
func (w *adversaryWorld) start(j *job) *Op {
	w.note("job %d: %s from %d to %d, imm %v %d, %d parts of %d, last %v", j.id, []string{"", "write", "pages", "signal", "send"}[j.Kind], j.from, j.to, j.HasImm, j.Op.Imm, j.Parts, j.Len, j.ImmLast)
	op := new(Op)
	if n := len(w.pool); n > 0 {
		op, w.pool = w.pool[n-1], w.pool[:n-1]
	}
	op.Kind, op.HasImm, op.ImmLast, op.Imm, op.Rail, op.Parts = j.Kind, j.HasImm, j.ImmLast, j.Op.Imm, j.Rail, j.Parts
	op.Peer, op.Owner, op.Src, op.Dst, op.Len = j.Peer, j, j.Src, j.Dst, j.Len
	op.SrcOff, op.DstOff, op.SrcStride, op.DstStride = j.SrcOff, j.DstOff, j.SrcStride, j.DstStride
	op.SrcIdx, op.DstIdx, op.Data = slices.Clone(j.SrcIdx), slices.Clone(j.DstIdx), slices.Clone(j.Data)
	j.run = op
	return op
}

type noBell struct{}

func (noBell) Wake()             {}
func (noBell) FD() int           { return -1 }
func (noBell) Watch(int) error   { return nil }
func (noBell) Unwatch(int) error { return nil }

func (w *adversaryWorld) fail(format string, args ...any) {
	if w.wrong == "" {
		w.wrong = fmt.Sprintf(format, args...)
		w.note("WRONG: %s", w.wrong)
	}
}

func (w *adversaryWorld) note(format string, args ...any) {
	if w.loud {
		w.log = append(w.log, fmt.Sprintf("%6d %8v ", w.events, w.f.Now())+fmt.Sprintf(format, args...))
	}
}

// Sink.

func (h *simHost) index() int { return int(h.name[0] - 'a') }

func (h *simHost) Imm(p *Peer, v uint32) {
	from := p.Tag.(int)
	if _, err := h.imms.Add(&h.w.host[from].src, v); err != nil {
		h.w.fail("count %d: %v", v, err)
	}
	h.w.note("%s counts %d", h.name, v)
	h.w.counted(h, v)
}

func (h *simHost) Message(_ *Peer, m *Message) {
	id := binary.LittleEndian.Uint32(m.Data)
	h.msgs[id]++
	h.w.note("%s gets message %d", h.name, id)
	if h.msgs[id] > 1 {
		h.w.fail("message %d arrived twice", id)
	}
	h.g.Release(m)
}

func (h *simHost) Link(p *Peer, i int, up bool, why string) {
	h.w.note("%s: link %d to %c is up %v: %s", h.name, i, 'a'+rune(p.Tag.(int)), up, why)
}
func (h *simHost) Fenced(p *Peer, proved bool) {
	h.quiet[p.Tag.(int)] = proved
	if !proved {
		h.g.Call(func(g *Group) { g.Fence(p) })
	}
}
func (h *simHost) Dead(r int, _ error) { h.w.note("%s: rail %d is dead", h.name, r) }
func (h *simHost) GiveUp(p *Peer, why string, _ bool) {
	h.w.fail("%s gives %c up: %s", h.name, 'a'+rune(p.Tag.(int)), why)
}

func (h *simHost) Tell(p *Peer, n *wire.LinkNotice) {
	to := p.Tag.(int)
	var m wire.LinkNotice
	if err := wire.Parse(wire.Append(nil, n), &m); err != nil {
		h.w.fail("notice %+v: %v", n, err)
	}
	h.w.host[to].in[h.index()] = append(h.w.host[to].in[h.index()], &m)
}

// Keys is answered by the owner at once, or when it is asked again.
func (h *simHost) Keys(r *Remote) { h.resolve(r) }

func (h *simHost) resolve(r *Remote) {
	owner := h.w.host[r.Peer.Tag.(int)]
	owner.g.Call(func(g *Group) {
		keys, err := g.Grant(owner.dstMR, owner.peers[h.index()], 0, uint64(len(owner.dst)))
		switch {
		case err == nil:
			h.g.Call(func(g *Group) { g.SetKeys(r, keys) })
		case errors.Is(err, provider.ErrBusy):
			h.resolve(r)
		default:
			h.w.fail("grant: %v", err)
		}
	})
}

// Memory of users holds 1 .. 0xDD while it waits to be written, and something else when it is theirs again.
const (
	scrap = 0xDF // at the sender
	mark  = 0xEE // at the receiver
)

// counted looks at jobs whose immediates are all here: their bytes are, and stay as the receiver leaves them.
func (w *adversaryWorld) counted(h *simHost, v uint32) {
	n := h.imms.Counter(v).Load()
	var want uint64
	for _, j := range w.jobs {
		if j.HasImm && j.Imm == v && w.host[j.to] == h {
			want += j.count
		}
	}
	if n > want {
		w.fail("%d immediates %d, sent were %d", n, v, want)
	}
	if n != want {
		return
	}
	for _, j := range w.jobs {
		if j.HasImm && j.Imm == v && w.host[j.to] == h {
			w.checkBytes(j, "its count")
			w.take(j)
		}
	}
}

// take has the receiver do as it likes with the memory that a job has written.
func (w *adversaryWorld) take(j *job) {
	j.read = true
	for _, s := range j.bytes {
		fill(w.host[j.to].dst[s.from:s.to], mark)
	}
}

func fill(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

func (w *adversaryWorld) checkBytes(j *job, when string) {
	h := w.host[j.to]
	for _, s := range j.bytes {
		if bytes.Equal(h.dst[s.from:s.to], w.host[j.from].want[s.from:s.to]) {
			continue
		}
		for at := s.from; at < s.to; at++ {
			if h.dst[at] != w.host[j.from].want[at] {
				w.fail("job %d at %s: byte %d is %#x, not %#x", j.id, when, at, h.dst[at], w.host[j.from].want[at])
				return
			}
		}
	}
}

func newAdversary(s story) (*adversaryWorld, error) {
	w := &adversaryWorld{story: s, rng: rand.New(rand.NewPCG(s.seed, 99))}
	w.ordered = w.rng.IntN(2) == 0
	w.crowded = w.rng.IntN(3) == 0
	nics := make([]sim.NIC, max(s.rails[0], s.rails[1]))
	for i := range nics {
		nics[i] = sim.NIC{
			MTU: 600, PeerDepth: 4 + w.rng.IntN(12), RecvDepth: 8, Latency: time.Microsecond, Jitter: 3 * time.Microsecond,
			LinkBits: 1e9 << w.rng.IntN(8), Ordered: w.ordered,
		}
		if w.rng.IntN(2) == 0 {
			nics[i].MaxMsg = 300 + w.rng.Uint64N(1000) // long parts go in fragments
		}
	}
	loss := max(0, w.rng.Float64()-0.7)
	w.f = sim.New(sim.Config{Seed: s.seed, Rails: nics, Manual: true, Loss: loss, RetryDelay: 2 * time.Microsecond, RetryTimeout: 20 * time.Microsecond})
	size := s.ops * cellLen
	for i := range s.hosts {
		h := &simHost{w: w, name: string(rune('a' + i)), imms: imm.NewTable(), msgs: map[uint32]int{}, in: make([][]*wire.LinkNotice, s.hosts), ended: make([]bool, s.hosts), quiet: make([]bool, s.hosts)}
		h.dst, h.out = make([]byte, size), make([]byte, size)
		for k := range h.out {
			h.out[k] = byte(w.rng.Uint32())%0xDD + 1
		}
		h.want = slices.Clone(h.out)
		p := w.f.Provider(h.name)
		devs, err := p.Devices(context.Background())
		if err != nil {
			return nil, err
		}
		var doms []provider.Domain
		for _, dev := range devs[:s.rails[min(i, 1)]] {
			d, err := p.Open(context.Background(), dev, provider.Config{Bell: noBell{}})
			if err != nil {
				return nil, err
			}
			doms = append(doms, d)
		}
		if h.g, err = New(doms, h, func() {}); err != nil {
			return nil, err
		}
		h.g.without = s.without
		if h.srcMR, err = h.g.Register(provider.Memory{Bytes: h.out, FD: -1}, 0); err != nil {
			return nil, err
		}
		if h.dstMR, err = h.g.Register(provider.Memory{Bytes: h.dst, FD: -1}, provider.AccessRemoteWrite); err != nil {
			return nil, err
		}
		w.host = append(w.host, h)
	}
	return w, w.connect()
}

// connect sets up a session between every two hosts; the one with the smaller name leads.
func (w *adversaryWorld) connect() error {
	for _, h := range w.host {
		h.peers = make([]*Peer, len(w.host))
		for i := range w.host {
			h.peers[i] = &Peer{Tag: i}
		}
	}
	for i, a := range w.host {
		for k, b := range w.host[i+1:] {
			k += i + 1
			n, m := w.rails[min(i, 1)], w.rails[1]
			var slots []Slot
			links := max(n, m)
			standby := links > 1 && w.rng.IntN(3) == 0
			for r := range links {
				var remotes []uint16
				for alt := range m {
					remotes = append(remotes, uint16((r+alt)%m))
				}
				slots = append(slots, Slot{Local: r % n, Remote: remotes})
				if standby && r == links-1 {
					slots[r].Class = 1
					break
				}
				x, err := a.g.Offer(a.peers[k], r%n)
				if err != nil {
					return err
				}
				y, err := b.g.Offer(b.peers[i], r%m)
				if err != nil {
					return err
				}
				if err := errors.Join(a.g.Connect(a.peers[k], r, y, false), b.g.Connect(b.peers[i], r, x, true)); err != nil {
					return err
				}
			}
			w.rest()
			a.g.Live(a.peers[k], true, slots)
			b.g.Live(b.peers[i], false, nil)
		}
	}
	return nil
}

// rest lets everything happen that can, without a choice.
func (w *adversaryWorld) rest() {
	for range 10000 {
		moved := w.deliver() || w.f.Step() // in this order, or time would run while a notice is on its way
		for _, h := range w.host {
			moved = h.g.Step() > 0 || moved
		}
		if !moved {
			return
		}
	}
}

// value is the immediate of a job. Those of some worlds are in few classes.
func (w *adversaryWorld) value(id int) uint32 {
	v := uint32(id)
	for w.crowded && bucket(v) > 3 {
		v += maxOps
	}
	return v
}

// plan makes the jobs.
func (w *adversaryWorld) plan() {
	for id := range w.ops {
		from := w.rng.IntN(w.hosts)
		to := (from + 1 + w.rng.IntN(w.hosts-1)) % w.hosts
		j := &job{w: w, id: id, from: from, to: to}
		h := w.host[from]
		j.remote = &Remote{Peer: h.peers[to], Tag: j}
		base := uint64(id * cellLen)
		j.Peer = h.peers[to]
		j.Rail = w.rng.IntN(2) * w.rng.IntN(w.rails[min(from, 1)]+1)
		j.Op.Imm = w.value(id)
		switch w.rng.IntN(8) {
		case 7: // outside of what the receiver allows
			j.Kind, j.Len, j.HasImm, j.Parts, j.bad = Write, 100, true, 1, true
			j.SrcOff, j.DstOff = base, uint64(w.ops*cellLen)+base
		case 0:
			j.Kind, j.HasImm, j.count = Signal, true, 1
			if w.rng.IntN(4) == 0 && id > 0 {
				j.Op.Imm = w.value(w.rng.IntN(id)) // as another job
			}
		case 1:
			j.Kind = Send
			j.Data = binary.LittleEndian.AppendUint32(nil, uint32(id))
			j.Data = append(j.Data, make([]byte, w.rng.IntN(200))...)
		case 2, 3: // a span
			j.Kind, j.Len = Write, uint64(w.rng.IntN(cellLen+1))
			j.SrcOff, j.DstOff = base, base
			if w.rng.IntN(4) > 0 {
				j.HasImm, j.Parts = true, 1+w.rng.IntN(5)
				j.count = uint64(j.Parts)
			}
			j.bytes = []span{{base, base + j.Len}}
		default: // pages
			j.Kind, j.Len = Pages, uint64(w.rng.IntN(300))
			j.SrcOff, j.DstOff, j.SrcStride, j.DstStride = base, base, 300, 300
			j.HasImm = w.rng.IntN(3) > 0
			j.ImmLast = j.HasImm && w.rng.IntN(3) == 0
			for i := range 10 {
				if w.rng.IntN(3) > 0 {
					j.SrcIdx = append(j.SrcIdx, uint32(i))
					j.bytes = append(j.bytes, span{base + uint64(i)*300, base + uint64(i)*300 + j.Len})
				}
			}
			j.DstIdx = j.SrcIdx
			j.Parts = len(j.SrcIdx)
			switch {
			case j.ImmLast:
				j.count = 1
			case j.HasImm:
				j.count = uint64(j.Parts)
			}
		}
		if j.Kind == Write || j.Kind == Pages {
			j.Src, j.Dst = h.srcMR, j.remote
		}
		w.jobs = append(w.jobs, j)
	}
}

// one lets one thing happen, and reports whether anything could.
func (w *adversaryWorld) one() bool {
	w.events++
	start := w.rng.IntN(len(w.host) + 3)
	for i := range len(w.host) + 3 {
		switch k := (start + i) % (len(w.host) + 3); k {
		case 0, 1:
			if w.f.Step() {
				return true
			}
		case 2:
			if w.deliver() {
				return true
			}
		default:
			if w.host[k-3].g.Step() > 0 {
				return true
			}
		}
	}
	return false
}

// deliver hands over one notice.
func (w *adversaryWorld) deliver() bool {
	n := len(w.host)
	start := w.rng.IntN(n * n)
	for i := range n * n {
		k := (start + i) % (n * n)
		to, from := w.host[k/n], k%n
		if len(to.in[from]) == 0 {
			continue
		}
		m := to.in[from][0]
		to.in[from] = to.in[from][1:]
		w.note("%s hears from %c: link %d, %d. connection: step %d, %d immediates, %d messages %s", to.name, 'a'+rune(from), m.Link, m.Epoch, m.Step, m.Imms, m.Messages, m.Fault)
		to.g.Call(func(g *Group) { g.Notice(to.peers[from], m) })
		return true
	}
	return false
}

// kinds of faults.
const (
	faultLose  = iota // one side gives up a connection that works, as after a stall
	faultBlink        // the path between two NICs is cut, shorter than networks notice
	faultCut          // or longer
	faultStall        // a NIC does nothing for a while
	faultPart         // hosts do not reach each other for a while
	faultNIC          // a NIC dies
	faultClose        // a receiver takes its memory back
	faultFence        // a session is fenced, for good
	faultKinds
)

func (w *adversaryWorld) harm(kind int) {
	w.faults++
	i := w.rng.IntN(w.hosts)
	k := (i + 1 + w.rng.IntN(w.hosts-1)) % w.hosts
	a, b := w.host[i], w.host[k]
	p := a.peers[k]
	l := p.links[w.rng.IntN(len(p.links))]
	switch kind {
	case faultLose:
		w.note("%s gives up link %d to %s", a.name, l.index, b.name)
		a.g.Call(func(g *Group) { g.lose(l, "told to") })
	case faultBlink, faultCut:
		x := fmt.Sprintf("%s/nic%d", a.name, l.rail.index)
		y := b.name
		w.note("cut %s from %s", x, y)
		w.f.Cut(x, y)
		for range 3 + w.rng.IntN(10) {
			w.one()
		}
		if kind == faultCut {
			until := w.f.Now() + 200*time.Microsecond
			for w.f.Now() < until && w.one() {
			}
		}
		w.note("heal %s from %s", x, y)
		w.f.Heal(x, y)
	case faultStall:
		w.note("%s/nic%d stalls", a.name, l.rail.index)
		d := time.Duration(w.rng.IntN(60)) * time.Microsecond
		w.stalled = max(w.stalled, w.f.Now()+d)
		w.f.Stall(fmt.Sprintf("%s/nic%d", a.name, l.rail.index), d)
	case faultPart:
		w.note("%s and %s part", a.name, b.name)
		w.f.Inject(sim.Fault{Kind: sim.FaultPartition, Places: []string{a.name}, For: time.Duration(1+w.rng.IntN(60)) * time.Microsecond})
	case faultNIC:
		if w.f.Now() < w.stalled {
			return // it may hold what has arrived and was not polled, which a domain that fails in order does not
		}
		w.note("rail %d of %s dies", l.rail.index, a.name)
		a.g.Call(func(g *Group) {
			for !l.rail.dead && g.poll(l.rail) > 0 { // a domain fails when everything that has arrived was polled
			}
			if !l.rail.dead {
				g.railDead(l.rail, errors.New("dead"))
			}
		})
	case faultClose:
		j := w.jobs[w.rng.IntN(len(w.jobs))]
		w.note("the remote of job %d is closed", j.id)
		j.closed = true
		w.host[j.from].g.Call(func(g *Group) { g.CloseRemote(j.remote) })
	case faultFence:
		if w.rng.IntN(2) == 0 { // while it sees to a link that has failed
			a.g.Call(func(g *Group) { g.lose(l, "told to") })
			for range w.rng.IntN(30) {
				w.one()
			}
		}
		w.note("%s fences %s", a.name, b.name)
		a.ended[k], b.ended[i] = true, true
		a.g.Call(func(g *Group) { g.Fence(p) })
		b.g.Call(func(g *Group) { g.Fence(b.peers[i]) })
	}
}

// run plays a story to its end and returns what went wrong.
func (s story) run(loud bool) (w *adversaryWorld, wrong string) {
	w, err := newAdversary(s)
	if err != nil {
		return w, err.Error()
	}
	w.loud = loud
	w.plan()
	next, after := 0, 0
	for w.wrong == "" && after < settling {
		if w.events > maxEvents {
			w.describe()
			w.fail("no rest")
		}
		if next == len(w.jobs) && w.ended() {
			after++ // what comes too late would come now
		}
		if next < len(w.jobs) && w.rng.IntN(4) == 0 {
			j := w.jobs[next]
			first := w.start(j)
			for last := first; ; last = last.Chain { // as the legs of a scatter, maybe
				if next++; next == len(w.jobs) || w.jobs[next].from != j.from || w.rng.IntN(2) == 0 {
					break
				}
				last.Chain = w.start(w.jobs[next])
			}
			if !w.host[j.from].g.Submit(first) {
				return w, "submit refused"
			}
		}
		switch {
		case s.fault == -1 && w.faults < 6 && next < len(w.jobs) && w.rng.IntN(60) == 0:
			k := w.rng.IntN(faultFence) // the end of a session is rare
			if w.rng.IntN(12) == 0 {
				k = faultFence
			}
			if k == faultNIC && w.rng.IntN(4) > 0 {
				k = faultLose
			}
			w.harm(k)
		case s.fault == w.events:
			w.harm(s.kind)
		}
		if w.one() && w.rng.IntN(200) > 0 {
			continue
		}
		for _, h := range w.host {
			h.g.tickAll()
		}
	}
	if w.wrong == "" {
		w.recover()
	}
	if w.wrong == "" {
		w.finish()
	}
	for _, h := range w.host {
		if err := h.g.Close(); err != nil && w.wrong == "" {
			w.wrong = err.Error()
		}
	}
	return w, w.wrong
}

// describe notes everything that is not at rest.
func (w *adversaryWorld) describe() {
	for _, j := range w.jobs {
		if o := j.run; o != nil {
			w.note("job %d: kind %d cursor %d/%d begun %v redo %d inflight %d frags %d strict %v only %v listed %v",
				j.id, o.Kind, o.cursor, o.Parts, o.begun, len(o.redo), o.inflight, o.frags, o.strict, o.only != nil, o.listed)
		}
	}
	for _, h := range w.host {
		for _, p := range h.peers {
			for _, l := range p.links {
				w.note("%s to %v: link %d class %d of %d state %d epoch %d outstanding %d lost %d fencing %v proved %v report %v tries %d dead %v",
					h.name, p.Tag, l.index, l.class, p.class, l.state, l.epoch, l.outstanding, len(l.lost), l.fencing, l.proved, l.report != nil, l.tries, l.rail.dead)
			}
		}
	}
}

// recover waits until each link is back that can come back, and everything has come to rest.
func (w *adversaryWorld) recover() {
	w.f.Rejoin()
	for range recovery {
		w.rest()
		missing := w.missing()
		if missing == "" {
			return
		}
		if w.wrong != "" {
			return
		}
		for _, h := range w.host {
			h.g.tickAll()
		}
		if w.loud {
			w.note("waits: %s", missing)
		}
	}
	w.describe()
	w.fail("after %d ticks without trouble: %s", recovery, w.missing())
}

// missing is the first link that is not in service and could be, or the first fence without its outcome.
func (w *adversaryWorld) missing() string {
	for i, a := range w.host {
		for k, b := range w.host {
			p, q := a.peers[k], b.peers[i]
			switch {
			case i == k:
			case a.ended[k] && !a.quiet[k]:
				return fmt.Sprintf("%s does not know that %s is fenced", a.name, b.name)
			case a.ended[k] || !p.lead:
			default:
				if l := missingLink(p, q, b); l != nil {
					return fmt.Sprintf("link %d of %s and %s does not come back", l.index, a.name, b.name)
				}
			}
		}
	}
	return ""
}

// missingLink is for a leader p, and q, which is p as the other side b sees it.
func missingLink(p, q *Peer, b *simHost) *link {
	best := uint8(0xFF) // class of links that are there
	for _, l := range p.links {
		alive := false
		for _, r := range p.slots[l.index].Remote {
			alive = alive || !b.g.rails[r].dead
		}
		if l.rail.dead || !alive || l.class > best {
			continue
		}
		best = l.class
		if l.state != ready || len(q.links) <= l.index || q.links[l.index].state != ready || q.links[l.index].epoch != l.epoch {
			return l
		}
	}
	return nil
}

// ended reports whether all jobs have.
func (w *adversaryWorld) ended() bool {
	for _, j := range w.jobs {
		if j.ends == 0 && !w.stranded(j) {
			return false
		}
	}
	return true
}

// finish checks what must be true at rest.
func (w *adversaryWorld) finish() {
	type key struct {
		to  int
		imm uint32
	}
	least, most := map[key]uint64{}, map[key]uint64{}
	for _, j := range w.jobs {
		k := key{j.to, j.Op.Imm}
		if j.ends == 0 && !w.stranded(j) {
			w.fail("job %d has not ended", j.id)
		}
		most[k] += j.count
		if j.ends > 0 && j.Status == provider.StatusOK {
			least[k] += j.count
		}
		if j.bad {
			if j.ends > 0 && j.Status != provider.StatusAccess && !w.host[j.from].ended[j.to] && !w.ambiguous(j) {
				w.fail("job %d, which is not allowed, ended with %v", j.id, j.Status)
			}
			continue
		}
		if j.ends > 0 && j.Status == provider.StatusAccess && j.closed {
			continue
		}
		if j.ends > 0 && j.Status != provider.StatusOK && !w.host[j.from].ended[j.to] && !w.ambiguous(j) {
			w.fail("job %d failed: %v", j.id, j.Status)
		}
		if j.Kind == Send && j.ends > 0 && j.Status == provider.StatusOK && w.host[j.to].msgs[uint32(j.id)] != 1 {
			w.fail("message %d arrived %d times", j.id, w.host[j.to].msgs[uint32(j.id)])
		}
		if j.read {
			for _, s := range j.bytes {
				for at := s.from; at < s.to; at++ {
					if w.host[j.to].dst[at] != mark {
						w.fail("job %d: byte %d changed after its count", j.id, at)
						return
					}
				}
			}
		}
	}
	for _, h := range w.host {
		for _, p := range h.peers {
			if err := h.g.audit(p); err != nil && w.ended() && !w.anyStranded() {
				w.fail("%s at rest: %v", h.name, err)
			}
		}
	}
	for k, n := range most {
		if got := w.host[k.to].imms.Counter(k.imm).Load(); got < least[k] || got > n {
			w.fail("%d immediates %d at host %d, want %d .. %d", got, k.imm, k.to, least[k], n)
		}
	}
}

func (w *adversaryWorld) anyStranded() bool {
	for _, j := range w.jobs {
		if j.ends == 0 {
			return true
		}
	}
	return false
}

// stranded reports whether a job cannot end because no link is left and none can come.
func (w *adversaryWorld) stranded(j *job) bool {
	for _, h := range []*simHost{w.host[j.from], w.host[j.to]} {
		alive := false
		for _, r := range h.g.rails {
			alive = alive || !r.dead
		}
		if !alive {
			return true
		}
	}
	return false
}

// ambiguous reports whether a job may fail because immediates of its class of values were under way for others too, on a network
// without order.
func (w *adversaryWorld) ambiguous(j *job) bool {
	switch {
	case w.ordered:
		return false
	case j.Kind == Send:
		return true // two messages at once are enough
	case !j.HasImm:
		return false
	}
	for _, k := range w.jobs {
		if k != j && k.from == j.from && k.to == j.to && k.HasImm && bucket(k.Op.Imm) == bucket(j.Op.Imm) {
			return true
		}
	}
	return false
}

func randomStory(seed uint64) story {
	rng := rand.New(rand.NewPCG(seed, 5))
	return story{seed: seed, hosts: 2 + rng.IntN(2), rails: [2]int{1 + rng.IntN(3), 1 + rng.IntN(3)}, ops: 5 + rng.IntN(20), fault: -1}
}

// reuseBuffers makes groups take the message buffers of those before them. One goroutine only.
func reuseBuffers(t testing.TB) {
	free := map[uint64][]*mem.Span{}
	get, put := newBuffers, freeBuffers
	newBuffers = func(n uint64) (*mem.Span, error) {
		if l := free[n]; len(l) > 0 {
			free[n] = l[:len(l)-1]
			return l[len(l)-1], nil
		}
		return get(n)
	}
	freeBuffers = func(s *mem.Span) error {
		n := uint64(len(s.Bytes()))
		free[n] = append(free[n], s)
		return nil
	}
	t.Cleanup(func() {
		newBuffers, freeBuffers = get, put
		for _, l := range free {
			for _, s := range l {
				if err := s.Free(); err != nil {
					t.Error(err)
				}
			}
		}
	})
}

func TestAdversary(t *testing.T) {
	reuseBuffers(t)
	if *simSeed != 0 {
		w, wrong := randomStory(*simSeed).run(true)
		fmt.Fprintln(os.Stderr, strings.Join(w.log, "\n"))
		if wrong != "" {
			t.Fatal(wrong)
		}
		return
	}
	began := time.Now()
	base := rand.Uint64()
	runs, events, faults := 0, 0, 0
	for time.Since(began) < *simTime && runs < *simRuns {
		seed := base + uint64(runs)
		w, wrong := randomStory(seed).run(false)
		runs++
		events += w.events
		faults += w.faults
		if runs%10000 == 0 {
			fmt.Printf("adversary: %d schedules after %.0f s\n", runs, time.Since(began).Seconds())
		}
		if wrong != "" {
			t.Fatalf("%s\nrepeat with -run TestAdversary -sim.seed %d", wrong, seed)
		}
	}
	fmt.Printf("adversary: %d schedules, %d events, %d faults\n", runs, events, faults)
}

// Every fault before every event of a small run.
func TestEveryFaultAtEveryEvent(t *testing.T) {
	reuseBuffers(t)
	runs := 0
	for seed := range uint64(2) {
		s := story{seed: 1000 + seed, hosts: 2, rails: [2]int{2, 1 + int(seed)}, ops: 8, fault: -2}
		w, wrong := s.run(false)
		if wrong != "" {
			t.Fatal(wrong)
		}
		for kind := range faultKinds {
			for at := range w.events - settling {
				s.fault, s.kind = at, kind
				if _, wrong := s.run(false); wrong != "" {
					t.Fatalf("%s\nfault %d at event %d of seed %d", wrong, kind, at, s.seed)
				}
				runs++
			}
		}
	}
	fmt.Printf("adversary: %d faults, one in each run\n", runs)
}

// Without any one of the guards something goes wrong, and the adversary sees it.
func TestGuardsAreNeeded(t *testing.T) {
	reuseBuffers(t)
	for name, g := range map[string]guard{
		"fence before the report": guardFence, "report before placing again": guardReport, "all flushed before dividing": guardFlushed,
		"immediate after its bytes": guardLast, "keys of one connection": guardKeys,
	} {
		t.Run(name, func(t *testing.T) {
			const enough = 5000
			for seed := range uint64(enough) {
				s := randomStory(seed)
				s.without = g
				// What the two sides say to each other goes wrong first, mostly; what matters is what a user would see.
				if _, wrong := s.run(false); wrong != "" && !strings.Contains(wrong, " gives ") {
					t.Logf("seed %d: %s", seed, wrong)
					return
				}
			}
			t.Fatalf("nothing goes wrong in %d runs", enough)
		})
	}
}
