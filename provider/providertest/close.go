package providertest

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// closeBound is how long Close may block: "briefly", on a busy machine.
const closeBound = 5 * time.Second

func (w *world) mustClose(h *host) {
	w.Helper()
	start := time.Now()
	if err := h.close(); err != nil {
		w.Fatalf("host %s: close: %v", h.name, err)
	}
	if took := time.Since(start); took > closeBound {
		w.Fatalf("host %s: close took %v", h.name, took)
	}
}

func closeWithWorkOutstanding(w *world) {
	a, b, c := w.open("a"), w.open("b"), w.open("c")
	ab, cb, ac := w.lane(a, b, 64<<10), w.lane(c, b, 64<<10), w.lane(a, c, 64<<10)
	ba := ab.reverse()
	b.paused = true
	for i := range a.caps.PeerDepth {
		wr := ab.writeImm(0, 0, 16<<10, uint32(i))
		if i%3 == 2 {
			wr = send(ab.peer, ab.src, 0, 100)
		}
		if _, err := a.tryPost([]provider.WR{wr}); err != nil {
			w.Fatal(err)
		}
		if _, err := a.tryPost([]provider.WR{ac.writeImm(0, 0, 100, uint32(i))}); err != nil {
			w.Fatal(err)
		}
	}
	if _, err := a.tryPost([]provider.WR{recv(ab.src, 0, 100)}); err != nil {
		w.Fatal(err)
	}
	p, _ := a.offer()
	_, addr := b.offer()
	a.mustConnect(p, addr, true) // in the middle of connecting
	a.offer()
	if _, err := b.tryPost([]provider.WR{ba.writeImm(0, 0, 100, 1), send(ba.peer, ba.src, 0, 100)}); err != nil {
		w.Fatal(err)
	}
	w.mustClose(a)
	b.paused = false
	w.until("the peers of a closed domain see KindPeerDown", func() bool { return b.peer(ab.back).down && c.peer(ac.back).down })
	for _, s := range []*peerState{b.peer(ab.back), c.peer(ac.back)} {
		if s.downStatus != provider.StatusPeerDown {
			w.Errorf("KindPeerDown after the other side's Close has status %v, want peer-down", s.downStatus)
		}
	}
	cb.works()

	cs := make([]provider.Completion, 4)
	_, errPost := a.dom.Post([]provider.WR{ab.write(0, 0, 1)})
	_, errPoll := a.dom.Poll(cs)
	_, _, errOffer := a.dom.Offer()
	_, errRegister := a.dom.Register(provider.Memory{Bytes: ab.src.b, FD: -1}, 0)
	_, errGrant := a.dom.Grant(ab.src.key, ab.peer, 0, 64)
	for _, call := range []struct {
		name string
		err  error
	}{
		{"post", errPost},
		{"poll", errPoll},
		{"offer", errOffer},
		{"register", errRegister},
		{"grant", errGrant},
		{"connect", a.dom.Connect(p, addr, true)},
		{"disconnect", a.dom.Disconnect(ab.peer)},
		{"fence", a.dom.Fence(ab.peer)},
		{"deregister", a.dom.Deregister(ab.src.key)},
	} {
		if !errors.Is(call.err, provider.ErrClosed) {
			w.Errorf("%s after Close returned %v, want ErrClosed", call.name, call.err)
		}
	}
	if err := a.dom.Close(); err != nil && !errors.Is(err, provider.ErrClosed) {
		w.Errorf("a second Close returned %v, want nil or ErrClosed", err)
	}
}

// leftovers is what a process holds that a provider could leave behind.
type leftovers struct{ goroutines, fds, mappings, pinned int }

func count(t *testing.T) leftovers {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	// The Go heap comes and goes as it likes; only mappings with a memfd behind them are counted.
	return leftovers{runtime.NumGoroutine(), len(fds), bytes.Count(maps, []byte("memfd:")), pinned(t)}
}

// pinned is the memory of this process that is locked or pinned, in KiB.
func pinned(t *testing.T) (sum int) {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		var kib int
		if name, value, _ := strings.Cut(line, ":"); name == "VmLck" || name == "VmPin" {
			if _, err := fmt.Sscanf(value, "%d kB", &kib); err != nil {
				t.Fatalf("/proc/self/status: %q: %v", line, err)
			}
			sum += kib
		}
	}
	return sum
}

