package moe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// activate has ranks activate the view of all of them, and returns what each got.
func (x *team) activate(ctx context.Context, epoch uint32, ranks ...int) (got []Activated, errs []error) {
	v := x.view(epoch, ranks...)
	got, errs = make([]Activated, len(ranks)), make([]error, len(ranks))
	var wg sync.WaitGroup
	for at, i := range ranks {
		wg.Go(func() { got[at], errs[at] = x.ranks[i].g.Activate(ctx, v) })
	}
	wg.Wait()
	return got, errs
}

// mustActivate is activate where all succeed, and agree.
func (x *team) mustActivate(epoch uint32, ranks ...int) Activated {
	x.Helper()
	got, errs := x.activate(within(x), epoch, ranks...)
	if err := errors.Join(errs...); err != nil {
		x.Fatal(err)
	}
	for _, a := range got {
		if !reflect.DeepEqual(a, got[0]) || a.Epoch != epoch {
			x.Fatalf("not the same: %+v and %+v", a, got[0])
		}
	}
	return got[0]
}

// kill ends the engine of a rank under its group. The group is closed at the end of the test.
func (x *team) kill(i int) {
	x.Helper()
	r := x.ranks[i]
	x.ranks[i] = nil
	if err := r.e.Close(within(x)); err != nil {
		x.Fatal(err)
	}
}

// partial has all ranks make a step on lane 0 that ends without the dead.
func (x *team) partial(dead ...int) {
	x.Helper()
	each(x, x.there(), func(r *rank) error {
		w := dummies(rand.New(rand.NewPCG(uint64(r.i), 3)), r, r.cfg.Full)
		_, err := r.stepThrough(within(x), w)
		var p *PartialError
		if !errors.Is(err, hawser.ErrUnfenced) && (!errors.As(err, &p) || !slices.Equal(p.Missing, dead)) { // a dying peer may leave that
			return fmt.Errorf("a step without %v: %w", dead, err)
		}
		if _, err := r.lanes[1].DispatchSend(within(x), &w.in); !errors.Is(err, hawser.ErrStale) {
			return fmt.Errorf("a step of the other lane: %w", err)
		}
		return nil
	})
}

// stepThrough makes a step on lane 0 whatever is missing, and returns the last PartialError.
func (r *rank) stepThrough(ctx context.Context, w *work) (*PartialError, error) {
	var p *PartialError
	s, err := r.lanes[0].DispatchSend(ctx, &w.in)
	if err != nil {
		return nil, err
	}
	h, err := s.Recv(ctx, &w.out)
	if err != nil && !errors.As(err, &p) {
		return nil, err
	}
	r.compute(w, h.Counts(), h.Offsets(), 0)
	c, err := h.CombineSend(ctx, w.y)
	if err != nil {
		return nil, err
	}
	err = c.Recv(ctx, w.sum, CombineOpts{})
	errors.As(err, &p)
	return p, err
}

func onNetworks(t *testing.T, f func(t *testing.T, network string)) {
	for _, network := range []string{"sim", "shm", "tcp"} {
		t.Run(network, func(t *testing.T) { f(t, network) })
	}
}

