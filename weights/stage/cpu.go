package stage

import (
	"context"

	"github.com/hawser-project/hawser/reshard"
)

// CPU stages on the processor that calls it. The zero value is ready; calls for different tasks may run at the same time.
//
// Slices must have passed [Check]: offsets are used as they are.
type CPU struct {
	// AllowNonFinite lets NaN through the codec fp8block, as NaN; an infinity makes all of its block zero or NaN. Otherwise both fail the
	// task with a [NonFiniteError].
	AllowNonFinite bool
}

// Amax raises the entries of the stage's table of maxima to the largest absolute values of what the task's pieces hold of their blocks.
// The buffers are the source's.
func (c *CPU) Amax(ctx context.Context, s *reshard.Slice, t *reshard.Task, buffers [][]byte, maxima []float32) error {
	for i := range t.Pieces {
		p := &t.Pieces[i]
		if s.Codecs[p.Codec].Kind != fp8 {
			continue
		}
		if err := context.Cause(ctx); err != nil {
			return err
		}
		var q quantizer
		q.init(c, s, p, buffers[p.Buffer], nil)
		if err := q.amax(maxima); err != nil {
			return err
		}
	}
	return nil
}

// Stage fills dst, t.Size bytes of staging. The maxima must be those of whole blocks, from all sources; nil says that every block of the
// task lies in one of its pieces whole, and their maxima are found on the way, which reads memory once instead of twice.
func (c *CPU) Stage(ctx context.Context, s *reshard.Slice, t *reshard.Task, buffers [][]byte, maxima []float32, dst []byte) error {
	for i, n := 0, 1; i < len(t.Pieces); i += n {
		p := &t.Pieces[i]
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if s.Codecs[p.Codec].Kind != fp8 {
			n = besides(t.Pieces[i:])
			move(t.Pieces[i:i+n], buffers[p.Buffer], dst)
			continue
		}
		n = 1
		var q quantizer
		q.init(c, s, p, buffers[p.Buffer], dst)
		if err := q.fill(maxima); err != nil {
			return err
		}
	}
	return nil
}

const fp8 = "fp8block"
