package rail

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

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
	refused bool   // a session was given up for its refusals
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
func (h *simHost) Settle()             {}
func (h *simHost) Dead(r int, _ error) { h.w.note("%s: rail %d is dead", h.name, r) }
func (h *simHost) GiveUp(p *Peer, why string, _ bool) {
	// A write whose refusal is lost again and again is refused as often; that this ends the session is right, and ends the run.
	h.w.refused = h.w.refused || h.w.ends && strings.HasPrefix(why, "too many connections")
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
	w.ends = w.rng.IntN(3) == 0
	nics := make([]sim.NIC, max(s.rails[0], s.rails[1]))
	for i := range nics {
		nics[i] = sim.NIC{
			MTU: 600, PeerDepth: 4 + w.rng.IntN(12), RecvDepth: 8, Latency: time.Microsecond, Jitter: 3 * time.Microsecond,
			LinkBits: 1e9 << w.rng.IntN(8), Ordered: w.ordered, AccessEnds: w.ends,
		}
		if w.rng.IntN(2) == 0 {
			nics[i].MaxMsg = 300 + w.rng.Uint64N(1000) // long parts go in fragments
		}
	}
	loss := max(0, w.rng.Float64()-0.7)
	cfg := sim.Config{Seed: s.seed, Rails: nics, Manual: true, Loss: loss, RetryDelay: 2 * time.Microsecond, RetryTimeout: 20 * time.Microsecond}
	if s.nics[0] != nil {
		cfg.Rails, cfg.Hosts, cfg.Loss = s.nics[1], map[string][]sim.NIC{"a": s.nics[0]}, 0
	}
	w.f = sim.New(cfg)
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
			if s.wrap != nil {
				d = s.wrap(i, len(doms), d)
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
			standby := links > 1 && w.rng.IntN(3) == 0 && w.nics[0] == nil
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

// value is the immediate of a job. Those of some worlds are in few classes.
func (w *adversaryWorld) value(id int) uint32 {
	v := uint32(id)
	for w.crowded && bucket(v) > 3 {
		v += maxOps
	}
	return v
}

// maxBads is how many jobs of a run are refused at most: where each costs a connection, more would cost the session.
const maxBads = maxStrikes / (denialStrikes + 1) / 2

// planBad makes a job that writes where it may not, by all it does or by one of its pages.
func (w *adversaryWorld) planBad(j *job, base uint64) {
	j.bad, j.HasImm, j.SrcOff, j.DstOff, j.Len = true, true, base, base, 100
	beyond := uint64(w.ops * cellLen)
	if w.rng.IntN(2) == 0 {
		j.Kind, j.Parts, j.DstOff = Write, 1, beyond+base
		return
	}
	j.Kind, j.SrcStride, j.DstStride, j.Parts = Pages, 300, 300, 8
	for i := range uint32(j.Parts) {
		j.SrcIdx, j.DstIdx = append(j.SrcIdx, i), append(j.DstIdx, i)
		j.bytes = append(j.bytes, span{base + uint64(i)*300, base + uint64(i)*300 + j.Len})
	}
	i := w.rng.IntN(j.Parts)
	j.DstIdx[i] = uint32(beyond / 300)
	j.bytes = slices.Delete(j.bytes, i, i+1)
	j.count = uint64(j.Parts) // never reached, so the receiver never takes the memory: it does not know which of them have come
}

// plan makes the jobs.
func (w *adversaryWorld) plan() {
	bads := 0
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
		kind := w.rng.IntN(8)
		if kind == 7 && bads == maxBads {
			kind = 2
		}
		switch kind {
		case 7: // outside of what the receiver allows
			bads++
			w.planBad(j, base)
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
