package weights

import (
	"context"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
)

// Stager fills staging memory: it casts, quantizes and packs. Its methods are called by one goroutine each, Amax and Stage possibly at the
// same time for different tasks.
type Stager interface {
	// Amax sets the maxima of all blocks of the task's pieces to the largest absolute values of what this source holds of them.
	Amax(ctx context.Context, t *Task, maxima []float32) error
	// Stage fills dst, of t.Size bytes, when the maxima of the stage are those of whole blocks.
	Stage(ctx context.Context, t *Task, maxima []float32, dst hawser.Slice) error
}

// Task is a task of a source's slice, with the memory that it reads.
type Task struct {
	*reshard.Task
	Slice   *reshard.Slice   // its names and codecs
	Buffers []*hawser.Region // of the source, by number
}
