package weights

import (
	"crypto/sha256"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/weights/proto"
)

// Pushes in a row have the same members: what was encoded for one is used for the next. With other members nothing old is.
func TestPlanIsEncodedOnce(t *testing.T) {
	m := toy{instances: 2}.withDefaults()
	src, err := encodeLayout(m.source(), nil)
	if err != nil {
		t.Fatal(err)
	}
	dst, err := encodeLayout(m.destination(), nil)
	if err != nil {
		t.Fatal(err)
	}
	layouts := map[proto.Hash][]byte{sha256.Sum256(src): src, sha256.Sum256(dst): dst}
	var members []proto.Member
	for i := range m.trainers {
		members = append(members, proto.Member{Role: proto.RolePublisher, Rank: i, Layout: sha256.Sum256(src)})
	}
	for i := range m.instances * m.ranks {
		members = append(members, proto.Member{Role: proto.RoleReceiver, Rank: i, Layout: sha256.Sum256(dst)})
	}
	var used planner
	plan := func(p *planner, members []proto.Member) (*proto.Planned, map[proto.Hash][]byte) {
		t.Helper()
		planned, blobs, err := p.plan(t.Context(), &proto.PlanRequest{Mode: proto.ModePush, Members: members}, layouts)
		if err != nil {
			t.Fatal(err)
		}
		return planned, blobs
	}
	first, _ := plan(&used, members)
	if again, _ := plan(&used, members); again != first {
		t.Error("the same members of the same plan were encoded twice")
	}
	for _, fewer := range [][]proto.Member{members[:len(members)-m.ranks], members} {
		got, gotBlobs := plan(&used, fewer)
		want, wantBlobs := plan(&planner{}, fewer)
		if len(got.Slices) != len(fewer) || !maps.EqualFunc(gotBlobs, wantBlobs, func(a, b []byte) bool { return string(a) == string(b) }) {
			t.Errorf("%d members: not the slices that a new planner makes", len(fewer))
		}
		for i := range want.Slices {
			if got.Slices[i] != want.Slices[i] {
				t.Errorf("%d members: slice %d is another", len(fewer), i)
			}
		}
	}
}

// The plan of an epoch that has ended may still be computed when that of the next one is wanted.
func TestPlansAtTheSameTime(t *testing.T) {
	var used planner
	var wg sync.WaitGroup
	for k := range 8 {
		wg.Go(func() {
			m := toy{layers: 1 + k%3}.withDefaults()
			src, err := encodeLayout(m.source(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			dst, err := encodeLayout(m.destination(), nil)
			if err != nil {
				t.Error(err)
				return
			}
			layouts := map[proto.Hash][]byte{sha256.Sum256(src): src, sha256.Sum256(dst): dst}
			members := []proto.Member{{Role: proto.RolePublisher, Layout: sha256.Sum256(src)}, {Role: proto.RoleReceiver, Layout: sha256.Sum256(dst)}}
			want, _, err := new(planner).plan(t.Context(), &proto.PlanRequest{Mode: proto.ModePush, Members: members}, layouts)
			if err != nil {
				t.Error(err)
				return
			}
			for range 20 {
				got, _, err := used.plan(t.Context(), &proto.PlanRequest{Mode: proto.ModePush, Members: members}, layouts)
				if err != nil || got.Plan != want.Plan || !slices.Equal(got.Slices, want.Slices) {
					t.Errorf("layers %d: not its own plan: %v", m.layers, err)
				}
			}
		})
	}
	wg.Wait()
}
