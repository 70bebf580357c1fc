package weights

import (
	"slices"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/schedule"
	"github.com/hawser-project/hawser/weights/stage"
)

// fuseMost bounds what is staged together, bytes: more would not be in a cache any more when it is written.
const fuseMost = 4 << 20

// fuse makes one task of those that take different columns of the same rows, for different destinations. The rows are then read once, from
// their beginning to their end, which is twice as fast as parts of rows. The task is where the first of them was.
func fuse(s *reshard.Slice) []reshard.Task {
	type box struct{ stage, tensor, buffer int }
	last := map[box]int{} // in out
	out := make([]reshard.Task, 0, len(s.Tasks))
	for i := range s.Tasks {
		t := &s.Tasks[i]
		if len(t.Pieces) != 1 || t.Size > fuseMost || blocksOf(&t.Pieces[0]) > 0 {
			out = append(out, *t)
			continue
		}
		k := box{t.Stage, t.Pieces[0].Tensor, t.Pieces[0].Buffer}
		at, ok := last[k]
		if ok && stage.Beside(&out[at].Pieces[0], &t.Pieces[0]) && out[at].Size+t.Size+schedule.Align <= fuseMost {
			out[at] = both(&out[at], t)
			continue
		}
		last[k] = len(out)
		out = append(out, *t)
	}
	return out
}

// both is a task with the pieces and runs of two, those of the second behind the others.
func both(a, b *reshard.Task) reshard.Task {
	base := (a.Size + schedule.Align - 1) / schedule.Align * schedule.Align
	t := *a
	t.Pieces, t.Runs = slices.Concat(a.Pieces, b.Pieces), slices.Concat(a.Runs, b.Runs)
	for i := range t.Pieces[len(a.Pieces):] {
		t.Pieces[len(a.Pieces)+i].Dst += base
	}
	for i := range t.Runs[len(a.Runs):] {
		t.Runs[len(a.Runs)+i].From += base
	}
	t.Size = base + b.Size
	return t
}