// TestDeathAndReturn: a rank dies, the others go on without it, and it comes back as another engine.
func TestDeathAndReturn(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		x := newTeam(t, network, tiny(3), 1)
		x.steps(2)
		x.kill(2)
		x.partial(2)
		a := x.mustActivate(2, 0, 1)
		if want := []int{4, 5}; !slices.Equal(a.Unserved, want) {
			t.Errorf("experts %v are without a place, want %v", a.Unserved, want)
		}
		if want := []uint64{4, 3}; !slices.Equal(a.Next, want) || a.Ranks[2] != nil || a.Ranks[0][0].Begun != 3 {
			t.Errorf("next steps %v, want %v; ranks were at %v", a.Next, want, a.Ranks)
		}
		x.steps(2)
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := x.join(2, x.engines[3]); err != nil {
				t.Error(err)
			}
		})
		for len(x.desk.Waiting()) == 0 {
			time.Sleep(time.Millisecond) // between two looks
		}
		v := x.view(3, 0, 1)
		v.Members = append(v.Members, x.desk.Waiting()...)
		if err := x.desk.Admit(v); err != nil {
			t.Fatal(err)
		}
		for _, r := range []*rank{x.ranks[0], x.ranks[1]} {
			wg.Go(func() {
				if a, err := r.g.Activate(within(t), v); err != nil || a.Unserved != nil || !slices.Equal(a.Next, []uint64{6, 5}) {
					t.Errorf("rank %d: %+v, %v", r.i, a, err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			t.FailNow()
		}
		x.steps(2)
		for _, r := range x.there()[:2] {
			if s := r.g.Stats(); s.View != 3 || !s.Active || s.Views != 3 || s.Fences != 1 || s.Refused != 0 || s.Failed != 0 {
				t.Errorf("rank %d: %+v", r.i, s)
			}
		}
	})
}

// TestFalseSuspicion: a rank that is held missing though it lives is fenced, gets descriptors anew and resumes, under its slot; again
// and again, also when two suspect each other.
func TestFalseSuspicion(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		c := tiny(3)
		c.StepTimeout = 50 * time.Millisecond
		x := newTeam(t, network, c, 0)
		for round := range uint32(4) {
			late := int(round) % 3
			over := make(chan struct{})
			var others sync.WaitGroup
			others.Add(2)
			go func() { others.Wait(); close(over) }()
			each(t, x.ranks, func(r *rank) error {
				w := dummies(rand.New(rand.NewPCG(uint64(r.i), 3)), r, r.cfg.Full)
				if r.i == late {
					<-over
					if p, err := r.stepThrough(within(t), w); err == nil && p == nil {
						return errors.New("a step after the others have given this rank up")
					}
					return nil
				}
				defer others.Done()
				if p, err := r.stepThrough(within(t), w); p == nil || !slices.Contains(p.Missing, late) {
					return fmt.Errorf("a step without rank %d: %w", late, err)
				}
				return nil
			})
			x.mustActivate(2+round, 0, 1, 2)
			for _, r := range x.there() {
				r.cfg.StepTimeout = hang // good steps are in no hurry
			}
			x.steps(2)
			for _, r := range x.there() {
				r.cfg.StepTimeout = 50 * time.Millisecond
			}
		}
		for _, r := range x.there() {
			if s := r.g.Stats(); s.Fences < 2 || s.Parked != 0 {
				t.Errorf("rank %d: %+v", r.i, s)
			}
		}
	})
}

// TestTwoDeaths: both are named, by the step and by a change of view that has counted on them, whose epoch is used up.
func TestTwoDeaths(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		x := newTeam(t, network, tiny(4), 0)
		x.steps(1)
		v := x.view(2, 0, 1, 2, 3)
		x.kill(2)
		x.kill(3)
		x.partial(2, 3)
		each(t, x.there(), func(r *rank) error {
			_, err := r.g.Activate(within(t), v)
			var e *ActivateError
			if !errors.Is(err, ErrInactive) || !errors.As(err, &e) || !slices.Equal(e.Missing, []int{2, 3}) || errors.Is(err, context.DeadlineExceeded) {
				return fmt.Errorf("a view with the dead: %w", err)
			}
			if _, err := r.g.Activate(within(t), v); !errors.Is(err, hawser.ErrStale) {
				return fmt.Errorf("the same epoch again: %w", err)
			}
			if s := r.g.Stats(); s.Active || s.View != 1 || s.Failed != 1 {
				return fmt.Errorf("%+v", s)
			}
			return nil
		})
		x.mustActivate(3, 0, 1)
		x.steps(2)
	})
}

// TestDeathInActivate: a member dies when the others have heard that it is ready. They are not active, and a higher epoch is.
func TestDeathInActivate(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		x := newTeam(t, network, tiny(3), 0)
		v := x.view(2, 0, 1, 2)
		var wg sync.WaitGroup
		for _, r := range []*rank{x.ranks[0], x.ranks[2]} { // rank 1 comes later
			wg.Go(func() {
				_, err := r.g.Activate(within(t), v)
				if !errors.Is(err, ErrInactive) {
					t.Errorf("rank %d: %v", r.i, err)
				}
			})
		}
		for s := x.ranks[0].g; ; time.Sleep(time.Millisecond) { // between two looks
			s.mu.Lock()
			heard := s.core.Awaited()
			s.mu.Unlock()
			if slices.Equal(heard, []int{1}) {
				break
			}
		}
		dead := x.ranks[2]
		x.kill(2)
		if _, err := x.ranks[1].g.Activate(within(t), v); !errors.Is(err, ErrInactive) {
			t.Errorf("rank 1: %v", err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		_ = dead.g.Close(ctx) // its engine is closed
		wg.Wait()
		x.mustActivate(3, 0, 1)
		x.steps(2)
	})
}

