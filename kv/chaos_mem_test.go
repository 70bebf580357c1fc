package kv

import (
	"cmp"
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
)

// chaosRemote is what a Remote stands for.
type chaosRemote struct {
	s  *session
	on *host
}

func (h *host) Describe(*hawser.Region) ([]byte, error) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	h.serial++
	return binary.LittleEndian.AppendUint64([]byte(h.name+"\n"), h.serial), nil
}

func (h *host) Import(ctx context.Context, from *hawser.Peer, descriptor []byte) (*hawser.Remote, uint64, error) {
	name, serial, _ := strings.Cut(string(descriptor), "\n")
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	wait := h.slowImport + h.c.delay()
	h.imports++
	h.mostImports = max(h.mostImports, h.imports)
	h.c.mu.Unlock()
	select {
	case <-time.After(wait):
	case <-ctx.Done():
	}
	h.c.mu.Lock()
	h.imports--
	s, o, err := h.sessionWith(from)
	n := binary.LittleEndian.Uint64([]byte(serial))
	switch {
	case ctx.Err() != nil:
		return nil, 0, context.Cause(ctx)
	case err != nil:
		return nil, 0, err
	case o.name != name:
		return nil, 0, hawser.ErrAccess
	case n <= o.fencedAt[h] || !s.up[o]:
		return nil, 0, hawser.ErrStale
	}
	r := new(hawser.Remote)
	h.c.remotes[r] = chaosRemote{s, o}
	return r, 1 << 50, nil
}

// count is a counter of the network.
type count struct {
	h       *host
	imm     uint32
	n       uint64
	from    map[*hawser.Peer]uint64
	waiters []countWaiter
}

type countWaiter struct {
	n uint64
	f func()
}

// Take is called by a decoder that has just reserved the pages of an attempt.
func (h *host) Take() (counter, error) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	if len(h.values) == 0 {
		return nil, hawser.ErrLimit
	}
	n := &count{h: h, imm: h.values[0], from: map[*hawser.Peer]uint64{}}
	h.values = h.values[1:]
	h.counts[n.imm] = n
	h.shadows[h.lent] = &shadow{imm: n.imm, landed: map[cell]bool{}}
	return n, nil
}

func (n *count) Imm() uint32 { return n.imm }

func (n *count) Load() uint64 {
	n.h.c.mu.Lock()
	defer n.h.c.mu.Unlock()
	return n.n
}

func (n *count) From(p *hawser.Peer) uint64 {
	n.h.c.mu.Lock()
	defer n.h.c.mu.Unlock()
	return n.from[p]
}

func (n *count) OnReach(at uint64, f func()) (stop func()) {
	n.h.c.mu.Lock()
	defer n.h.c.mu.Unlock()
	n.waiters = append(n.waiters, countWaiter{at, f})
	n.wake()
	return nil
}

func (n *count) wake() {
	n.waiters = slices.DeleteFunc(n.waiters, func(w countWaiter) bool {
		if w.n > n.n {
			return false
		}
		n.h.call(w.f)
		return true
	})
}

// Close is called when the decoder believes that nothing of the attempt can land any more.
func (n *count) Close() {
	n.h.c.mu.Lock()
	defer n.h.c.mu.Unlock()
	if n.h.counts[n.imm] != n {
		n.h.c.broken("%s: value %#x is given back twice", n.h.name, n.imm)
	}
	delete(n.h.counts, n.imm)
	n.h.values = append(n.h.values, n.imm)
	for seq, a := range n.h.shadows {
		if a.imm == n.imm {
			n.h.c.note("%s: attempt %d is quiet, %d counted", n.h.name, seq, n.n)
			delete(n.h.shadows, seq)
		}
	}
}

// count counts a landing. Needs mu.
func (s *session) count(l *landing) {
	if !s.pending[l] {
		return
	}
	delete(s.pending, l)
	a, n := l.on.shadows[l.seq], l.on.counts[l.imm]
	if l.on.dead {
		return
	}
	if a == nil || n == nil || a.imm != l.imm {
		s.c.broken("%s: a write of attempt %d is counted after the attempt was quiet", l.on.name, l.seq)
		return
	}
	n.n++
	n.from[l.by]++
	n.wake()
}

