package providertest

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// wakeGuard is how long an owner sleeps before its wake counts as lost.
const wakeGuard = 30 * time.Second

// await runs the host's domain as an engine does until cond holds: poll, arm, park. The calling goroutine owns the host.
// parked is told each time before it sleeps; nil tells nobody.
func (h *host) await(what string, cond func() bool, parked *atomic.Int64) error {
	deadline := time.Now().Add(hangGuard)
	for round := 1; !cond(); round++ {
		n, err := h.step()
		if err != nil {
			return err
		}
		if (n == 0 || round%idleRounds == 0) && time.Now().After(deadline) {
			return fmt.Errorf("host %s: not within %v: %s", h.name, hangGuard, what)
		}
		if n > 0 {
			continue
		}
		if h.dom.Arm() {
			runtime.Gosched()
			continue
		}
		if parked != nil {
			parked.Add(1)
		}
		if !h.bell.Park(h.patience) {
			n, err := h.step()
			lost := fmt.Errorf("host %s: no wake in %v while waiting until %s (a poll then found %d completions)",
				h.name, h.patience, what, n)
			return errors.Join(lost, err)
		}
	}
	return nil
}

// linger keeps the host's domain moving after its own work, until the other owner has finished: a write may need the polls of
// the peer's owner to complete. The calling goroutine owns the host.
func (h *host) linger(finished *atomic.Bool) error {
	for !finished.Load() {
		n, err := h.step()
		if err != nil {
			return err
		}
		if n == 0 && !h.dom.Arm() {
			h.bell.Park(idlePark) // short: nobody rings when the other has finished
		}
	}
	return nil
}

// both runs f on a goroutine of its own beside g and returns when both have ended.
func (w *world) both(f, g func() error) {
	w.Helper()
	done := make(chan error, 1)
	go func() { done <- f() }()
	err := g()
	if err != nil {
		w.Error(err)
	}
	if err := <-done; err != nil {
		w.Error(err)
	}
	if w.Failed() {
		w.FailNow()
	}
}

// noWakeIsLost: two owners that sleep unless the other has written; one lost wake stops the exchange. The payload is read
// by another goroutine than the one that wrote it.
func noWakeIsLost(w *world) {
	const rounds, size = 1000, 64
	ab := w.lane(w.openOwn("a"), w.openOwn("b"), size)
	ba := ab.reverse()
	var finished atomic.Bool
	call := func() error {
		a := ab.from
		for r := range rounds {
			for i := range ab.src.b {
				ab.src.b[i] = byte(r + i)
			}
			if _, err := a.tryPost([]provider.WR{ab.writeImm(0, 0, size, uint32(r))}); err != nil {
				return err
			}
			// The write must also have ended: the next round changes its source.
			err := a.await(fmt.Sprintf("round %d's answer comes", r), func() bool { return len(a.imms) > r && len(a.out) == 0 }, nil)
			if err != nil {
				return err
			}
			if at := differ(ba.dst.b, ab.src.b); at >= 0 {
				return fmt.Errorf("round %d: byte %d of the answer is %#x, want %#x", r, at, ba.dst.b[at], ab.src.b[at])
			}
		}
		return a.linger(&finished)
	}
	w.both(call, func() error {
		defer finished.Store(true)
		return echo(ba, rounds, ab.dst)
	})
}

// echo waits for each round's immediate and copies the payload back.
func echo(l *lane, rounds int, in *region) error {
	me := l.from
	for r := range rounds {
		err := me.await(fmt.Sprintf("round %d's immediate comes", r), func() bool { return len(me.imms) > r && len(me.out) == 0 }, nil)
		if err != nil {
			return err
		}
		copy(l.src.b, in.b)
		if _, err := me.tryPost([]provider.WR{l.writeImm(0, 0, len(in.b), uint32(r))}); err != nil {
			return err
		}
	}
	return me.await("the last write completes", func() bool { return len(me.out) == 0 }, nil)
}

// peerUpAndDownWake: everything that can happen to an owner that sleeps wakes it.
func peerUpAndDownWake(w *world) {
	a, b := w.openOwn("a"), w.openOwn("b")
	pa, addrA := a.offer()
	pb, addrB := b.offer()
	box := w.region(a, 64, 0)
	src := w.region(b, 64, 0)
	var parked atomic.Int64
	a.mustConnect(pa, addrB, true)
	sleeper := func() error {
		if err := a.await("KindPeerUp", func() bool { return a.peer(pa).up }, &parked); err != nil {
			return err
		}
		if err := a.await("an immediate comes", func() bool { return len(a.imms) == 1 }, &parked); err != nil {
			return err
		}
		if _, err := a.tryPost([]provider.WR{recv(box, 0, 64)}); err != nil {
			return err
		}
		if err := a.await("a message comes", func() bool { return len(a.msgs) == 1 }, &parked); err != nil {
			return err
		}
		if _, err := a.tryPost([]provider.WR{send(pa, box, 0, 64)}); err != nil {
			return err
		}
		if err := a.await("a message is taken", func() bool { return len(a.out) == 0 }, &parked); err != nil {
			return err
		}
		return a.await("KindPeerDown", func() bool { return a.peer(pa).down }, &parked)
	}
	waker := func() error {
		seen := int64(0)
		// asleep polls until the sleeper is about to park again.
		asleep := func() error {
			deadline := time.Now().Add(hangGuard)
			for parked.Load() == seen {
				if _, err := b.step(); err != nil {
					return err
				}
				if time.Now().After(deadline) {
					return fmt.Errorf("the sleeper does not sleep: Arm keeps reporting true though nothing is to come")
				}
				runtime.Gosched()
			}
			seen = parked.Load()
			return nil
		}
		acts := []func() error{
			func() error { return b.dom.Connect(pb, addrA, false) },
			func() error {
				_, err := b.tryPost([]provider.WR{{Op: provider.OpWriteImm, Peer: pb, Imm: 1}})
				return err
			},
			func() error { _, err := b.tryPost([]provider.WR{send(pb, src, 0, 64)}); return err },
			func() error { _, err := b.tryPost([]provider.WR{recv(src, 0, 64)}); return err },
			func() error { return b.dom.Disconnect(pb) },
		}
		for i, act := range acts {
			if err := asleep(); err != nil {
				return fmt.Errorf("before act %d: %w", i, err)
			}
			if err := act(); err != nil {
				return fmt.Errorf("act %d: %w", i, err)
			}
			if i == 0 {
				if err := b.await("KindPeerUp", func() bool { return b.peer(pb).up }, nil); err != nil {
					return err
				}
			}
			if err := b.await("b's own WRs complete", func() bool { return len(b.out) == 0 || i == 3 }, nil); err != nil {
				return err
			}
			if i == 3 {
				if err := b.await("the sleeper's message comes", func() bool { return len(b.msgs) == 1 }, nil); err != nil {
					return err
				}
			}
		}
		return b.await("KindPeerDown", func() bool { return b.peer(pb).down }, nil)
	}
	w.both(sleeper, waker)
}