// TestActivateEndsWithItsContext: who has not called is named, and a higher epoch works.
func TestActivateEndsWithItsContext(t *testing.T) {
	x := newTeam(t, "shm", tiny(3), 0)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	_, errs := x.activate(ctx, 2, 0, 2)
	v := x.view(3, 0, 1, 2)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	each(t, []*rank{x.ranks[0], x.ranks[2]}, func(r *rank) error {
		_, err := r.g.Activate(ctx, v)
		var e *ActivateError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrInactive) || !errors.As(err, &e) || !slices.Equal(e.Missing, []int{1}) {
			return fmt.Errorf("a view that rank 1 does not activate: %w", err)
		}
		if _, err := r.lanes[0].DispatchSend(within(t), &Input{}); !errors.Is(err, hawser.ErrStale) {
			return fmt.Errorf("a step while the group is inactive: %w", err)
		}
		return nil
	})
	x.mustActivate(4, 0, 1, 2)
	x.steps(1)
}

// TestActivateRefused: what cannot be a change of view changes nothing.
func TestActivateRefused(t *testing.T) {
	x := newTeam(t, "shm", tiny(2), 0)
	x.steps(1)
	refused := func(what string, v View, want error) {
		t.Helper()
		if _, err := x.ranks[0].g.Activate(within(t), v); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	good := x.view(2, 0, 1)
	refused("epoch", x.view(1, 0, 1), hawser.ErrStale)
	refused("without itself", x.view(2, 1), hawser.ErrInvalid)
	refused("order", View{Epoch: 2, Members: []Member{good.Members[1], good.Members[0]}}, hawser.ErrInvalid)
	refused("rank", View{Epoch: 2, Members: append(slices.Clone(good.Members), Member{2, good.Members[1].Addr})}, hawser.ErrInvalid)
	refused("rank", View{Epoch: 2, Members: append([]Member{{-1, good.Members[1].Addr}}, good.Members...)}, hawser.ErrInvalid)
	refused("address", View{Epoch: 2, Members: []Member{good.Members[0], {1, "nowhere"}}}, hawser.ErrInvalid)
	refused("placement", View{Epoch: 2, Members: good.Members, Placement: Placement{Of: []uint32{0, 0}}}, hawser.ErrInvalid)

	r := x.ranks[0]
	w := dummies(rand.New(rand.NewPCG(1, 2)), r, r.cfg.Full)
	p, err := r.lanes[1].DispatchSend(within(t), &w.in)
	if err != nil {
		t.Fatal(err)
	}
	refused("between the calls of a step", good, hawser.ErrBusy)
	inside := make(chan error, 1)
	go func() {
		_, err := p.Recv(within(t), &w.out)
		inside <- err
	}()
	for !r.lanes[1].inside.Load() {
		time.Sleep(time.Millisecond) // between two looks
	}
	start := time.Now()
	refused("inside a call of a step", good, hawser.ErrBusy)
	if d := time.Since(start); d > time.Second {
		t.Errorf("it took %v to say so", d)
	}
	o := x.ranks[1]
	ow := dummies(rand.New(rand.NewPCG(1, 2)), o, o.cfg.Full)
	op, err := o.lanes[1].DispatchSend(within(t), &ow.in)
	if err != nil {
		t.Fatal(err)
	}
	oh, err := op.Recv(within(t), &ow.out)
	if err := errors.Join(err, <-inside); err != nil {
		t.Fatal(err)
	}
	o.compute(ow, oh.Counts(), oh.Offsets(), 0)
	if _, err := oh.CombineSend(within(t), ow.y); err != nil {
		t.Fatal(err)
	}
	h := &r.lanes[1].handle
	r.compute(w, h.Counts(), h.Offsets(), 0)
	for _, z := range []*work{w} {
		c, err := h.CombineSend(within(t), z.y)
		if err == nil {
			err = c.Recv(within(t), z.sum, CombineOpts{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := o.lanes[1].sums.Recv(within(t), ow.sum, CombineOpts{}); err != nil {
		t.Fatal(err)
	}
	w.check(t, r)
	ow.check(t, o)
	x.mustActivate(2, 0, 1)
	x.steps(1)
}

// TestUnfenced: who cannot be fenced finds no memory that is in use. One set of regions waits for it, a second one does not.
func TestUnfenced(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		x := newTeam(t, network, tiny(4), 0)
		x.steps(1)
		r, frozen := x.ranks[0], []*hawser.Peer{nil, nil, x.ranks[0].e.Peer(x.ranks[2].e.ID()), x.ranks[0].e.Peer(x.ranks[3].e.ID())}
		r.g.fence = func(ctx context.Context, p *hawser.Peer) error {
			if p == frozen[2] || p == frozen[3] {
				return fmt.Errorf("stands in a copy: %w", hawser.ErrUnfenced)
			}
			return r.e.Fence(ctx, p)
		}
		sizes, err := Sizes(x.cfg)
		if err != nil {
			t.Fatal(err)
		}
		before, aside := *r.mems[0], int64(len(r.lanes))*sizes.Parked
		old := x.ranks[2].mems[0].remotes[0] // of rank 0's memory
		gone := x.ranks[2:]
		x.ranks = []*rank{x.ranks[0], x.ranks[1], nil, gone[1]}
		x.mustActivate(2, 0, 1, 3)
		if s := r.g.Stats(); s.Parked != aside {
			t.Errorf("%d bytes are set aside, want %d", s.Parked, aside)
		}
		for a := range exec.Areas {
			if changed, want := r.mems[0].areas[a] != before.areas[a], slices.Contains(written[:], a); changed != want {
				t.Errorf("area %d is another: %v, want %v", a, changed, want)
			}
		}
		x.steps(1)
		for a, to := range map[exec.Area]*hawser.Remote{exec.Blocks: old.block, exec.Pool: old.pool, exec.Results: old.results} {
			src, now := gone[0].mems[0].areas[exec.Send], bytes.Clone(r.mems[0].areas[a].Bytes())
			for i := range src.Bytes() {
				src.Bytes()[i] = 0xa5
			}
			n := min(src.Len(), to.Len())
			if tr, err := x.engines[2].Write(hawser.Write{Src: src.Slice(0, n), Dst: to.Slice(0, n)}); err == nil {
				_ = tr.Wait(within(t)) // accepted or not
			}
			if !bytes.Equal(now, r.mems[0].areas[a].Bytes()) {
				t.Errorf("a late write has changed area %d, which is in use", a)
			}
		}
		x.steps(1)

		x.ranks[3] = nil
		_, errs := x.activate(within(t), 3, 0)
		if !errors.Is(errs[0], hawser.ErrLimit) || !errors.Is(errs[0], ErrInactive) {
			t.Errorf("a second set: %v", errs[0])
		}
		if err := r.e.Fence(within(t), frozen[2]); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(hang); r.g.Stats().Parked > 0; time.Sleep(time.Millisecond) { // between two looks
			if time.Now().After(deadline) {
				t.Fatal("the regions are still set aside")
			}
		}
		x.mustActivate(4, 0, 1)
		x.steps(1)
	})
}

// TestCloseInActivate: a change of view ends with the group.
func TestCloseInActivate(t *testing.T) {
	x := newTeam(t, "shm", tiny(3), 0)
	g, ended := x.ranks[0].g, make(chan error, 1)
	go func() {
		_, err := g.Activate(within(t), x.view(2, 0, 1, 2))
		ended <- err
	}()
	for busy := false; !busy; time.Sleep(time.Millisecond) { // between two looks
		g.mu.Lock()
		busy = g.attempt != nil
		g.mu.Unlock()
	}
	if _, err := g.Activate(within(t), x.view(3, 0, 1, 2)); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("a second change of view at the same time: %v", err)
	}
	if err := g.Close(within(t)); err != nil {
		t.Error(err)
	}
	if err := <-ended; !errors.Is(err, hawser.ErrClosed) || !errors.Is(err, ErrInactive) {
		t.Error(err)
	}
}

// TestStalledMember: a rank whose network stands still in the middle of its writes is given up, and resumes when what it had under way has
// come: nothing of it lands in the steps of the next view.
func TestStalledMember(t *testing.T) {
	fabric := sim.New(sim.Config{Seed: 5, NICs: 1})
	es := onFabric(t, fabric, 3)
	c := tiny(3)
	c.StepTimeout = 100 * time.Millisecond
	x := teamOf(t, es, c)
	timeout := func(d time.Duration) {
		for _, r := range x.ranks {
			r.cfg.StepTimeout = d
		}
	}
	for round := range uint32(3) {
		timeout(100 * time.Millisecond)
		fabric.Stall("host1", 300*time.Millisecond)
		each(t, x.ranks, func(r *rank) error {
			w := dummies(newRand(uint64(r.i)), r, r.cfg.Full)
			if p, err := r.stepThrough(within(t), w); r.i != 1 && (p == nil || !slices.Contains(p.Missing, 1)) {
				return fmt.Errorf("a step that rank 1 is too late for: %w", err)
			}
			return nil
		})
		timeout(hang)
		x.mustActivate(2+round, 0, 1, 2)
		x.steps(3)
	}
}

// TestReadyIsLost: a message that was delivered and that nobody has read when its session is fenced is said again in the next one.
func TestReadyIsLost(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		c := tiny(2)
		x := newTeam(t, network, c, 0)
		for _, r := range x.ranks {
			r.cfg.StepTimeout = 50 * time.Millisecond
		}
		w := dummies(newRand(1), x.ranks[0], x.ranks[0].cfg.Full)
		if p, err := x.ranks[0].stepThrough(within(t), w); p == nil {
			t.Fatalf("a step without rank 1: %v", err)
		}
		g, lost := x.ranks[0].g, make(chan struct{}, 8)
		session := g.eng.Peer(x.ranks[1].e.ID()).Session()
		g.leave()
		g.leave = enroll(g.eng, g.number, func(m hawser.Message) {
			if ready, err := g.layout.ParseReady(m.Data[frameBytes:]); err == nil && ready.Round == 2 && m.From.Session() == session {
				lost <- struct{}{}
				return
			}
			g.message(m)
		})
		g.fence = func(ctx context.Context, p *hawser.Peer) error {
			<-lost
			return g.eng.Fence(ctx, p)
		}
		for _, r := range x.ranks {
			r.cfg.StepTimeout = hang
		}
		x.mustActivate(2, 0, 1)
		x.steps(1)
	})
}