// chaosWrite is an operation of a prefiller that is outstanding.
type chaosWrite struct {
	h      *host
	s      *session
	cookie uint64
	left   int // pages
	err    error
	done   bool
}

// Writes makes the host's only queue.
func (h *host) Writes(int) writes { return h }

func (h *host) WritePages(w hawser.WritePages, cookie uint64) error {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.remotes[w.Dst.Remote]
	switch {
	case h.dead:
		return hawser.ErrClosed
	case !r.s.up[h]:
		return hawser.ErrStale
	case h.full > 0, c.fault("no room", 0.02):
		h.full--
		return hawser.ErrBusy
	}
	// The prefiller's lock is held: this is called from post.
	job := h.p.posts[cookie].job
	id := attemptID{job.link.epoch, job.seq}
	if h.said[id] {
		c.broken("%s writes for attempt %d, and has said that it has ended", h.name, job.seq)
	}
	x := &chaosWrite{h: h, s: r.s, cookie: cookie, left: len(w.Dst.Indices)}
	h.writes[x] = true
	view := int(w.Dst.Offset / viewSize)
	for _, page := range w.Dst.Indices {
		l := &landing{on: r.on, imm: job.imm, seq: job.seq, by: r.on.peer(h)}
		if c.fault("write fails", 0.0005) {
			x.err = cmp.Or(x.err, hawser.ErrAccess)
			c.later(x.landed)
			continue
		}
		c.later(func() {
			r.s.land(l, cell{view, page})
			x.landed()
		})
	}
	return nil
}

// land places a write, unless the host has fenced the session. Needs mu.
func (s *session) land(l *landing, at cell) {
	if s.fenced[l.on] || l.on.dead {
		return
	}
	s.c.landed++
	if owner := l.on.owner[at.page]; owner != l.seq {
		s.c.broken("%s: a write of attempt %d lands on page %d, which is lent to attempt %d", l.on.name, l.seq, at.page, owner)
	}
	if a := l.on.shadows[l.seq]; a != nil {
		if a.landed[at] {
			s.c.broken("%s: attempt %d is written twice at %v", l.on.name, l.seq, at)
		}
		a.landed[at] = true
	}
	l.on.content[at] = l.seq
	s.pending[l] = true
	s.c.later(func() { s.count(l) })
}

// landed is called for each page. Needs mu.
func (x *chaosWrite) landed() {
	if x.left--; x.left == 0 {
		x.h.c.later(func() { x.complete(x.err) })
	}
}

// complete tells the prefiller, once. Needs mu.
func (x *chaosWrite) complete(err error) {
	if x.done {
		return
	}
	x.done = true
	delete(x.h.writes, x)
	x.h.ends = append(x.h.ends, hawser.Done{Cookie: x.cookie, Err: err})
	signal(x.h.ended)
}

func (h *host) Wait(ctx context.Context, out []hawser.Done) (int, error) {
	for {
		h.c.mu.Lock()
		n := copy(out, h.ends)
		h.ends = h.ends[n:]
		dead := h.dead
		h.c.mu.Unlock()
		switch {
		case dead:
			return 0, hawser.ErrClosed
		case n > 0:
			return n, nil
		}
		select {
		case <-h.ended:
		case <-h.gone:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// spyOn lets the network know what a decoder's pool lends.
func (h *host) spyOn(pool *Pool) {
	h.owner = make([]uint64, pool.Pages())
	pool.spy = func(pages []uint32, owner uint64) {
		h.c.mu.Lock()
		defer h.c.mu.Unlock()
		if owner != 0 {
			h.lent = owner
		}
		for _, p := range pages {
			h.owner[p] = owner
		}
	}
}

// check compares the pages of an attempt that is ready with what it wrote.
func (h *host) check(seq uint64, pages []uint32, views int) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for view := range views {
		for _, page := range pages {
			if got := h.content[cell{view, page}]; got != seq {
				h.c.broken("%s: attempt %d is ready, and page %d of view %d has content of attempt %d", h.name, seq, page, view, got)
				return
			}
		}
	}
}
