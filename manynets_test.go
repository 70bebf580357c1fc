package hawser

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
)

// route is one peer of an engine of many networks, which is written to as long as the test runs.
type route struct {
	*testing.T
	to    *Engine
	best  *flaky // its preferred network
	path  string // the name of that,
	next  string // and of the one after it
	src   *Region
	dst   *Region
	rem   *Remote
	parts uint64
}

const legSize = 1 << 20

// round writes everything once, in parts with immediates, and checks bytes and counts.
func (l *route) round(ctx context.Context, from *Engine) error {
	const parts = 20
	clear(l.dst.Bytes())
	l.to.Stats() // orders the clearing before the writes, for the race detector
	tr, err := from.Write(Write{Src: l.src.All(), Dst: l.rem.All(), Imm: Imm(1), Parts: parts})
	if err == nil {
		err = tr.Wait(ctx)
	}
	if err != nil {
		return err
	}
	l.parts += parts
	if err := l.to.Counter(1).Wait(ctx, l.parts); err != nil {
		return err
	}
	l.to.Stats()
	if n := l.to.Counter(1).Load(); n != l.parts || !bytes.Equal(l.src.Bytes(), l.dst.Bytes()) {
		return errors.New("bytes or counts are wrong")
	}
	return nil
}

// carries is the network that carries what is written to the peer; empty: none.
func (l *route) carries(from *Engine) string {
	for _, p := range from.Stats().Peers {
		if p.ID != l.to.ID() {
			continue
		}
		for _, k := range p.PerLink {
			if k.Ready {
				return k.Provider // the best comes first
			}
		}
	}
	return ""
}

// An engine reaches each peer over the best network that both have. Each fails over to the next one by itself, in the middle of its writes,
// and comes back, while nothing happens to the others.
func TestOneEngineOfManyNetworks(t *testing.T) {
	names := []string{"shm", "ofi:tcp", "tcp"}
	options := func(names []string) (Options, *flaky) {
		o := Options{PeerTimeout: 5 * time.Second}
		var best *flaky
		for i, name := range names {
			p, devs := Network(t, name, 1)
			if i == 0 {
				best = &flaky{Provider: p}
				p = best
			}
			o.Providers = append(o.Providers, p)
			o.Rails = append(o.Rails, Rail{name, devs[0]})
		}
		return o, best
	}
	o, _ := options(names)
	e := openWith(t, o)
	var routes []*route
	for i := range names {
		l := &route{T: t, path: names[i], next: names[min(i+1, len(names)-1)]}
		o, best := options(names[i:])
		l.best, l.to = best, openWith(t, o)
		var err [3]error
		l.src, err[0] = e.Alloc(legSize, MemOptions{})
		l.dst, err[1] = l.to.Alloc(legSize, MemOptions{})
		if errors.Join(err[:]...) == nil {
			l.rem, err[2] = e.Import(t.Context(), l.dst.Descriptor(l.dst.All(), RightWrite))
		}
		if err := errors.Join(err[:]...); err != nil {
			t.Fatal(err)
		}
		for k := range l.src.Bytes() {
			l.src.Bytes()[k] = byte(k*7+i) + byte(k>>12)
		}
		if p := e.known(l.to.id).Path(); p != l.path {
			t.Fatalf("peer %d is reached over %s, want %s", i, p, l.path)
		}
		routes = append(routes, l)
	}

	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	stop := make(chan struct{})
	var writers sync.WaitGroup
	for i, l := range routes {
		writers.Go(func() {
			for {
				if err := l.round(ctx, e); err != nil {
					t.Errorf("peer %d: %v", i, err)
					return
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	await := func(what string, cond func() bool) {
		t.Helper()
		for !cond() && !t.Failed() {
			select {
			case <-ctx.Done():
				t.Fatalf("%s: not in time\n%s", what, e.Stats())
			case <-time.After(time.Millisecond):
			}
		}
	}
	for _, l := range routes[:len(routes)-1] {
		l.best.off.Store(true)
		s := e.known(l.to.id).cur.Load()
		e.worker.group.Call(func(g *rail.Group) { g.Lose(s.links.Load(), 0, "unplugged") })
		await(l.next+" stands in for "+l.path, func() bool { return l.carries(e) == l.next })
		for _, other := range routes {
			if other != l && other.carries(e) != other.path {
				t.Errorf("%s failed for one peer, and another one is reached over %s instead of %s", l.path, other.carries(e), other.path)
			}
		}
		l.best.off.Store(false)
		await(l.path+" is back", func() bool { return l.carries(e) == l.path })
	}
	close(stop)
	writers.Wait()
	for i, l := range routes {
		t.Logf("peer %d over %s: %d rounds", i, l.path, l.parts/20)
		if !e.known(l.to.id).Up() {
			t.Errorf("the session with peer %d has ended", i)
		}
	}
}