// onFabric opens engines on hosts host0, host1 and so on.
func onFabric(t testing.TB, fabric *sim.Fabric, n int) (es []*hawser.Engine) {
	t.Helper()
	for i := range n {
		e, err := hawser.Open(within(t), hawser.Options{
			Providers: []provider.Provider{fabric.Provider(fmt.Sprint("host", i))}, Rails: []hawser.Rail{{Provider: "sim", Device: "nic0"}}, PeerTimeout: 5 * time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := e.Close(within(t)); err != nil {
				t.Error(err)
			}
		})
		es = append(es, e)
	}
	return es
}

// TestCloseWaits: Close waits for what is under way: memory is not freed while the network reads it.
func TestCloseWaits(t *testing.T) {
	fabric := sim.New(sim.Config{Seed: 6, NICs: 1})
	x := teamOf(t, onFabric(t, fabric, 2), tiny(2))
	x.steps(1)
	r := x.ranks[0]
	w := dummies(newRand(1), r, r.cfg.Full)
	fabric.Stall("host0", 200*time.Millisecond)
	if _, err := r.lanes[0].DispatchSend(within(t), &w.in); err != nil {
		t.Fatal(err)
	}
	if err := r.g.Close(within(t)); err != nil {
		t.Error(err)
	}
}

