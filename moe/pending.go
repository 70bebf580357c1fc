package moe

import (
	"context"
	"fmt"
	"iter"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// Policy says what happens when more rows come than there is room for.
type Policy uint8

// The policies.
const (
	Stream Policy = iota // Recv returns ErrLimit, and the same Pending goes on with Chunks, or with a larger Output
	Fail                 // the step fails at all ranks with ErrLimit
)

// PartialError: a step was finished without ranks that did not give what they owed. What they would have sent counts as nothing. The step
// goes on and can be completed; then the group needs a new view.
type PartialError = proto.PartialError

// LimitError: more rows come than there is room for. It wraps hawser.ErrLimit.
type LimitError = exec.LimitError

// Pending is a step whose tokens are under way.
type Pending struct{ lane *Lane }

// Recv waits until all rows of the step are in out. With a *PartialError the Handle is good, too: ranks are missing. ErrLimit (a
// *LimitError) says what is too small, with policy Stream: nothing has failed, the same Pending goes on with Chunks, or with Recv and a
// larger Output. Any other error is the end of the step.
//
// hot:
func (p *Pending) Recv(ctx context.Context, out *Output) (*Handle, error) {
	l := p.lane
	if err := l.enter(ctx); err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	err := l.receive(ctx, out)
	if err == nil {
		l.stage = toCombine
		if err := l.partial(); err != nil {
			l.leave()
			return &l.handle, err
		}
	}
	l.leave()
	if err != nil {
		return nil, fmt.Errorf("receive: %w", err)
	}
	return &l.handle, nil
}

func (l *Lane) receive(ctx context.Context, out *Output) error {
	if l.stage != toReceive {
		return l.misplaced()
	}
	l.out = *out
	l.exec.Receive(&l.out)
	if err := l.drive(ctx, received); err != nil {
		return err
	}
	limit := l.exec.Limit()
	if limit == nil {
		l.rowsIn()
		l.counts.dispatch.add(l.now() - l.marks.dispatched)
		return nil
	}
	l.counts.overflowed.Add(1)
	if l.policy == Fail {
		l.cancel(limit, proto.CodeLimit)
		return l.drive(ctx, summed)
	}
	return limit
}

// misplaced is the error of a call that is not the step's next one.
func (l *Lane) misplaced() error {
	if failed, why, blamed, err := l.exec.Failed(); failed {
		return l.failure(why, blamed, err)
	}
	return fmt.Errorf("%w: it is not the turn of this call in step %d", hawser.ErrBusy, l.proto().Step())
}

// Chunks receives the step piece by piece: each Chunk has some rows in out, which must have room for StreamRows of them, and is to be
// combined before the next one comes. It ends when all rows were combined, or with an error; then Handle completes the step. It allocates.
//
// Waiting for another lane while holding a chunk may wait for ever: its memory may be what the other lane's peers need.
func (p *Pending) Chunks(ctx context.Context, out *Output) iter.Seq2[*Chunk, error] {
	return func(yield func(*Chunk, error) bool) {
		l := p.lane
		if err := l.startChunks(ctx, out); err != nil {
			yield(nil, fmt.Errorf("receive chunks: %w", err))
			return
		}
		for {
			more, err := l.nextChunk(ctx)
			if err != nil {
				yield(nil, fmt.Errorf("receive chunk: %w", err))
				return
			}
			if !more || !yield(&l.chunk, nil) {
				return
			}
		}
	}
}

func (l *Lane) startChunks(ctx context.Context, out *Output) error {
	if err := l.enter(ctx); err != nil {
		return err
	}
	defer l.leave()
	if l.stage != toReceive {
		return l.misplaced()
	}
	l.out = *out
	l.chunk.held = false
	if err := l.exec.Stream(&l.out); err != nil {
		return err
	}
	l.stage, l.handle.streamed = toStream, true
	l.counts.streamed.Add(1)
	return nil
}

// nextChunk waits for a chunk; false: there is none any more.
func (l *Lane) nextChunk(ctx context.Context) (bool, error) {
	if err := l.enter(ctx); err != nil {
		return false, err
	}
	defer l.leave()
	if l.stage != toStream {
		return false, l.misplaced()
	}
	if l.chunk.held {
		err := fmt.Errorf("%w: the chunk before was not combined", hawser.ErrBusy)
		l.cancel(err, proto.CodeCanceled)
	}
	if err := l.drive(ctx, chunked); err != nil {
		return false, err
	}
	switch limit := l.exec.Limit(); {
	case l.exec.Chunk():
		l.rowsIn()
		l.chunk.ctx, l.chunk.held = ctx, true
		return true, nil
	case limit != nil:
		l.cancel(limit, proto.CodeLimit)
		return false, l.drive(ctx, summed)
	}
	l.counts.dispatch.add(l.now() - l.marks.dispatched)
	return false, nil
}

// Handle is the step after Chunks has ended. With a *PartialError it is good, too.
func (p *Pending) Handle() (*Handle, error) {
	l := p.lane
	if err := l.enter(context.Background()); err != nil {
		return nil, fmt.Errorf("handle: %w", err)
	}
	defer l.leave()
	if l.stage != toStream || !l.exec.Received() {
		return nil, fmt.Errorf("handle: %w", l.misplaced())
	}
	l.stage = toCombine
	return &l.handle, l.partial()
}

// Chunk is some of the rows of a step, in the Output, grouped by expert.
type Chunk struct {
	lane *Lane
	ctx  context.Context // of Chunks
	held bool
}

// Counts are the rows of each local expert, Offsets where they begin.
func (c *Chunk) Counts() []uint32  { return c.lane.exec.Counts() }
func (c *Chunk) Offsets() []uint32 { return c.lane.exec.Offsets() }

// Combine sends the results of the chunk: y is the lane's until it returns.
//
// hot:
func (c *Chunk) Combine(y Tensor) error {
	l := c.lane
	if err := l.enter(c.ctx); err != nil {
		return fmt.Errorf("combine chunk: %w", err)
	}
	err := l.combineChunk(c.ctx, y)
	l.leave()
	if err != nil {
		return fmt.Errorf("combine chunk: %w", err)
	}
	return nil
}

func (l *Lane) combineChunk(ctx context.Context, y Tensor) error {
	if l.stage != toStream || !l.chunk.held {
		return l.misplaced()
	}
	if err := l.drive(ctx, halved); err != nil {
		return err
	}
	if err := l.exec.CombineChunk(y); err != nil {
		return err
	}
	l.chunk.held = false
	return l.drive(ctx, taken)
}

// Handle is a step whose rows were received. It is good for Reuse until the lane dispatches other ids, or its view ends.
type Handle struct {
	lane     *Lane
	plan     uint64
	step     uint64
	streamed bool
}

// Counts are the rows of each local expert, Offsets where they begin, and one more where they end, with padding. Of a step that was
// received in chunks they are those of the last one.
func (h *Handle) Counts() []uint32  { return h.lane.exec.Counts() }
func (h *Handle) Offsets() []uint32 { return h.lane.exec.Offsets() }

// Step is the number of the step.
func (h *Handle) Step() uint64 { return h.step }

// CombineSend sends the results back: y has what the experts made of the rows of the Output, in their places, and is the lane's until the
// sum was received. After Chunks there is no y: those of the chunks were sent.
//
// hot:
func (h *Handle) CombineSend(ctx context.Context, y Tensor) (*PendingCombine, error) {
	l := h.lane
	if err := l.enter(ctx); err != nil {
		return nil, fmt.Errorf("combine: %w", err)
	}
	err := l.combine(y)
	l.leave()
	if err != nil {
		return nil, fmt.Errorf("combine: %w", err)
	}
	return &l.sums, nil
}

func (l *Lane) combine(y Tensor) error {
	if l.stage != toCombine {
		return l.misplaced()
	}
	l.marks.combined = l.now()
	if err := l.exec.Combine(l.marks.combined, y); err != nil {
		if failed, _, _, _ := l.exec.Failed(); failed {
			return l.misplaced()
		}
		return err
	}
	l.stage = toSum
	return nil
}

// PendingCombine is a step whose results are under way.
type PendingCombine struct{ lane *Lane }

// CombineOpts say what a sum is of, beside the results.
type CombineOpts struct {
	Accumulate bool     // onto what is there
	Bias       []Tensor // added at the end, in order
	Rescale    bool     // divide by the part of the weights that is present, when ranks are missing
	Queue      Queue
}

// Recv waits until the weighted sum of the results of each token is in out. With a *PartialError the sum is there, without the ranks
// that are missing.
//
// hot:
func (p *PendingCombine) Recv(ctx context.Context, out Tensor, o CombineOpts) error {
	l := p.lane
	if err := l.enter(ctx); err != nil {
		return fmt.Errorf("receive sums: %w", err)
	}
	err := l.sum(ctx, out, &o)
	if err == nil {
		l.stage = toDispatch
		if err = l.partial(); err != nil {
			l.leave()
			return err
		}
	}
	l.leave()
	if err != nil {
		return fmt.Errorf("receive sums: %w", err)
	}
	return nil
}

func (l *Lane) sum(ctx context.Context, out Tensor, o *CombineOpts) error {
	if l.stage != toSum {
		return l.misplaced()
	}
	l.r = backend.Reduction{Out: out, Weights: l.in.Weights, Accumulate: o.Accumulate, Bias: o.Bias, Rescale: o.Rescale, Queue: o.Queue}
	if l.sent {
		l.r.Weights = Tensor{}
	}
	l.exec.Reduce(&l.r)
	if err := l.drive(ctx, summed); err != nil {
		return err
	}
	l.completed()
	return nil
}
