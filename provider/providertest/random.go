package providertest

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// bond is a connection in the random test, with what each side may do over it.
type bond struct {
	lanes [2]*lane
	left  [2]bool // this side has called Disconnect or Fence
}

// anythingAtAnyTime does random things in random order: good and bad writes, messages, pauses, ends of memory, ends of
// connections. The harness checks every completion. In the end everything that was posted has ended, and each write with
// an immediate that ended with ok brought one.
func anythingAtAnyTime(w *world) {
	const nHosts, steps, size = 3, 3000, 16 << 10
	var hosts [nHosts]*host
	var box [nHosts]*region
	for i := range hosts {
		hosts[i] = w.open(fmt.Sprintf("h%d", i))
		box[i] = w.region(hosts[i], size, 0)
	}
	var bonds []*bond
	for range steps {
		w.pump()
		h := hosts[w.rng.IntN(nHosts)]
		switch w.rng.IntN(20) {
		case 0:
			if len(bonds) < 8 {
				bonds = append(bonds, w.randomBond(hosts[:], size))
			}
			continue
		case 1:
			h.paused = !h.paused
			continue
		case 2, 3:
			w.randomPost(h, recv(box[w.rng.IntN(nHosts)], w.rng.IntN(size), w.rng.IntN(1000))) // often not its own memory
			continue
		}
		if len(bonds) == 0 {
			continue
		}
		i := w.rng.IntN(len(bonds))
		side := w.rng.IntN(2)
		if w.randomAct(bonds[i], side) {
			bonds[i] = bonds[len(bonds)-1]
			bonds = bonds[:len(bonds)-1]
		}
	}
	for _, h := range hosts {
		h.paused = false
	}
	for _, b := range bonds {
		for side := range b.left {
			w.leaveBond(b, side, false)
		}
	}
	w.until("everything that was posted has ended, and every connection is down", func() bool {
		for _, h := range hosts {
			for _, s := range h.peers {
				if s.up && !s.down || s.out > 0 {
					return false
				}
			}
		}
		return true
	})
	posted, ok, got := 0, 0, 0
	for _, h := range hosts {
		posted, ok, got = posted+h.immsPosted, ok+h.immsOK, got+len(h.imms)
	}
	if got < ok || got > posted {
		w.Fatalf("%d immediates came; %d were posted and %d of them ended with ok", got, posted, ok)
	}
	w.Logf("%d immediates came; %d were posted and %d of them ended with ok", got, posted, ok)
}

// randomBond connects two hosts, with memory in both directions.
func (w *world) randomBond(hosts []*host, size int) *bond {
	i := w.rng.IntN(len(hosts))
	from, to := hosts[i], hosts[(i+1)%len(hosts)]
	was := [2]bool{from.paused, to.paused}
	from.paused, to.paused = false, false
	l := w.lane(from, to, size)
	b := &bond{lanes: [2]*lane{l, l.reverse()}}
	from.paused, to.paused = was[0], was[1]
	return b
}

func (w *world) randomPost(h *host, wrs ...provider.WR) {
	if _, err := h.tryPost(wrs); err != nil {
		w.Fatal(err)
	}
}

// randomAct does something on one side of a bond, and reports whether both sides have left it.
func (w *world) randomAct(b *bond, side int) (ended bool) {
	l := b.lanes[side]
	size := len(l.src.b)
	n := w.rng.IntN(size)
	switch w.rng.IntN(24) {
	case 0:
		w.leaveBond(b, side, false)
	case 1:
		w.leaveBond(b, side, true)
	case 2: // the memory goes away under the writer
		if err := l.to.dom.Deregister(l.dst.key); err != nil {
			w.Fatal(err)
		}
		l.dst = w.region(l.to, size, provider.AccessRemoteWrite) // not granted: the writer keeps the dead key
	case 3:
		bad := l.writeImm(0, 0, n, 0)
		bad.RemoteAddr += uint64(size)
		w.randomPost(l.from, bad)
	case 4:
		bad := l.writeImm(0, 0, n, 0)
		bad.LocalAddr += uint64(size)
		w.randomPost(l.from, bad)
	case 5, 6, 7:
		w.randomPost(l.from, send(l.peer, l.src, 0, w.rng.IntN(2000)))
	default:
		wrs := make([]provider.WR, 1+w.rng.IntN(20))
		for i := range wrs {
			n := w.rng.IntN(size)
			wrs[i] = l.write(w.rng.IntN(size-n), w.rng.IntN(size-n), n)
			if w.rng.IntN(2) == 0 {
				wrs[i].Op = provider.OpWriteImm
			}
		}
		w.randomPost(l.from, wrs...)
	}
	return b.left[0] && b.left[1]
}

// leaveBond ends a bond from one side, unless that side has ended it already.
func (w *world) leaveBond(b *bond, side int, fence bool) {
	l := b.lanes[side]
	if b.left[side] {
		return
	}
	b.left[side] = true
	leave := l.from.dom.Disconnect
	if fence {
		leave = l.from.dom.Fence
	}
	if err := leave(l.peer); err != nil {
		w.Fatalf("host %s: leave a peer that is up or down: %v", l.from.name, err)
	}
}