// TestLateWrites: what a member has under way when it is left out lands nowhere once the next view is active.
func TestLateWrites(t *testing.T) {
	fabric := sim.New(sim.Config{Seed: 7, NICs: 1})
	c := tiny(3)
	c.StepTimeout = 100 * time.Millisecond
	x := teamOf(t, onFabric(t, fabric, 3), c)
	late, sent := x.ranks[1], make(chan struct{})
	each(t, x.ranks, func(r *rank) error {
		w := dummies(newRand(uint64(r.i)), r, r.cfg.Full)
		for i := range w.in.N * c.TopK { // everybody awaits results of rank 1
			w.route(r.cfg, i/c.TopK, i%c.TopK, 2+i%2, 1)
		}
		if r != late {
			if p, err := r.stepThrough(within(t), w); p == nil || !slices.Contains(p.Missing, 1) {
				return fmt.Errorf("a step without the results of rank 1: %w", err)
			}
			return nil
		}
		defer close(sent)
		s, err := r.lanes[0].DispatchSend(within(t), &w.in)
		if err != nil {
			return err
		}
		h, err := s.Recv(within(t), &w.out)
		if err != nil {
			return err
		}
		for i := range w.y.Data {
			w.y.Data[i] = 0xa5
		}
		fabric.Stall("host1", 500*time.Millisecond)
		_, err = h.CombineSend(within(t), w.y)
		return err
	})
	<-sent
	x.ranks[1] = nil
	x.mustActivate(2, 0, 2)
	for _, r := range x.there() {
		for _, a := range written {
			clear(r.mems[0].areas[a].Bytes())
		}
	}
	if err := late.g.Close(within(t)); err != nil { // when nothing of it is under way any more
		t.Error(err)
	}
	for _, r := range x.there() {
		for _, a := range written {
			if n := bytes.Count(r.mems[0].areas[a].Bytes(), []byte{0xa5}); n > 0 {
				t.Errorf("rank %d: %d bytes of area %d have come late", r.i, n, a)
			}
		}
	}
}
