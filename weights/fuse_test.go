package weights

import (
	"bytes"
	"testing"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/stage"
)

// Fused tasks send the same bytes to the same places, in the same stages; columns of one tensor are in one task. The slice of the plan, which other epochs use,
// stays as it was.
func TestFuse(t *testing.T) {
	m := toy{ranks: 4, trainers: 2, layers: 3}.withDefaults()
	plan, err := reshard.Compute(t.Context(), m.source(), m.destination(), nil, reshard.Options{SmallTensor: 1})
	if err != nil {
		t.Fatal(err)
	}
	s := plan.Source(1)
	before := s.Append(nil)
	fused := *s
	fused.Tasks = fuse(s)
	if !bytes.Equal(before, s.Append(nil)) {
		t.Fatal("fuse has changed the slice that it was given")
	}
	if err := stage.Check(&fused); err != nil {
		t.Fatal(err)
	}
	src := make([]byte, s.Buffers[0])
	noise(src, 1)
	want, _ := carried(t, s, src)
	got, widest := carried(t, &fused, src)
	if len(got) != len(want) {
		t.Fatalf("%d runs, %d without fusing", len(got), len(want))
	}
	for at, b := range want {
		if got[at] != b {
			t.Errorf("%+v: other bytes, or another stage", at)
		}
	}
	if widest != m.ranks {
		t.Errorf("a task is for up to %d destinations; columns go to %d", widest, m.ranks)
	}
}

// place is where a run goes.
type place struct {
	peer, buffer, stage int
	offset              int64
}

// carried is what all runs of a slice carry, and the largest number of pieces that are beside each other in a task.
func carried(t *testing.T, s *reshard.Slice, src []byte) (all map[place]string, widest int) {
	t.Helper()
	all = map[place]string{}
	last := 0
	for i := range s.Tasks {
		k := &s.Tasks[i]
		if k.Stage < last {
			t.Fatalf("task %d is of stage %d, one before of %d", i, k.Stage, last)
		}
		last = k.Stage
		b := src
		if k.Size > 0 {
			b = make([]byte, k.Size)
			var cpu stage.CPU
			if err := cpu.Stage(t.Context(), s, k, [][]byte{src}, nil, b); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range k.Runs {
			all[place{r.Peer, r.Buffer, r.Stage, r.Offset}] = string(b[r.From : r.From+r.Len])
		}
		if k.Size > 0 && stage.Beside(&k.Pieces[0], &k.Pieces[len(k.Pieces)-1]) {
			widest = max(widest, len(k.Pieces))
		}
	}
	return all, widest
}
