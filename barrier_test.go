package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser"
)

// member is an engine and its group: all others.
type member struct {
	*hawser.Engine
	group *hawser.Group
}

// members opens n engines that are all connected.
func members(t testing.TB, w *world, n int) []member {
	t.Helper()
	ms := make([]member, n)
	for i := range ms {
		o := w.options(i, 1)
		o.Name = fmt.Sprintf("m%d", i)
		ms[i].Engine = open(t, o)
	}
	ctx := testContext(t)
	for i := range ms {
		for j := range i {
			if _, err := ms[i].Connect(ctx, ms[j].Addr()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for i := range ms {
		var peers []*hawser.Peer
		for j := range ms {
			if i == j {
				continue
			}
			p, err := ms[i].Connect(ctx, ms[j].Addr())
			if err != nil {
				t.Fatal(err)
			}
			peers = append(peers, p)
		}
		var err error
		if ms[i].group, err = ms[i].NewGroup(peers); err != nil {
			t.Fatal(err)
		}
	}
	return ms
}

func TestGroupHoldsEachPeerOnce(t *testing.T) {
	ms := members(t, newWorld(t, "sim"), 3)
	e, peers := ms[0], ms[0].group.Peers()
	if ms[0].group.Len() != 2 || len(peers) != 2 || peers[0].ID() != ms[1].ID() || peers[1].ID() != ms[2].ID() {
		t.Fatalf("%d peers: %v", ms[0].group.Len(), peers)
	}
	for name, list := range map[string][]*hawser.Peer{
		"twice":          {peers[0], peers[1], peers[0]},
		"nobody":         {peers[0], nil},
		"another engine": ms[1].group.Peers(),
	} {
		if _, err := e.NewGroup(list); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	peers[0] = nil // a copy
	if ms[0].group.Peers()[0] == nil {
		t.Fatal("a group changes with the list that it gave out")
	}
	for name, g := range map[string]*hawser.Group{"none": nil, "another engine": ms[1].group} {
		if err := e.Barrier(testContext(t), g, 1); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("barrier of group %s: %v", name, err)
		}
	}
}

// Nobody leaves a round before all have entered it, over many rounds of one value with members that are in no step with each other.
func TestNobodyLeavesABarrierBeforeAllHaveEntered(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for _, n := range []int{1, 2, 5} {
			t.Run(fmt.Sprint(n), func(t *testing.T) { rounds(t, members(t, w, n), 50, all) })
		}
	})
}

// One member that waits for 64, each of which waits for it alone.
func TestBarrierOf64(t *testing.T) {
	w := newWorld(t, "sim")
	ms := []member{{Engine: w.engine(t, 0, 1)}}
	var leaves []*hawser.Peer
	for i := range 64 {
		leaf := w.engine(t, 1+i, 1)
		hub, err := leaf.Connect(testContext(t), ms[0].Addr())
		if err != nil {
			t.Fatal(err)
		}
		g, err := leaf.NewGroup([]*hawser.Peer{hub})
		if err != nil {
			t.Fatal(err)
		}
		p, err := ms[0].Connect(testContext(t), leaf.Addr())
		if err != nil {
			t.Fatal(err)
		}
		ms, leaves = append(ms, member{leaf, g}), append(leaves, p)
	}
	g, err := ms[0].NewGroup(leaves)
	if err != nil {
		t.Fatal(err)
	}
	ms[0].group = g
	rounds(t, ms, 20, func(a, b int) bool { return a == 0 || b == 0 })
}

// all: every member waits for every other.
func all(int, int) bool { return true }

// rounds takes the members through n rounds, and looks after each whether those that wait for each other are in step.
func rounds(t *testing.T, ms []member, n int, wait func(a, b int) bool) {
	t.Helper()
	entered := make([]atomic.Int64, len(ms))
	ctx := testContext(t)
	var wg sync.WaitGroup
	for i, m := range ms {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 5))
			for r := range int64(n) {
				for range rng.IntN(50) {
					runtime.Gosched()
				}
				entered[i].Add(1)
				if err := m.Barrier(ctx, m.group, 9); err != nil {
					t.Errorf("member %d, round %d: %v", i, r, err)
					return
				}
				for j := range entered {
					if e := entered[j].Load(); wait(i, j) && (e < r+1 || e > r+2) {
						t.Errorf("member %d has left round %d, member %d is at %d", i, r+1, j, e)
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestBarrierNamesWhoIsMissing(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		ms := members(t, w, 3)
		if err := ms[0].Barrier(done(), ms[0].group, 1); !errors.Is(err, context.Canceled) {
			t.Fatalf("no time at all: %v", err)
		}
		ctx, cancel := context.WithCancel(testContext(t))
		defer cancel()
		ends := make(chan error, 2)
		for _, m := range ms[:2] {
			go func() { ends <- m.Barrier(ctx, m.group, 1) }()
		}
		for i, m := range ms[:2] {
			reach(t, m.Counter(1), 1)
			reach(t, ms[2].Counter(1), uint64(i+1))
		}
		cancel()
		for range 2 {
			err := receive(t, "barrier", ends)
			var missing *hawser.MissingError
			if !errors.As(err, &missing) || !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			if len(missing.Missing) != 1 || missing.Missing[0].Peer.ID() != ms[2].ID() || missing.Imm != 1 || missing.Have != 1 || missing.Want != 2 {
				t.Fatalf("%+v", missing)
			}
		}
		// A round that failed has been a round: who was late finds the others' signals of it, and all go on together.
		if err := ms[2].Barrier(testContext(t), ms[2].group, 1); err != nil {
			t.Fatal(err)
		}
		rounds(t, ms, 3, all)
	})
}

func TestBarrierEndsWhenAMemberDies(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		ms := members(t, w, 3)
		ends := make(chan error, 2)
		for _, m := range ms[:2] {
			go func() { ends <- m.Barrier(context.Background(), m.group, 1) }()
		}
		reach(t, ms[2].Counter(1), 2)
		if err := ms[2].Close(testContext(t)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			err := receive(t, "barrier", ends)
			var missing *hawser.MissingError
			if !errors.As(err, &missing) || !errors.Is(err, hawser.ErrPeerDown) {
				t.Fatal(err)
			}
			if m := missing.Missing; len(m) != 1 || m[0].Peer.ID() != ms[2].ID() || m[0].Down == nil {
				t.Fatalf("%+v", missing)
			}
		}
		eventually(t, "all know", func() bool { return !ms[0].group.Peers()[1].Up() })
		err := ms[0].Barrier(context.Background(), ms[0].group, 2)
		var missing *hawser.MissingError
		if !errors.As(err, &missing) || !errors.Is(err, hawser.ErrPeerDown) || missing.Have != 0 || missing.Want != 2 {
			t.Fatalf("a member is dead already: %v", err)
		}
	})
}

// The last barrier of a program: who is through leaves at once, and all get through.
func TestLeavingAfterABarrierHurtsNobody(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		for range 10 {
			ms := members(t, w, 3)
			var wg sync.WaitGroup
			for i, m := range ms {
				wg.Go(func() {
					if err := m.Barrier(testContext(t), m.group, 1); err != nil {
						t.Errorf("member %d: %v", i, err)
					}
					if err := m.Close(testContext(t)); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	})
}

func BenchmarkBarrier(b *testing.B) {
	for _, name := range []string{"shm", "tcp"} {
		for _, n := range []int{2, 4} {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				ms := members(b, newWorld(b, name), n)
				var wg sync.WaitGroup
				for _, m := range ms[1:] {
					wg.Go(func() {
						for m.Barrier(b.Context(), m.group, 1) == nil {
						}
					})
				}
				for b.Loop() {
					if err := ms[0].Barrier(b.Context(), ms[0].group, 1); err != nil {
						b.Fatal(err)
					}
				}
				if err := ms[0].Close(testContext(b)); err != nil { // ends the others
					b.Fatal(err)
				}
				wg.Wait()
			})
		}
	}
}
