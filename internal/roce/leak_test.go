//go:build vm

package roce

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"regexp"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

var (
	leakTime  = flag.Duration("roce.leak", 15*time.Second, "how long the test of leaks goes on")
	leakPeers = flag.Int("roce.peers", 8, "how many peers its engine has at once")
)

const (
	leakRails = 8
	// leakRoom is what the kernel's own memory may differ by: lists per processor, and what it has learned of addresses. One queue pair
	// with its queues is some 100 KiB, and hundreds of them come and go.
	leakRoom = 4 << 10 // KiB
)

// An engine with 8 rails and its peers work, and fail in all the ways that there are, again and again: at the end the devices have what they
// had, and the kernel as much memory.
func TestNothingIsLeftOfWorkWithFailures(t *testing.T) {
	ps := cablesFor(t, leakRails)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	before := resources(t)
	l := &leak{t: t, rng: rng, pairs: ps}
	l.cycle() // what is made once is made here
	if now := resources(t); now != before {
		t.Fatalf("after one cycle there are %s, before there were %s", now, before)
	}
	memory := kernelMemory(t)
	cycles := 0
	for began := time.Now(); time.Since(began) < *leakTime && !t.Failed(); cycles++ {
		l.cycle()
	}
	eventually(t, "no queue pair is left", func() bool { return resources(t) == before })
	grown := kernelMemory(t) - memory
	fmt.Printf("roce: %d cycles of %d peers over %d rails: %d writes, %d of them failed, %d peers fenced, %d left in mid-transfer, %d cables out; kernel memory %+d KiB\n",
		cycles+1, *leakPeers, leakRails, l.writes, l.failed, l.fenced, l.left, l.cut, grown)
	if grown > leakRoom {
		t.Errorf("the kernel has %d KiB more than after the first cycle", grown)
	}
	if bad := trouble.FindString(run(t, "dmesg")); bad != "" {
		t.Errorf("the kernel says: %s", bad)
	}
}

// trouble is what a kernel says when it is misused.
var trouble = regexp.MustCompile(`(?m)^.*(WARNING:|BUG:|blocked for more than|rdma_rxe.*(overflow|leak|not all|timed out)).*$`)

// leak is the state of the test. Its counts are guarded by mu.
type leak struct {
	t     *testing.T
	rng   *rand.Rand // of the test's goroutine
	pairs []pair

	mu                                sync.Mutex
	writes, failed, fenced, left, cut int
}

// member is a peer and both sides' memory.
type member struct {
	e    *hawser.Engine
	mem  *hawser.Region
	rem  *hawser.Remote // its memory, of the hub
	back *hawser.Remote // the hub's memory, of it
}

// cycle opens the engine and its peers, has all work, lets some fail, and closes everything.
func (l *leak) cycle() {
	t := l.t
	hub, err := hawser.Open(testContext(t), options(0, overVerbs(l.pairs...)))
	if err != nil {
		t.Fatal(err)
	}
	mem := alloc(t, hub)
	desc := mem.Descriptor(mem.All(), hawser.RightWrite)
	members := make([]*member, *leakPeers)
	for i := range members {
		e, err := hawser.Open(testContext(t), options(1, overVerbs(l.pairs...)))
		if err != nil {
			t.Fatal(err)
		}
		m := &member{e: e, mem: alloc(t, e)}
		members[i] = m
		if m.rem, err = hub.Import(testContext(t), m.mem.Descriptor(m.mem.All(), hawser.RightWrite)); err != nil {
			t.Fatal(err)
		}
		if m.back, err = e.Import(testContext(t), desc); err != nil {
			t.Fatal(err)
		}
	}
	l.work(hub, mem, members, false)

	// Each fault has peers of its own; the cable is everybody's.
	order := l.rng.Perm(len(members))
	gone, out, region := members[order[0]], members[order[1]], members[order[2]]
	cable := l.pairs[l.rng.IntN(len(l.pairs))]
	faults := beside(t, func() error {
		if err := cable.link(t, "down"); err != nil {
			return err
		}
		err := errors.Join(
			closeEngine(gone.e),
			hub.Fence(testContext(t), out.rem.Peer()),
			region.mem.Close(),
		)
		return errors.Join(err, cable.link(t, "up"))
	})
	l.work(hub, mem, members, true)
	<-faults
	l.fenced, l.left, l.cut = l.fenced+1, l.left+1, l.cut+1

	for _, e := range append([]*hawser.Engine{hub}, engines(members)...) {
		for _, r := range e.Stats().Rails {
			if r.Dead {
				t.Errorf("rail %s is dead: a queue of the card was overrun, or the card failed", r.Device)
			}
		}
		if err := closeEngine(e); err != nil {
			t.Error(err)
		}
	}
}

