package weights

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// controllerOut carries out what the controller's machine wants. All methods need mu, which the machine's caller holds.
type controllerOut struct{ *Controller }

// Plan computes a plan. Layouts are here.
func (c controllerOut) Plan(r *proto.PlanRequest) {
	layouts := map[proto.Hash][]byte{}
	for i := range r.Members {
		h := r.Members[i].Layout
		layouts[h] = c.blobs[h]
	}
	c.do(func(ctx context.Context) func(proto.Time) {
		plan, blobs, err := c.plans.plan(ctx, r, layouts)
		return func(now proto.Time) {
			for h, b := range blobs {
				c.keep(h, b)
			}
			c.refused = err
			if err == nil && c.clock.plan == (proto.Hash{}) {
				c.clock.plan = plan.Plan
			}
			c.m.Planned(now, r.Epoch, plan, err)
		}
	})
}

// Log hands a record to the goroutine that writes.
func (c controllerOut) Log(r proto.Record) {
	select {
	case c.records <- r:
	default: // a thousand are being written: nothing moves any more
		c.do(func(context.Context) func(proto.Time) {
			return func(now proto.Time) {
				c.m.Logged(now, r.Seq, fmt.Errorf("%w: the log does not keep up", hawser.ErrLimit))
			}
		})
	}
}

func (c controllerOut) Ended(op uint64, o proto.Outcome) {
	if over, ok := c.ops[op]; ok {
		delete(c.ops, op)
		over <- o
		return
	}
	c.early[op] = o
}

func (c controllerOut) Note(n proto.Note) { c.note(n); c.clock.note(n) }
