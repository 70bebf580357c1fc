package sim_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// world is a fabric and the owners of its domains, all of them the test's goroutine.
type world struct {
	*testing.T
	fab    *sim.Fabric
	owners []*owner
}

// owner is the owner of one domain and what Poll has returned.
type owner struct {
	w    *world
	dom  provider.Domain
	bell *cpu.Parker
	got  []provider.Completion
	dead error // of Poll

	beside bool   // its bell is another one's
	memory []byte // that link registered, when it has bytes
	posted int    // WRs that try posted, but for receives
}

func newWorld(t *testing.T, cfg sim.Config) *world {
	w := &world{T: t, fab: sim.New(cfg)}
	t.Cleanup(w.close)
	return w
}

// close ends the owners; a test that makes many worlds calls it early.
func (w *world) close() {
	for _, o := range w.owners {
		if err := o.dom.Close(); err != nil {
			w.Error(err)
		}
	}
	for _, o := range w.owners {
		if o.beside {
			continue
		}
		if err := o.bell.Close(); err != nil {
			w.Error(err)
		}
	}
	w.owners = nil
}

func (w *world) open(host, nic string) *owner {
	w.Helper()
	return w.openBeside(host, nic, nil)
}

// openBeside opens a domain with the bell of others, if there are any.
func (w *world) openBeside(host, nic string, others []*owner) *owner {
	w.Helper()
	var bell *cpu.Parker
	var err error
	if len(others) > 0 {
		bell = others[0].bell
	} else if bell, err = cpu.NewParker(); err != nil {
		w.Fatal(err)
	}
	dom, err := w.fab.Provider(host).Open(context.Background(), provider.Device{Name: nic}, provider.Config{Bell: bell})
	if err != nil {
		w.Fatal(err)
	}
	o := &owner{w: w, dom: dom, bell: bell, beside: len(others) > 0}
	w.owners = append(w.owners, o)
	return o
}

// poll takes what all domains have ready.
func (w *world) poll() {
	cs := make([]provider.Completion, 16)
	for _, o := range w.owners {
		for o.dead == nil {
			var n int
			n, o.dead = o.dom.Poll(cs)
			o.got = append(o.got, cs[:n]...)
			if n < len(cs) {
				break
			}
		}
	}
}

// until steps a manual fabric until cond holds.
func (w *world) until(what string, cond func() bool) {
	w.Helper()
	for w.poll(); !cond(); w.poll() {
		if !w.fab.Step() {
			w.poll()
			if cond() {
				return
			}
			w.Fatalf("nothing is left to happen, but not %s", what)
		}
	}
}

// drain plays everything.
func (w *world) drain() {
	for w.fab.Step() {
		w.poll()
	}
	w.poll()
}

func (o *owner) count(k provider.Kind, s provider.Status) int {
	n := 0
	for _, c := range o.got {
		if c.Kind == k && c.Status == s {
			n++
		}
	}
	return n
}

// wait polls an auto fabric until cond holds, asleep when nothing is ready.
func (o *owner) wait(what string, cond func() bool) error {
	const guard = time.Minute
	deadline := time.Now().Add(guard)
	for {
		o.w.poll()
		if cond() {
			return nil
		}
		if time.Now().After(deadline) || !o.dom.Arm() && !o.bell.Park(guard) {
			return fmt.Errorf("not within %v: %s", guard, what)
		}
	}
}

// link is a connection between two owners and memory that each side may write to.
type link struct {
	a, b   *owner
	pa, pb provider.Peer
	local  [2]provider.Key // of a, of b
	remote [2]provider.Key // what a, what b may write to
}

const linkMemory = 1 << 20

func (w *world) link(a, b *owner, memory func(o *owner) provider.Memory) *link {
	w.Helper()
	l := &link{a: a, b: b}
	var addrA, addrB provider.Addr
	var err error
	must := func(e error) {
		w.Helper()
		if e != nil {
			w.Fatal(e)
		}
	}
	l.pa, addrA, err = a.dom.Offer()
	must(err)
	l.pb, addrB, err = b.dom.Offer()
	must(err)
	must(a.dom.Connect(l.pa, addrB, true))
	must(b.dom.Connect(l.pb, addrA, false))
	ups := a.count(provider.KindPeerUp, provider.StatusOK)
	w.until("a is up", func() bool { return a.count(provider.KindPeerUp, provider.StatusOK) > ups })
	for i, o := range [2]*owner{a, b} {
		m := memory(o)
		o.memory = m.Bytes
		l.local[i], err = o.dom.Register(m, provider.AccessRemoteWrite)
		must(err)
	}
	n := memory(a).Len()
	l.remote[1], err = a.dom.Grant(l.local[0], l.pa, 0, n)
	must(err)
	l.remote[0], err = b.dom.Grant(l.local[1], l.pb, 0, n)
	must(err)
	return l
}

func heap(*owner) provider.Memory { return provider.Memory{Bytes: make([]byte, linkMemory), FD: -1} }

// write is a write with an immediate from one side, 0 or 1.
func (l *link) write(side int, token, n uint64) provider.WR {
	return provider.WR{
		Op: provider.OpWriteImm, Token: token, Imm: uint32(token), Len: n,
		Peer:     [2]provider.Peer{l.pa, l.pb}[side],
		LocalKey: l.local[side].ID, LocalAddr: l.local[side].Base,
		RemoteKey: l.remote[side].ID, RemoteAddr: l.remote[side].Base,
	}
}

func (o *owner) post(wrs ...provider.WR) {
	o.w.Helper()
	if n, err := o.dom.Post(wrs); err != nil || n != len(wrs) {
		o.w.Fatalf("post accepted %d of %d, %v", n, len(wrs), err)
	}
}
