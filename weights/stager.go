package weights

import (
	"context"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/stage"
)

// Stager fills staging memory: it casts, quantizes and packs. Its methods are called by one goroutine each, Amax and Stage possibly at the
// same time for different tasks.
type Stager interface {
	// Amax raises the maxima of all blocks of the task's pieces to the largest absolute values of what this source holds of them.
	Amax(ctx context.Context, t *Task, maxima []float32) error
	// Stage fills dst, of t.Size bytes. The maxima of the stage are those of whole blocks; nil: every block lies whole in one piece of the task.
	Stage(ctx context.Context, t *Task, maxima []float32, dst hawser.Slice) error
}

// Task is a task of a source's slice, with the memory that it reads.
type Task struct {
	*reshard.Task
	Slice   *reshard.Slice   // its names and codecs
	Buffers []*hawser.Region // of the source, by number
}

// cpuStager stages on the processor.
type cpuStager struct{ cpu stage.CPU }

func (c cpuStager) Amax(ctx context.Context, t *Task, maxima []float32) error {
	return c.cpu.Amax(ctx, t.Slice, t.Task, t.bytes(), maxima)
}

func (c cpuStager) Stage(ctx context.Context, t *Task, maxima []float32, dst hawser.Slice) error {
	return c.cpu.Stage(ctx, t.Slice, t.Task, t.bytes(), maxima, dst.Region.Bytes()[dst.Off:dst.Off+dst.Len])
}

func (t *Task) bytes() [][]byte {
	all := make([][]byte, len(t.Buffers))
	for i, r := range t.Buffers {
		all[i] = r.Bytes()
	}
	return all
}
