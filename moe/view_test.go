package moe

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/moe/proto"
)

// TestServed: places at ranks that are no members are used by nobody who has others; what has no other is named.
func TestServed(t *testing.T) {
	l := &proto.Layout{Config: proto.Config{MaxRanks: 3, Experts: 6}, Local: 2}
	all, some := []Member{{Rank: 0}, {Rank: 1}, {Rank: 2}}, []Member{{Rank: 0}, {Rank: 2}}
	replicas := Placement{Of: []uint32{0, 2, 5, 3, 1, 4}, First: []uint32{0, 3, 4, 6}}
	for _, x := range []struct {
		v        View
		places   [][]uint32
		unserved []int
	}{
		{View{Members: all}, nil, nil},
		{View{Members: some}, nil, []int{2, 3}},
		{View{Members: some, Placement: Placement{Of: []uint32{5, 4, 1, 0, 3}}}, nil, []int{4}},
		{View{Members: all, Placement: replicas}, [][]uint32{{0, 2, 5}, {3}, {1, 4}}, nil},
		{View{Members: some, Placement: replicas}, [][]uint32{{0, 5}, {3}, {1, 4}}, []int{1}},
	} {
		p, unserved := x.v.served(l)
		if !slices.Equal(unserved, x.unserved) {
			t.Errorf("%+v: %v have no place, want %v", x.v, unserved, x.unserved)
		}
		for e, want := range x.places {
			if got := p.Places(e); !slices.Equal(got, want) {
				t.Errorf("%+v: expert %d at %v, want %v", x.v, e, got, want)
			}
		}
		if x.places == nil && (!slices.Equal(p.Of, x.v.Placement.Of) || p.First != nil) {
			t.Errorf("%+v: %+v", x.v, p)
		}
	}
}

// TestReplicas: experts with replicas are computed where there is one of them, also when a rank with one has died; an expert whose only
// place has died counts as nothing.
func TestReplicas(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		// Experts 0 and 1 are at all three ranks, expert 2 at rank 2 only: places 2r and 2r+1 of rank r.
		places := Placement{Of: []uint32{0, 2, 4, 1, 3, 5, 6}, First: []uint32{0, 3, 6, 7}}
		c := tiny(4)
		x := newTeam(t, network, c, 0)
		at := map[int]int{6: 2} // expert of a place
		for r := range 3 {
			at[2*r], at[2*r+1] = 0, 1
		}
		step := func(dead ...int) {
			t.Helper()
			each(t, x.there(), func(r *rank) error {
				w := newWork(rand.New(rand.NewPCG(uint64(r.i), 9)), r.cfg, r.cfg.Full)
				for i := range w.in.N * c.TopK {
					id := int(int32(le.Uint32(w.in.IDs.Data[4*i:])))
					w.route(r.cfg, i/c.TopK, i%c.TopK, min(id, id%3), get(w.in.Weights, i))
				}
				w.expect(r.cfg)
				s, err := r.lanes[0].DispatchSend(within(t), &w.in)
				if err != nil {
					return err
				}
				h, err := s.Recv(within(t), &w.out)
				if err != nil {
					return err
				}
				own := 0
				for local, n := range h.Counts() {
					own += int(n)
					for i := int(h.Offsets()[local]) * c.Hidden; i < (int(h.Offsets()[local])+int(n))*c.Hidden; i++ {
						put(w.y, i, expert(at[r.i*r.cfg.Local+local], get(w.out.X, i)))
					}
				}
				if r.i < 3 && own == 0 {
					return fmt.Errorf("no rows, with replicas of two experts")
				}
				s2, err := h.CombineSend(within(t), w.y)
				if err != nil {
					return err
				}
				if err := s2.Recv(within(t), w.sum, CombineOpts{}); err != nil {
					return err
				}
				if slices.Contains(dead, 3) { // expert 2 is there no more
					for i := range w.in.N * c.TopK {
						if le.Uint32(w.in.IDs.Data[4*i:]) == 2 {
							put(w.in.Weights, i, 0)
						}
					}
					w.expect(r.cfg)
				}
				w.check(t, r)
				return nil
			})
		}
		v := x.view(2, 0, 1, 2, 3)
		v.Placement = places
		change := func(v View, want []int) {
			t.Helper()
			each(t, x.there(), func(r *rank) error {
				a, err := r.g.Activate(within(t), v)
				if err == nil && !slices.Equal(a.Unserved, want) {
					err = fmt.Errorf("%v have no place, want %v", a.Unserved, want)
				}
				return err
			})
		}
		change(v, nil)
		step()
		x.kill(3)
		x.kill(1)
		v = x.view(3, 0, 2)
		v.Placement = places
		change(v, []int{2})
		step(3, 1)
	})
}