// oneBellForManyDomains: one owner sleeps on three domains; a write to any of them wakes it.
func oneBellForManyDomains(w *world) {
	const domains, rounds = 3, 300
	caller := w.openOwn("caller")
	bell := w.newBell()
	var lanes [domains]*lane
	var owned [domains]*host
	for i := range lanes {
		owned[i] = w.openWith(fmt.Sprintf("owned%d", i), provider.Config{Bell: bell}, bell)
		lanes[i] = w.lane(caller, owned[i], 64)
	}
	order := make([]int, rounds)
	for i := range order {
		order[i] = w.rng.IntN(domains)
	}
	var finished atomic.Bool
	sleeper := func() error {
		defer finished.Store(true)
		got := 0
		deadline := time.Now().Add(hangGuard)
		for got < rounds {
			ready := false
			for i, h := range owned {
				before := len(h.imms)
				n, err := h.step()
				if err != nil {
					return err
				}
				ready = ready || n > 0
				for range len(h.imms) - before {
					got++
					if _, err := h.tryPost([]provider.WR{{Op: provider.OpWriteImm, Peer: lanes[i].back, Imm: 1}}); err != nil {
						return err
					}
				}
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("the sleeper has only %d of %d immediates after %v", got, rounds, hangGuard)
			}
			for _, h := range owned {
				ready = h.dom.Arm() || ready
			}
			if ready {
				runtime.Gosched()
				continue
			}
			if !bell.Park(wakeGuard) {
				return fmt.Errorf("no wake in %v after %d of %d immediates to domains that share a bell", wakeGuard, got, rounds)
			}
		}
		// The last answer may need this owner to move.
		for _, h := range owned {
			if err := h.await("the last answer completes", func() bool { return len(h.out) == 0 }, nil); err != nil {
				return err
			}
		}
		return nil
	}
	call := func() error {
		for r, i := range order {
			if _, err := caller.tryPost([]provider.WR{lanes[i].writeImm(0, 0, 64, 1)}); err != nil {
				return err
			}
			if err := caller.await(fmt.Sprintf("answer %d comes", r), func() bool { return len(caller.imms) == r+1 }, nil); err != nil {
				return err
			}
		}
		return caller.linger(&finished)
	}
	w.both(sleeper, call)
}

// ownersOnManyGoroutines: hosts that share the provider but nothing else write to each other, each from its own goroutine.
func ownersOnManyGoroutines(w *world) {
	const owners, total, slot = 4, 300, 1024
	hosts := make([]*host, owners)
	lanes := make([][]*lane, owners) // by writer
	for i := range hosts {
		hosts[i] = w.openOwn(fmt.Sprintf("h%d", i))
	}
	for i, from := range hosts {
		for j, to := range hosts {
			if i != j {
				lanes[i] = append(lanes[i], w.lane(from, to, slot))
			}
		}
	}
	const want = (owners - 1) * total
	var finished atomic.Int64
	run := func(i int) error {
		h := hosts[i]
		posted := make([]int, len(lanes[i]))
		deadline := time.Now().Add(hangGuard)
		for counted := false; finished.Load() < owners; {
			for k, l := range lanes[i] {
				if posted[k] < total {
					toks, err := h.tryPost([]provider.WR{l.writeImm(0, 0, 1+posted[k]%slot, uint32(posted[k]))})
					if err != nil {
						return err
					}
					posted[k] += len(toks)
				}
			}
			n, err := h.step()
			if err != nil {
				return err
			}
			if !counted && len(h.imms) == want && len(h.out) == 0 {
				counted = true
				finished.Add(1)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("host %s: %d of %d immediates after %v", h.name, len(h.imms), want, hangGuard)
			}
			if n == 0 && !h.dom.Arm() {
				h.bell.Park(idlePark) // short: nobody rings when the others have finished
			}
		}
		if len(h.imms) != want {
			return fmt.Errorf("host %s: %d immediates, want %d", h.name, len(h.imms), want)
		}
		return nil
	}
	errs := make(chan error, owners)
	for i := range hosts {
		go func() { errs <- run(i) }()
	}
	for range hosts {
		if err := <-errs; err != nil {
			w.Error(err)
		}
	}
}
