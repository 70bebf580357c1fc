package weightsim

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/reshard"
)

// Run plays the push of a plan: from BEGIN, when the sources hold the new weights, until every receiver has answered the decision. Its
// errors are faults of the plan, a trainer that nobody can replace (see reshard.Plan.Repair), and the end of ctx.
func Run(ctx context.Context, p *reshard.Plan, o Options) (*Timeline, error) {
	sources, dests, _, err := slicesOf(ctx, p, nil)
	if err != nil {
		return nil, err
	}
	if o.Instances == nil {
		for _, d := range dests {
			o.Instances = append(o.Instances, p.Instance(d.Rank))
		}
	}
	cores := time.Duration(o.withDefaults().PlanCores)
	repair := func(lost []int, verified func(dst, stage int) bool) (Repaired, error) {
		begin := processorTime()
		q, err := p.Repair(lost, verified)
		r := Repaired{Took: processorTime() - begin}
		if err != nil {
			return r, err
		}
		begin = processorTime()
		r.Sources, r.Dests, r.Bytes, err = slicesOf(ctx, q, lost)
		made := processorTime() - begin
		if o.Note != nil && o.Replan == 0 {
			o.Note(0, fmt.Sprintf("assumed of the repair what it took here: %v for the plan, %v of one core for the slices, over %d cores",
				r.Took.Round(time.Millisecond), made.Round(time.Millisecond), cores))
		}
		r.Took += made / cores
		return r, err
	}
	return Simulate(ctx, sources, dests, repair, o)
}

// processorTime is that of this process. Unlike the time on the wall it does not depend on what else the machine does.
func processorTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0 // cannot fail with these arguments
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// slicesOf are all slices of a plan but those of lost sources, without what a simulation does not need, and how long they are encoded. It is
// not looked at when nobody is lost: then every member has its slice before the push.
func slicesOf(ctx context.Context, p *reshard.Plan, lost []int) (sources, dests []*reshard.Slice, bytes int64, err error) {
	s, d := p.Ranks()
	for r := range s + d {
		if ctx.Err() != nil {
			return nil, nil, 0, fmt.Errorf("weightsim: slices of the plan: %w", context.Cause(ctx))
		}
		var x *reshard.Slice
		switch {
		case r >= s:
			x = p.Dest(r - s)
		case !slices.Contains(lost, r):
			x = p.Source(r)
		default:
			continue
		}
		if lost != nil {
			bytes += int64(len(x.Append(nil)))
		}
		if r >= s {
			dests = append(dests, x)
		} else {
			sources = append(sources, lean(x))
		}
	}
	return sources, dests, bytes, nil
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