func closeLeavesNothing(w *world) {
	s := w.span(64 << 10)
	cycle := func(first, second int) {
		hosts := []*host{w.open("a"), w.open("b"), w.open("c")}
		lanes := []*lane{}
		for i, from := range hosts {
			for j, to := range hosts {
				if i == j {
					continue
				}
				l := &lane{w: w, from: from, to: to}
				l.peer, l.back = w.connect(from, to)
				l.src, l.dst = w.register(from, s, 0), w.register(to, s, provider.AccessRemoteWrite)
				l.key = w.grant(l.dst, l.back)
				lanes = append(lanes, l)
			}
		}
		for _, l := range lanes {
			l.works()
		}
		for _, l := range lanes {
			l.from.post(l.writeImm(0, 0, 32<<10, 2), send(l.peer, l.src, 0, 1000)) // left outstanding
		}
		p, _ := hosts[0].offer()
		_, addr := hosts[1].offer()
		hosts[0].mustConnect(p, addr, true) // left half open
		if err := hosts[2].dom.Disconnect(lanes[4].peer); err != nil {
			w.Fatal(err)
		}
		w.mustClose(hosts[first])
		w.pump()
		w.mustClose(hosts[second])
		w.mustClose(hosts[3-first-second])
		w.mustClose(w.open("a")) // opened and closed at once
		w.hosts = w.hosts[:0]
	}
	cycle(0, 1) // what is made once and kept is no leak
	before := count(w.T)
	cycle(1, 2)
	cycle(2, 0)
	var after leftovers
	w.until("closed domains leave no goroutine, descriptor, mapping or pinned page", func() bool {
		after = count(w.T)
		if after.goroutines <= before.goroutines && after.fds <= before.fds && after.mappings <= before.mappings && after.pinned <= before.pinned {
			return true
		}
		runtime.Gosched()
		return false
	})
}

// steadyStateAllocatesNothing counts the allocations of a round of a write with an immediate and a message in each
// direction.
func steadyStateAllocatesNothing(w *world) {
	const runs, warmRounds, pollsBound = 200, 500, 10_000_000
	ab := w.pair(4096)
	ba := ab.reverse()
	a, b := ab.from, ab.to
	boxA, boxB := w.region(a, 64, 0), w.region(b, 64, 0)
	fromA := []provider.WR{recv(boxA, 0, 64), ab.writeImm(0, 0, 4096, 1), ab.write(1, 1, 100), send(ab.peer, ab.src, 0, 64)}
	fromB := []provider.WR{recv(boxB, 0, 64), ba.writeImm(0, 0, 4096, 1), ba.write(1, 1, 100), send(ba.peer, ba.src, 0, 64)}
	perSide := len(fromA) + 1 // its own WRs and the peer's immediate
	cs := make([]provider.Completion, pollBatch)
	var fault string
	round := func() {
		if fault != "" {
			return
		}
		na, errA := a.dom.Post(fromA)
		nb, errB := b.dom.Post(fromB)
		if errA != nil || errB != nil || na != len(fromA) || nb != len(fromB) {
			fault = "post did not accept a round"
			return
		}
		gotA, gotB := 0, 0
		for polls := 0; gotA < perSide || gotB < perSide; polls++ {
			if w.net.Pump != nil {
				w.net.Pump()
			}
			for _, side := range [...]struct {
				h   *host
				got *int
			}{{a, &gotA}, {b, &gotB}} {
				n, err := side.h.dom.Poll(cs)
				if err != nil || polls > pollsBound {
					fault = "a round did not complete"
					return
				}
				for i := range cs[:n] {
					if cs[i].Status != provider.StatusOK {
						fault = "a WR did not end with ok: " + cs[i].Kind.String() + " " + cs[i].Status.String()
						return
					}
				}
				*side.got += n
				if n == 0 && !side.h.dom.Arm() {
					runtime.Gosched()
				}
			}
		}
	}
	for range warmRounds {
		round()
	}
	n := testing.AllocsPerRun(runs, round)
	if fault != "" {
		w.Fatal(fault)
	}
	if n != 0 {
		w.Fatalf("%v allocations in a round of %d WRs", n, len(fromA)+len(fromB))
	}
}
