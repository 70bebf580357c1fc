package kvtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// deadline and stall are those of the decoders.
const (
	deadline = 15 * time.Second
	stall    = 5 * time.Second
)

// decoder is a host with a Decoder.
type decoder struct {
	host
	m      *proto.Decoder
	of     *users
	member int
	pools  []*pool.Pool // nil: users bring pages
	mem    *memory
	tails  []byte

	serial    uint64     // of descriptors
	imms      []*attempt // by value, less 1
	attempts  map[uint64]*attempt
	live      []*attempt          // not put
	up        map[proto.Peer]bool // links, as it says
	whole     []*attempt          // put in this event, with all that was expected
	owner     [][]*attempt        // by group and page: the last one that had it
	tailOwner []*attempt
	fetches   []*fetch
	byNumber  map[proto.Request]*fetch
	fetching  *fetch // Fetch is under way
	draining  bool
}

// start makes a member.
func (u *users) start(member int) {
	w := u.w
	g := &w.shape.dst.Members[member]
	d := &decoder{
		of: u, member: member, mem: newMemory(g), imms: make([]*attempt, w.sc.Imms),
		attempts: map[uint64]*attempt{}, byNumber: map[proto.Request]*fetch{}, up: map[proto.Peer]bool{},
	}
	w.born(&d.host, fmt.Sprintf("d%d.%d", u.index, member), "")
	d.tails, d.tailOwner = make([]byte, w.sc.TailSlots*wordBytes), make([]*attempt, w.sc.TailSlots)
	for i := range g.Groups {
		n := w.poolPages(w.shape.dst, i)
		d.owner = append(d.owner, make([]*attempt, n))
		if !w.bring() {
			p, err := pool.New(n, w.sc.Seed)
			if err != nil {
				panic(err)
			}
			d.pools = append(d.pools, p)
		}
	}
	m, err := proto.NewDecoder(proto.DecoderConfig{
		Instance: fmt.Sprintf("d%d", u.index), Member: member, Topology: w.shape.dst, Options: layout.Options{AllowSmallWrites: true}, Pools: d.pools,
		TailSlots: w.sc.TailSlots, TailBytes: wordBytes, Verify: w.sc.Digests, Epoch: uint64(d.id) << 32, Tries: w.sc.Tries, Deadline: deadline, Stall: stall,
	}, d)
	if err != nil {
		panic(err)
	}
	d.m, d.host.m = m, m
	d.after = func() {
		w.judge.wasted(d)
		if w.sc.Checks > 0 && d.handled%16 == 0 {
			w.judge.patient(d)
		}
	}
	u.members[member] = d
	if w.sc.Warm {
		d.do(0, func() {
			for i := range w.sc.Prefillers {
				for _, addr := range w.addrs(i) {
					m.Warm(w.now, addr)
				}
			}
		})
	}
	w.decoders = append(w.decoders, d)
}

// Connect and what follows is [proto.DecoderOut].
func (d *decoder) Connect(l proto.Link, addr string) {
	w := d.w
	until := w.now + patience
	w.after(w.quick(), func() { d.connect(l, addr, until) })
}

func (d *decoder) Describe(proto.Peer) ([][]byte, error) {
	d.serial++
	one := binary.LittleEndian.AppendUint64(nil, uint64(d.id)<<32|d.serial)
	return [][]byte{one, one}, nil
}

func (d *decoder) with(p proto.Peer) *pair {
	x := d.w.pairOf(d.id, p)
	if x == nil {
		d.w.fail("model", "%s: peer %d is not known", d.name, p)
	}
	return x
}

func (d *decoder) Send(p proto.Peer, data []byte) {
	if x := d.with(p); x != nil {
		d.w.judge.fromD(x, data)
		x.send(atD, data)
	}
}

func (d *decoder) Fence(p proto.Peer) {
	if x := d.with(p); x != nil {
		d.w.note("%s: fence %s", d.name, x.p.name)
		d.w.Fences++
		x.fence()
	}
}

func (d *decoder) Take(seq uint64) (uint32, error) {
	w := d.w
	if w.chance(w.sc.Net.NoImm) {
		d.do(w.delay(), func() { d.m.Room(w.now) })
		return 0, fmt.Errorf("take: %w", hawser.ErrLimit)
	}
	for i, a := range d.imms {
		if a != nil {
			continue
		}
		if d.attempts[seq] != nil {
			w.fail("I3", "%s: seq %d is used twice", d.name, seq)
		}
		a = &attempt{d: d, seq: seq, imm: uint32(i + 1)}
		d.imms[i], d.attempts[seq] = a, a
		d.live = append(d.live, a)
		w.Attempts++
		return a.imm, nil
	}
	return 0, fmt.Errorf("take: %w", hawser.ErrLimit)
}

