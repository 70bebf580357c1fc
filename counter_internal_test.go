package hawser

import (
	"context"
	"errors"
	"math"
	"net"
	"runtime"
	"testing"

	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider/sim"
)

// downPeer is a peer whose session was up and has ended, with its fence still under way.
func downPeer(t *testing.T, e *Engine) (*Peer, *session) {
	t.Helper()
	conn, far := net.Pipe()
	t.Cleanup(func() { _ = errors.Join(conn.Close(), far.Close()) })
	p := e.peer(ID{1})
	s, err := p.claim(conn, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wasUp, s.torn, s.fencing = true, true, true
	s.why = errors.Join(ErrPeerDown, errBye)
	s.state.Store(stateDown)
	return p, s
}

// What a peer sent before its end may be found after its farewell: who owes is judged when its links have been fenced.
func TestDebtsAreJudgedAfterTheFence(t *testing.T) {
	for _, proved := range []bool{true, false} {
		a := simEngine(t, sim.New(sim.Config{}), "a")
		p, s := downPeer(t, a)
		c := a.Counter(1)
		debts := []debt{newDebt(p, 2)}
		if c.defaulted(debts) {
			t.Fatal("a peer whose immediates may be under way is given up")
		}
		ends := make(chan error, 1)
		go func() { ends <- c.Expect(t.Context(), map[*Peer]uint64{p: 2}) }()
		if _, err := a.imms.Add(&p.source, 1); err != nil {
			t.Fatal(err)
		}
		s.fenced(proved)
		var missing *MissingError
		if err := <-ends; !errors.As(err, &missing) || !errors.Is(err, ErrPeerDown) || missing.Have != 1 {
			t.Fatalf("proved %v: %v", proved, err)
		}
		if _, err := a.imms.Add(&p.source, 1); err != nil {
			t.Fatal(err)
		}
		if c.defaulted(debts) {
			t.Fatal("a peer that owes nothing is missing")
		}
		s.mu.Lock()
		s.proved = true // so that the engine has nothing to wait for
		s.mu.Unlock()
	}
}

// A connection that gave way to another before it came up is no loss; the one that took over counts.
func TestConnectionThatGaveWayIsNoLoss(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	p, s := downPeer(t, a)
	s.mu.Lock()
	s.wasUp, s.fencing, s.proved = false, false, true
	s.mu.Unlock()
	d := newDebt(p, 1)
	if d.lost() == nil {
		t.Fatal("the only connection of a peer is down, and nothing is lost")
	}
	conn, far := net.Pipe()
	defer far.Close()
	next, err := p.claim(conn, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.lost(); err != nil {
		t.Fatalf("another connection took over: %v", err)
	}
	next.fail(ErrPeerDown, errBye)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	if err := next.waitFenced(ctx); err != nil {
		t.Fatal(err)
	}
	if d.lost() == nil {
		t.Fatal("the connection that took over is down, and nothing is lost")
	}
	never := debt{peer: a.peer(ID{2}), want: 1}
	if err := never.lost(); !errors.Is(err, ErrPeerDown) {
		t.Fatalf("a peer that has never connected: %v", err)
	}
}

// A peer that is back over another connection does not know what it owed over the one before.
func TestNewConnectionPaysNoDebts(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	p, s := downPeer(t, a)
	d := newDebt(p, 1)
	s.fenced(true)
	conn, far := net.Pipe()
	defer far.Close()
	next, err := p.claim(conn, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d.lost() == nil {
		t.Fatal("a debt has moved to another connection")
	}
	next.fail(ErrPeerDown, errBye)
}

// Waits that were given up cost a counter nothing.
func TestCounterForgetsWhoGaveUp(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	c, other := a.Counter(1), a.Counter(2)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		c.OnReach(1, func() {})()
		if c.Wait(gone, 1) == nil || c.Expect(gone, map[*Peer]uint64{a.peer(ID{2}): 1}) == nil {
			t.Fatal("nothing was counted")
		}
		if _, err := WaitAny(gone, Reach{other, 1}, Reach{c, 1}); err == nil {
			t.Fatal("nothing was counted")
		}
	}
	if len(c.waiters) != 0 || len(other.waiters) != 0 || len(a.creditors.all) != 0 {
		t.Fatalf("%d and %d waiters, %d creditors are left", len(c.waiters), len(other.waiters), len(a.creditors.all))
	}
	if n := a.waits.Load(); n != 0 {
		t.Fatalf("%d waits are counted after their end", n)
	}
}

// What arrives last, while the debts are looked at, is paid.
func TestLastImmediateBeforeTheFenceCounts(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	p, s := downPeer(t, a)
	c := a.Counter(1)
	for n := range uint64(5000) {
		s.mu.Lock()
		s.fencing, s.proved = true, false
		s.mu.Unlock()
		debts, last := []debt{newDebt(p, n+1)}, make(chan struct{})
		go func() {
			defer close(last)
			if _, err := a.imms.Add(&p.source, 1); err != nil {
				t.Error(err)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.fencing, s.proved = false, true
		}()
		for c.owed(debts) > 0 || debts[0].lost() == nil {
			if c.defaulted(debts) {
				t.Fatalf("a peer that has sent %d of %d is given up", c.From(p), n+1)
			}
		}
		<-last
	}
}

// When a mirror has ended, its word belongs to the user. A worker may have been about to write to it, so the end waits for the worker.
func TestEndOfAMirrorWaitsForTheWorker(t *testing.T) {
	a := simEngine(t, sim.New(sim.Config{}), "a")
	r, err := a.Alloc(8, MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := a.Counter(1)
	if err := c.Mirror(r.All()); err != nil {
		t.Fatal(err)
	}
	busy, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	a.worker.group.Call(func(*rail.Group) {
		close(busy)
		<-release
	})
	<-busy
	go func() { ended <- c.Mirror(Slice{}) }()
	mirrored := func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.mirror != nil
	}
	for mirrored() {
		runtime.Gosched()
	}
	for range 1000 { // what is left to do without the worker takes less
		runtime.Gosched()
		if len(ended) > 0 {
			t.Error("the mirror has ended, and the worker may still write")
			break
		}
	}
	if n := r.uses.Load(); n != 1 {
		t.Errorf("the region has %d uses while the worker may write, want 1", n)
	}
	close(release)
	if err := <-ended; err != nil || r.uses.Load() != 0 {
		t.Fatalf("%v, %d uses", err, r.uses.Load())
	}
}

// Whoever starts to wait while a session ends hears of it, whichever comes first.
func TestExpectLosesNoEndOfASession(t *testing.T) {
	f := sim.New(sim.Config{})
	a := simEngine(t, f, "a")
	c := a.Counter(1)
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for range 50 {
		b := simEngine(t, f, "b")
		p, err := a.Connect(ctx, b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		ends := make(chan error, 1)
		go func() { ends <- c.Expect(ctx, map[*Peer]uint64{p: 1}) }()
		if err := b.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-ends; !errors.Is(err, ErrPeerDown) {
			t.Fatal(err)
		}
	}
	if n := len(a.creditors.all); n != 0 {
		t.Fatalf("%d waits are remembered after their end", n)
	}
}

// A count that passes a waiter's number while its threshold is being set ends the wait all the same: settle looks again. Many other
// waiters make that moment long.
func TestCountThatPassesTheThresholdEndsTheWait(t *testing.T) {
	e := simEngine(t, sim.New(sim.Config{}), "a")
	c, src := e.Counter(1), &imm.Source{}
	for range 2000 {
		c.add(&waiter{n: math.MaxUint64 - 1, ch: make(chan struct{}, 1)})
	}
	rounds, done := make(chan int), make(chan struct{})
	go func() {
		defer close(done)
		for delay := range rounds {
			for range delay * 100 { // until somewhere in the middle of settle
				_ = c.Load()
			}
			if due, err := e.imms.Add(src, 1); err != nil {
				t.Error(err)
			} else if due != nil {
				e.notes.push(&c.note)
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	for i := range 400 {
		rounds <- i
		if err := c.Wait(ctx, uint64(i)+1); err != nil {
			t.Error(err)
			break
		}
	}
	close(rounds)
	<-done
}
