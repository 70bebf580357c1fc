//go:build soak

package soak

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
)

// fieldKinds are the regions of an engine that others write to.
var fieldKinds = [...]struct {
	cells int
	size  uint64
}{{12, 48 << 10}, {12, 48 << 10}, {3, maxCell}}

const maxCell = 1 << 20

// field is such a region.
type field struct {
	kind int
	r    *hawser.Region

	memory sync.RWMutex // read: memory is looked at
	closed bool         // guarded by memory

	// Guarded by node.mu.
	text string   // the latest descriptor
	free []uint64 // cells
	gone bool
}

// lease is a cell and an immediate that a writer may use once.
type lease struct {
	token  uint64
	writer string
	imm    uint32
	c      *hawser.Counter
	f      *field // nil when only the immediate is leased
	cell   uint64
	desc   string // issued before a fence, it is of no use after it

	// Guarded by node.mu.
	state  leaseState
	report *outcome // of a dirty one, nil when its writer is gone

	look   sync.Mutex // one looks at a time
	frozen *frozen    // guarded by look
}

type leaseState int

const (
	granted  leaseState = iota
	checking            // it was reported
	dirty
)

// frozen is what was there when the fence had succeeded, or the region was taken back, which makes bytes final and not yet counts.
type frozen struct {
	sum   uint64
	count uint64
	final bool // count
}

var hashSeed = maphash.MakeSeed()

func (n *node) newField(kind int) (*field, error) {
	k := fieldKinds[kind]
	r, err := n.e.Alloc(uint64(k.cells)*k.size, hawser.MemOptions{})
	if err != nil {
		return nil, err
	}
	f := &field{kind: kind, r: r}
	for i := range k.cells {
		f.free = append(f.free, uint64(i))
	}
	for i := range r.Bytes() {
		r.Bytes()[i] = mark
	}
	return f, f.issue()
}

// issue makes a new descriptor.
func (f *field) issue() error {
	b, err := f.r.Descriptor(f.r.All(), hawser.RightWrite).MarshalText()
	f.text = string(b)
	return err
}

func (f *field) size() uint64 { return fieldKinds[f.kind].size }

func (f *field) bytes(cell uint64) []byte { return f.r.Bytes()[cell*f.size():][:f.size()] }

// view calls g while the memory of a cell is there.
func (n *node) view(f *field, cell uint64, g func(b []byte)) {
	if f == nil {
		return
	}
	n.memory.RLock()
	defer n.memory.RUnlock()
	f.memory.RLock()
	defer f.memory.RUnlock()
	if !n.closed && !f.closed {
		g(f.bytes(cell))
	}
}

// lend leases a cell, or just an immediate.
func (n *node) lend(writer string, a *ask) *grant {
	g := &grant{N: a.N}
	n.mu.Lock()
	defer n.mu.Unlock()
	l := &lease{token: n.last + 1, writer: writer, imm: n.imm + 1}
	if a.Cell {
		f := n.fields[n.rng.IntN(len(n.fields))]
		if f.gone || len(f.free) == 0 {
			return g
		}
		l.f, l.cell, l.desc = f, f.free[0], f.text
		f.free = append(f.free[:0], f.free[1:]...)
		g.Field, g.Desc, g.Off, g.Len = f.kind, l.desc, l.cell*f.size(), f.size()
	}
	n.view(l.f, l.cell, func(b []byte) { n.marked(l, b, "a free cell") })
	n.last, n.imm = l.token, l.imm
	l.c = n.e.Counter(l.imm)
	if c := l.c.Load(); c != 0 {
		n.m.wrong("an immediate that nobody was given was counted %d times", c)
	}
	n.leases[l.token] = l
	g.Token, g.Imm = l.token, l.imm
	return g
}

// marked checks that nothing was written to a cell.
func (n *node) marked(l *lease, b []byte, what string) {
	for i, x := range b {
		if x != mark {
			n.m.wrong("%s was written to: byte %d of cell %d is %#x (lease %d of %s)", what, i, l.cell, x, l.token, l.writer)
			return
		}
	}
}

// contents are the bytes that the writer of a lease writes.
func contents(owner string, token uint64, b []byte) {
	seed := [32]byte{0: byte(token), 1: byte(token >> 8), 2: byte(token >> 16), 3: byte(token >> 24), 4: byte(token >> 32)}
	copy(seed[8:], owner)
	_, _ = rand.NewChaCha8(seed).Read(b)
}

