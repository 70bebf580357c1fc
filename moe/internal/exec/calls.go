package exec

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// Begin begins a step that sends in, which is the lane's until the step is Received. It fails, and nothing begins, if a step is in
// progress, a new view is needed, or an id is no expert. reuse: the ids are those of the step before.
//
// hot:
func (e *Exec) Begin(now proto.Time, in *backend.Input, q backend.Quantize, reuse bool) error {
	if !e.lane.Idle() { // Count would overwrite the plan of the step in progress
		return fmt.Errorf("dispatch: %w: step %d is not complete", hawser.ErrBusy, e.lane.Step())
	}
	if in.N < 0 || in.N > e.cfg.MaxTokens {
		return fmt.Errorf("dispatch: %w: %d tokens, want 0 .. %d", hawser.ErrInvalid, in.N, e.cfg.MaxTokens)
	}
	if err := e.b.Count(in.Queue, e.next(counting), in, reuse); err != nil {
		return fmt.Errorf("dispatch: %w", err)
	}
	e.under[counting] = 0 // every backend that there is has counted when Count returns
	e.reset()
	e.in, e.quantize = in, q
	if reuse {
		e.flagged = proto.FlagReuse
	}
	if err := e.lane.Begin(now, e.b.Plan().Records); err != nil {
		return err
	}
	e.Run()
	return nil
}

// next numbers a call of the backend that begins.
func (e *Exec) next(k kind) uint64 {
	e.seq[k]++
	e.under[k] = e.seq[k]
	return e.seq[k]
}

// Receive asks for the rows of the step, all in one piece: they are there when Received. If they do not fit, Limit says why, once HeadsIn,
// and the step can be asked for again, with more room or by Stream.
//
// hot:
func (e *Exec) Receive(out *backend.Output) {
	e.out, e.limit, e.whole = out, nil, true
	e.Run()
}

// Stream asks for them in chunks. out is written anew for each; its X has room for at least Layout.HalfRows rows.
//
// hot:
func (e *Exec) Stream(out *backend.Output) error {
	if err := e.lane.Receive(proto.Streamed); err != nil {
		return err
	}
	e.out, e.limit, e.whole, e.streamed = out, nil, false, true
	e.st.begin(e)
	e.Run()
	return nil
}

// Combine sends the results of the step, y being what the experts made of the Output's rows; it is the lane's until the step is Summed.
// After a streamed step y is not used.
//
// hot:
func (e *Exec) Combine(now proto.Time, y backend.Tensor) error {
	e.y = y
	if err := e.lane.Combine(now); err != nil {
		return err
	}
	e.Run()
	return nil
}

// Reduce asks for the sum: it is there when Summed. Gone is filled in here.
//
// hot:
func (e *Exec) Reduce(r *backend.Reduction) {
	e.r = r
	e.Run()
}