// liveAttempt is one that is not put.
func (d *decoder) liveAttempt(seq uint64, call string) *attempt {
	a := d.attempts[seq]
	if a == nil || a.put {
		d.w.fail("model", "%s: %s of attempt %d, which has no immediate", d.name, call, seq)
		return nil
	}
	return a
}

func (d *decoder) Expect(seq uint64, p proto.Peer, writes uint64) {
	if a := d.liveAttempt(seq, "Expect"); a != nil {
		if x := d.with(p); x != nil {
			a.writers = append(a.writers, &owed{x: x, expected: writes})
		}
	}
}

func (d *decoder) Await(seq uint64, more uint64) {
	a := d.attempts[seq]
	if a == nil {
		d.w.fail("model", "%s: Await of attempt %d, which has no immediate", d.name, seq)
		return
	}
	a.await = 0
	if more > 0 {
		a.await = a.total + more
	}
}

func (d *decoder) Landed(seq uint64, p proto.Peer) uint64 {
	if a := d.attempts[seq]; a != nil {
		for _, o := range a.writers {
			if o.x.p.id == p {
				return o.from
			}
		}
	}
	return 0
}

func (d *decoder) Put(seq uint64) {
	a := d.liveAttempt(seq, "Put")
	if a == nil {
		return
	}
	w := d.w
	w.note("%s is quiet", a)
	for _, o := range a.writers {
		for _, t := range o.x.flight {
			if t.a == a && (t.mayLand() || t.landed && !t.counted) {
				w.fail("I1", "%s is over, and a write of %s can still land", a, o.x.p.name)
			}
		}
	}
	w.judge.put(a)
	a.put = true
	d.imms[a.imm-1] = nil
	d.live = slices.DeleteFunc(d.live, func(o *attempt) bool { return o == a })
}

func (d *decoder) Verify(seq uint64, p proto.Peer, sums []uint64) {
	w := d.w
	a := d.liveAttempt(seq, "Verify")
	if a == nil {
		return
	}
	d.do(w.quick(), func() { d.m.Verified(w.now, seq, p, w.judge.verify(a, p, sums)) })
}

func (d *decoder) Ready(r proto.Request, res proto.Result) {
	f := d.find(r, "Ready")
	w := d.w
	if f == nil {
		return
	}
	w.note("%s: %s is ready, %d tokens were here, try %d", d.name, f.id, res.Prefix, res.Try)
	w.Ready++
	if res.Prefix > 0 {
		w.Hits++
	}
	if f.ready || f.ended {
		w.fail("I3", "%s: %s is ready, and ended before", d.name, f.id)
	}
	f.ready, f.result = true, res
	if a := d.attempts[res.Seq]; a != nil {
		a.ready = true
		w.judge.complete(a)
	} else if res.Seq != 0 {
		w.fail("I3", "%s: %s is ready by attempt %d, which is not known", d.name, f.id, res.Seq)
	}
	d.content(f, "is ready")
	d.do(f.Hold, func() {
		d.content(f, "is released")
		f.released = true
		d.m.Release(w.now, r)
		d.of.over(f.asked)
	})
}

func (d *decoder) Ended(r proto.Request, err error) {
	f := d.find(r, "Ended")
	if f == nil {
		return
	}
	d.w.note("%s: %s ends: %v", d.name, f.id, err)
	if f.ready || f.ended {
		d.w.fail("I3", "%s: %s ends twice: %v", d.name, f.id, err)
	}
	if errors.Is(err, proto.ErrCorrupt) && !slices.ContainsFunc(f.attempts, func(a *attempt) bool { return a.corrupt }) {
		d.w.fail("I5", "%s: %s: %v", d.name, f.id, err)
	}
	d.w.Ended++
	f.ended, f.err = true, err
	d.of.over(f.asked)
}

func (d *decoder) Quiet(r proto.Request) {
	f := d.find(r, "Quiet")
	if f == nil {
		return
	}
	if f.quiet || !f.ready && !f.ended {
		d.w.fail("I3", "%s: %s is quiet, and was so before (%v) or has not ended", d.name, f.id, f.quiet)
	}
	for _, a := range f.attempts {
		if !a.put {
			d.w.fail("I1", "%s: %s is quiet, and %s is not", d.name, f.id, a)
		}
	}
	f.quiet = true
	d.of.over(f.asked)
}

func (d *decoder) Note(n proto.Note) {
	d.w.noted(d.name, n)
	switch {
	case n.Kind == proto.NoteAttempt && n.Err != nil:
		d.w.judge.stops(d, n.Seq, n.Err)
	case n.Kind == proto.NoteLinkUp:
		d.up[n.Peer] = true
	case n.Kind == proto.NoteLinkDown:
		delete(d.up, n.Peer)
	}
}
