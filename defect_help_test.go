package hawser_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
)

// wrapped is w with every Domain of its engines passed through wrap.
func (w *world) wrapped(wrap func(provider.Domain) provider.Domain) *world {
	return &world{name: w.name, heap: w.heap, options: func(i, rails int) hawser.Options {
		o := w.options(i, rails)
		o.Providers[0] = providertest.Decorate(o.Providers[0], wrap)
		return o
	}}
}

// valve keeps completions from its owner while it is shut. What it holds comes with the owner's next look after it was opened.
type valve struct {
	shut atomic.Bool
	kept atomic.Int64                   // held now
	keep func(provider.Completion) bool // what it holds
}

func (v *valve) wrap(d provider.Domain) provider.Domain { return &valveDomain{Domain: d, v: v} }

type valveDomain struct {
	provider.Domain
	v    *valve
	held []provider.Completion
}

func (d *valveDomain) Poll(cs []provider.Completion) (int, error) {
	if !d.v.shut.Load() && len(d.held) > 0 {
		n := copy(cs, d.held)
		d.held = d.held[n:]
		d.v.kept.Add(int64(-n))
		return n, nil
	}
	n, err := d.Domain.Poll(cs)
	if !d.v.shut.Load() {
		return n, err
	}
	passed := 0
	for _, c := range cs[:n] {
		if d.v.keep(c) {
			d.held = append(d.held, c)
			d.v.kept.Add(1)
			continue
		}
		cs[passed] = c
		passed++
	}
	return passed, err
}

func (d *valveDomain) Arm() bool {
	return !d.v.shut.Load() && len(d.held) > 0 || d.Domain.Arm()
}

// open lets through what was held; e is who owns the domains.
func (v *valve) open(e *hawser.Engine) {
	v.shut.Store(false)
	e.Stats() // its worker looks
}

// writeEnds are the ends of writes that were placed.
func writeEnds(c provider.Completion) bool {
	return c.Kind == provider.KindWrite && c.Status == provider.StatusOK
}

// ledger notes what is registered on each Domain, and fails registrations when it is told to.
type ledger struct {
	mu      sync.Mutex
	domains []*ledgerDomain // guarded by mu
	refuse  func(domain int) error
}

func (l *ledger) wrap(d provider.Domain) provider.Domain {
	l.mu.Lock()
	defer l.mu.Unlock()
	ld := &ledgerDomain{Domain: d, l: l, place: len(l.domains), live: map[provider.Key]uint64{}}
	l.domains = append(l.domains, ld)
	return ld
}

// live is how many registrations of a length each Domain has.
func (l *ledger) live(length uint64) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]int, len(l.domains))
	for i, d := range l.domains {
		for _, n := range d.live {
			if n == length {
				out[i]++
			}
		}
	}
	return out
}

type ledgerDomain struct {
	provider.Domain
	l     *ledger
	place int
	live  map[provider.Key]uint64 // length by key; guarded by ledger.mu
}

func (d *ledgerDomain) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	if d.l.refuse != nil {
		if err := d.l.refuse(d.place); err != nil {
			return provider.Key{}, err
		}
	}
	k, err := d.Domain.Register(m, acc)
	if err == nil {
		d.l.mu.Lock()
		defer d.l.mu.Unlock()
		d.live[k] = m.Len()
	}
	return k, err
}

func (d *ledgerDomain) Deregister(k provider.Key) error {
	err := d.Domain.Deregister(k)
	if err == nil {
		d.l.mu.Lock()
		defer d.l.mu.Unlock()
		delete(d.live, k)
	}
	return err
}

// shifted gives the n-th Domain that is opened n registrations more than the first, so that no key means the same on two rails.
type shifted struct{ opened atomic.Int64 }

func (s *shifted) wrap(d provider.Domain) provider.Domain {
	for range s.opened.Add(1) {
		if _, err := d.Register(provider.Memory{Bytes: make([]byte, 1), FD: -1}, 0); err != nil {
			panic(fmt.Sprintf("register a byte: %v", err)) // Decorate has no way to fail
		}
	}
	return d
}

// known is how the engine at e knows the other one.
func known(t testing.TB, e, other *hawser.Engine) *hawser.Peer {
	t.Helper()
	p, err := e.Connect(testContext(t), other.Addr())
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// expired is a context whose time is over.
func expired() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

// upTo is 0, 1, ... n-1.
func upTo(n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(i)
	}
	return out
}