func engines(members []*member) []*hawser.Engine {
	var all []*hawser.Engine
	for _, m := range members {
		all = append(all, m.e)
	}
	return all
}

func closeEngine(e *hawser.Engine) error {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	return e.Close(ctx)
}

// work has every peer and the hub write, signal and talk to each other for a while. Where faults are about, operations may fail, but all end.
func (l *leak) work(hub *hawser.Engine, mem *hawser.Region, members []*member, faults bool) {
	var all sync.WaitGroup
	for _, m := range members {
		for _, way := range []struct {
			e   *hawser.Engine
			src *hawser.Region
			dst *hawser.Remote
		}{{hub, mem, m.rem}, {m.e, m.mem, m.back}} {
			all.Go(func() { l.drive(way.e, way.src, way.dst, faults) })
		}
	}
	all.Wait()
}

func (l *leak) drive(e *hawser.Engine, src *hawser.Region, dst *hawser.Remote, faults bool) {
	const each = 4
	var trs []*hawser.Transfer
	failed := 0
	note := func(what string, err error) {
		if err == nil {
			return
		}
		failed++
		if !faults {
			l.t.Errorf("%s without a fault: %v", what, err)
		}
	}
	add := func(tr *hawser.Transfer, err error) {
		if err == nil {
			trs = append(trs, tr)
		}
		note("submit", err)
	}
	for i := range each {
		add(e.Write(hawser.Write{Src: src.Slice(0, 8*page), Dst: dst.Slice(0, 8*page), Imm: hawser.Imm(immData), Parts: 4}))
		add(e.WritePages(hawser.WritePages{
			PageLen: 512, Imm: hawser.Imm(immData),
			Src: hawser.Pages{Region: src, Stride: 512, Indices: []uint32{1, 3, 5, 7}},
			Dst: hawser.RemotePages{Remote: dst, Stride: 512, Indices: []uint32{7, 5, 3, 1}},
		}))
		add(e.Signal(hawser.Signal{To: dst.Peer(), Imm: immData + 1}))
		if i == 0 {
			add(e.Send(dst.Peer(), []byte("so it goes")))
		}
	}
	for _, tr := range trs {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		err := tr.Wait(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			l.t.Errorf("an operation does not end: %v", err)
		}
		note("operation", err)
		cancel()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes += len(trs)
	l.failed += failed
}

// cablesFor returns n pairs: those of the VM, and more that the test makes, with their devices.
func cablesFor(t *testing.T, n int) []pair {
	t.Helper()
	have := allPairs()
	for len(have) < n {
		p := pair{number: len(have)}
		for side := range 2 {
			p.dev[side] = fmt.Sprintf("extra%d%c", p.number, "ab"[side])
		}
		run(t, "ip", "link", "add", p.netdev(0), "mtu", "4500", "type", "veth", "peer", "name", p.netdev(1), "mtu", "4500")
		t.Cleanup(func() { run(t, "ip", "link", "del", p.netdev(0)) }) // its devices go with it
		for side := range 2 {
			run(t, "ip", "link", "set", p.netdev(side), "up")
			run(t, "ip", "addr", "add", p.addr(side)+"/24", "dev", p.netdev(side))
			run(t, "rdma", "link", "add", p.dev[side], "type", "rxe", "netdev", p.netdev(side))
		}
		eventually(t, "cable of "+p.dev[0], p.up)
		have = append(have, p)
	}
	return have[:n]
}
