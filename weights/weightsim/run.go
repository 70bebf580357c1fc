package weightsim

import (
	"context"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/reshard"
)

// Run plays the push of a plan: from BEGIN, when the sources hold the new weights, until every receiver has answered the decision. Its
// errors are faults of the plan, a trainer that nobody can replace (see reshard.Plan.Repair), and the end of ctx.
func Run(ctx context.Context, p *reshard.Plan, o Options) (*Timeline, error) {
	sources, dests, err := slicesOf(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	repair := func(lost []int, verified func(dst, stage int) bool) (sources, dests []*reshard.Slice, err error) {
		q, err := p.Repair(lost, verified)
		if err != nil {
			return nil, nil, err
		}
		return slicesOf(ctx, q, lost)
	}
	return Simulate(ctx, sources, dests, repair, o)
}

// slicesOf are all slices of a plan but those of lost sources, without what a simulation does not need.
func slicesOf(ctx context.Context, p *reshard.Plan, lost []int) (sources, dests []*reshard.Slice, err error) {
	s, d := p.Ranks()
	for r := range s + d {
		if ctx.Err() != nil {
			return nil, nil, fmt.Errorf("weightsim: slices of the plan: %w", context.Cause(ctx))
		}
		switch {
		case r >= s:
			dests = append(dests, p.Dest(r-s))
		case !slices.Contains(lost, r):
			sources = append(sources, lean(p.Source(r)))
		}
	}
	return sources, dests, nil
}

// lean replaces the pieces of each task by one that reads as much.
func lean(s *reshard.Slice) *reshard.Slice {
	for i := range s.Tasks {
		if t := &s.Tasks[i]; len(t.Pieces) > 0 {
			t.Pieces = []reshard.Piece{{From: reshard.U8, To: reshard.U8, Shape: []int64{sourceBytes(t)}}}
		}
	}
	return s
}