// wanted is what a cell holds after an operation that ended well.
func (n *node) wanted(l *lease, o *outcome) []byte {
	all := n.written(l)
	b := bytes.Repeat([]byte{mark}, len(all))
	for p := range o.Pages {
		at := p * o.Step
		copy(b[at:at+o.PageLen], all[at:])
	}
	return b
}

func (n *node) written(l *lease) []byte {
	b := make([]byte, l.f.size())
	contents(n.id, l.token, b)
	return b
}

// reported is called when a writer has told how its operation ended.
func (n *node) reported(writer string, o *outcome) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l := n.leases[o.Token]
	if l == nil || l.writer != writer || l.state != granted {
		n.m.wrong("a report of lease %d by %s, which has none", o.Token, writer)
		return
	}
	l.state, l.report = checking, o
	n.checks++
	go n.check(l, o)
}

// check looks at a cell whose writer has reported.
func (n *node) check(l *lease, o *outcome) {
	var err error
	if o.OK {
		ctx, cancel := patience()
		err = l.c.Wait(ctx, o.Count)
		cancel()
		if err != nil && !errors.Is(err, hawser.ErrClosed) {
			n.m.wrong("lease %d of %s: its writes ended well, but %v", l.token, l.writer, err)
		}
	}
	l.look.Lock()
	defer l.look.Unlock()
	over := true
	switch {
	case err != nil:
	case !o.Sent:
		n.view(l.f, l.cell, func(b []byte) { n.marked(l, b, "a cell for which nothing was submitted") })
		n.counted(l, 0, 0)
	case o.OK:
		n.view(l.f, l.cell, func(b []byte) {
			if want := n.wanted(l, o); !bytes.Equal(b, want) {
				n.m.wrong("lease %d of %s, %+v: %s", l.token, l.writer, *o, difference(b, want))
			}
			n.m.counts.add("verified bytes", o.Pages*o.PageLen)
		})
		n.counted(l, o.Count, o.Count)
		n.m.counts.add("verified", 1)
		if n.m.strict.Load() {
			n.m.counts.add("verified while rails were cut", 1)
		}
		n.unchanged(l)
	case l.frozen != nil && l.frozen.final:
		n.unchanged(l)
		n.settled(l, o)
	default:
		over = false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checks--
	if !over {
		l.state = dirty
		return
	}
	n.end(l)
}

func difference(got, want []byte) string {
	for i := range got {
		if got[i] != want[i] {
			n := 0
			for k := i; k < len(got); k++ {
				if got[k] != want[k] {
					n++
				}
			}
			return fmt.Sprintf("byte %d of %d is %#x, want %#x; %d differ", i, len(got), got[i], want[i], n)
		}
	}
	return "same"
}

// counted checks how often the immediate of a lease has arrived, and from whom.
func (n *node) counted(l *lease, low, high uint64) uint64 {
	c := l.c.Load()
	if c < low || c > high {
		n.m.wrong("lease %d of %s: counted %d times, want %d to %d", l.token, l.writer, c, low, high)
	}
	n.mu.Lock()
	p := n.peers[l.writer]
	n.mu.Unlock()
	if p != nil && l.c.From(p) != c {
		n.m.wrong("lease %d: %d of %d come from its writer %s", l.token, l.c.From(p), c, l.writer)
	}
	return c
}

// settled checks a lease whose writer is fenced; o is nil when the writer has not reported. Needs look.
func (n *node) settled(l *lease, o *outcome) {
	high := uint64(maxCount)
	if o != nil {
		high = o.Count
	}
	count := n.counted(l, 0, high)
	n.view(l.f, l.cell, func(b []byte) {
		all := n.written(l)
		for i, x := range b {
			if x != mark && x != all[i] {
				n.m.wrong("lease %d of %s, fenced: byte %d is %#x, neither what was there nor %#x", l.token, l.writer, i, x, all[i])
				return
			}
		}
		if o != nil && o.Count > 0 && count == o.Count {
			if want := n.wanted(l, o); !bytes.Equal(b, want) {
				n.m.wrong("lease %d of %s, %+v: it failed, but all of it was counted: %s", l.token, l.writer, *o, difference(b, want))
			}
		}
	})
	n.m.counts.add("dirty cells cleaned", 1)
}

// freeze remembers what is there after a fence, or after the region was taken back. Needs look.
func (n *node) freeze(l *lease, final bool) {
	fr := &frozen{count: l.c.Load(), final: final}
	n.view(l.f, l.cell, func(b []byte) { fr.sum = maphash.Bytes(hashSeed, b) })
	l.frozen = fr
}

// unchanged checks that nothing has happened since the fence. Needs look.
func (n *node) unchanged(l *lease) {
	if l.frozen == nil {
		return
	}
	if c := l.c.Load(); c != l.frozen.count && l.frozen.final {
		n.m.wrong("lease %d of %s: the count went from %d to %d after the fence", l.token, l.writer, l.frozen.count, c)
	}
	n.view(l.f, l.cell, func(b []byte) {
		if maphash.Bytes(hashSeed, b) != l.frozen.sum {
			n.m.wrong("lease %d of %s: bytes changed after the fence", l.token, l.writer)
		}
	})
	n.m.counts.add("looked at again after a fence", 1)
}

// end makes the cell free. Needs mu.
func (n *node) end(l *lease) {
	n.view(l.f, l.cell, func(b []byte) {
		for i := range b {
			b[i] = mark
		}
	})
	l.c.Close()
	delete(n.leases, l.token)
	if l.f != nil {
		l.f.free = append(l.f.free, l.cell)
	}
}

// keep fences writers and renews fields, until the engine closes.
func (n *node) keep() {
	n.mu.Lock()
	rng := rand.New(rand.NewPCG(n.rng.Uint64(), 1))
	n.mu.Unlock()
	for n.gate.enter() {
		time.Sleep(time.Duration(20+rng.IntN(100)) * time.Millisecond) // the pace of the keeper
		if !n.m.strict.Load() {
			n.tidy(rng)
		}
		n.gate.leave()
	}
}

func (n *node) tidy(rng *rand.Rand) {
	switch k := rng.IntN(100); {
	case k < 5:
		n.renew(rng.IntN(len(n.fields)))
	case k < 15:
		if p := n.anybody(rng); p != nil { // for no reason
			_ = n.fence(p)
		}
	case k < 30:
		if p := n.anybody(rng); p != nil {
			n.revoke(rng.IntN(len(n.fields)), p)
		}
	default:
		for _, p := range n.offenders() {
			_ = n.fence(p) // when there is no proof yet, there will be
		}
	}
}

// anybody is a peer, nil when there is none.
func (n *node) anybody(rng *rand.Rand) *hawser.Peer {
	n.mu.Lock()
	defer n.mu.Unlock()
	ids := slices.Sorted(maps.Keys(n.peers))
	if len(ids) == 0 {
		return nil
	}
	return n.peers[ids[rng.IntN(len(ids))]]
}

// revoke takes a region back from a peer.
func (n *node) revoke(kind int, p *hawser.Peer) {
	id := p.ID().String()
	var held []*lease
	n.mu.Lock()
	f := n.fields[kind]
	for _, l := range n.leases {
		if l.writer == id && l.f == f && l.state != dirty {
			held = append(held, l)
		}
	}
	n.mu.Unlock()
	ctx, cancel := patience()
	defer cancel()
	err := f.r.Revoke(ctx, p)
	switch {
	case errors.Is(err, hawser.ErrUnfenced):
		n.m.counts.add("fences without proof", 1)
	case err == nil:
		n.m.counts.add("regions taken back", 1)
	case !errors.Is(err, hawser.ErrClosed):
		n.m.wrong("revoke: %v", err)
	}
	if err == nil {
		n.hold(held, false)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if f == n.fields[kind] && !f.gone {
		if err := f.issue(); err != nil {
			n.m.wrong("descriptor: %v", err)
		}
	}
}

// hold freezes leases that nothing can be written for any more.
func (n *node) hold(held []*lease, final bool) {
	for _, l := range held {
		l.look.Lock()
		n.freeze(l, final)
		l.look.Unlock()
	}
}

// offenders are peers whose operations have failed here.
func (n *node) offenders() (out []*hawser.Peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	seen := map[string]bool{}
	for _, l := range n.leases {
		if p := n.peers[l.writer]; p != nil && l.state == dirty && !seen[l.writer] {
			seen[l.writer] = true
			out = append(out, p)
		}
	}
	return out
}

// renew closes a field under its writers and makes another one.
func (n *node) renew(kind int) {
	n.mu.Lock()
	old := n.fields[kind]
	old.gone = true
	n.mu.Unlock()
	old.memory.Lock()
	old.closed = true
	old.memory.Unlock()
	err := old.r.Close()
	if err == nil {
		var f *field
		if f, err = n.newField(kind); err == nil {
			n.mu.Lock()
			n.fields[kind] = f
			n.mu.Unlock()
			n.m.counts.add("regions closed", 1)
			return
		}
	}
	if !errors.Is(err, hawser.ErrClosed) {
		n.m.wrong("renew a region: %v", err)
	}
}

// fence fences a peer and cleans what it has left behind.
func (n *node) fence(p *hawser.Peer) error {
	id := p.ID().String()
	var left, held []*lease
	n.mu.Lock()
	for _, l := range n.leases {
		switch {
		case l.writer != id:
		case l.state == dirty:
			l.state = checking
			n.checks++
			left = append(left, l)
		case l.f != nil:
			held = append(held, l)
		}
	}
	n.mu.Unlock()
	ctx, cancel := patience()
	defer cancel()
	err := n.e.Fence(ctx, p)
	n.m.counts.add("fences", 1)
	switch {
	case errors.Is(err, hawser.ErrUnfenced):
		n.m.counts.add("fences without proof", 1)
	case err != nil && !errors.Is(err, hawser.ErrClosed):
		n.m.wrong("fence: %v", err)
	}
	for _, l := range left {
		l.look.Lock()
		if err == nil {
			n.settled(l, l.report)
		}
		l.look.Unlock()
	}
	n.mu.Lock()
	for _, l := range left {
		n.checks--
		if err != nil {
			l.state = dirty
		} else {
			n.end(l)
		}
	}
	n.mu.Unlock()
	if err != nil {
		return err
	}
	n.hold(held, true)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.fields {
		if err := f.issue(); err != nil {
			return err
		}
	}
	return nil
}

// settle fences everybody. All operations have ended, and all members run or are dead: every proof is there, and every lease ends.
func (n *node) settle() error {
	end := time.Now().Add(hang)
	for ; !n.quiet(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return errors.New("checks do not end")
		}
	}
	n.mu.Lock()
	var peers []*hawser.Peer
	for _, p := range n.peers {
		peers = append(peers, p)
	}
	n.mu.Unlock()
	for _, p := range peers {
		for {
			err := n.fence(p)
			if err == nil {
				break
			}
			if time.Now().After(end) || !errors.Is(err, hawser.ErrUnfenced) {
				return fmt.Errorf("everybody runs, but: %w", err)
			}
		}
	}
	return n.settleRest()
}

func (n *node) quiet() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.checks == 0
}

// settleRest ends the leases of those who died before they had connected, then checks that there is nothing else.
func (n *node) settleRest() error {
	n.mu.Lock()
	for _, l := range n.leases {
		if l.state == dirty && n.peers[l.writer] == nil && !n.m.knows(l.writer) {
			n.view(l.f, l.cell, func(b []byte) { n.marked(l, b, "a cell of somebody who never was here") })
			n.end(l)
		}
	}
	left := ""
	for _, l := range n.leases {
		left += fmt.Sprintf("; lease %d of %s, state %d, report %+v", l.token, l.writer, l.state, l.report)
	}
	for id := range n.peers { // what is known of the dead is of no use any more
		if !n.m.knows(id) {
			delete(n.peers, id)
			delete(n.events, id)
		}
	}
	for _, f := range n.fields {
		for cell := range uint64(fieldKinds[f.kind].cells) {
			n.view(f, cell, func(b []byte) { n.marked(&lease{cell: cell}, b, "a free cell") })
		}
	}
	n.mu.Unlock()
	st := n.e.Stats()
	if left != "" || st.Inflight > 0 || st.Counters > 0 {
		return fmt.Errorf("after everything has ended there are %d operations in flight, %d counters%s", st.Inflight, st.Counters, left)
	}
	return nil
}
