package weights

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
)

// Hooks are what an inference engine does when its weights change. Any may be nil. Each runs on a goroutine of its own with a context that ends
// with its time limit (Limits); one that does not return by then counts as failed, and nothing waits for it.
type Hooks struct {
	// Pause stops the whole instance, and returns when no rank of it reads weights any more; Resume starts it again. They are called on the
	// leader only. v is the version to come, or the one that is served from now on.
	Pause, Resume func(ctx context.Context, v Version) error
	// Flip makes this rank serve a version: it is called on every rank between Pause and Resume. A shadow receiver has swapped its copies
	// before; the engine must read from Receiver.Active from then on.
	Flip func(ctx context.Context, v Version) error
	// Committed is called on every rank after Flip, before Resume, for what depends on the version: the KV cache to flush or to keep.
	Committed func(ctx context.Context, v Version) error
	// PostLoad turns a stage's bytes into what the engine computes with, when they are complete and verified. It sees nothing of other stages.
	PostLoad func(ctx context.Context, stage int) error
	// Derived rebuilds tensors that the layout declares as derived, by the names of their hooks, between Flip and Resume.
	Derived map[string]func(ctx context.Context, v Version) error
	// Hash is the digest of memory that the processor cannot read: XXH64 of its bytes. Nil: the memory is read.
	Hash func(hawser.Slice) (uint64, error)
}

// Limits are how long things may take before the epoch is given up. Zero values mean the defaults.
type Limits struct {
	Pause    time.Duration // Pause, Resume, Flip, Committed and Derived; default 30 s
	PostLoad time.Duration // default 60 s
	Push     time.Duration // from START to the last PREPARED; default 120 s
	Commit   time.Duration // from the decision to the last DONE; default 10 s
	Return   time.Duration // an update waits so long for a publisher whose process has ended, then goes on without; default 3 s
}

func (l Limits) withDefaults() Limits {
	for d, def := range map[*time.Duration]time.Duration{
		&l.Pause: 30 * time.Second, &l.PostLoad: 60 * time.Second, &l.Push: 120 * time.Second, &l.Commit: 10 * time.Second,
		&l.Return: 3 * time.Second,
	} {
		if *d == 0 {
			*d = def
		}
	}
	return l
}

// callHook runs a hook and returns its error, or that it has not returned in time. A hook that hangs keeps its goroutine. A panic is an error:
// what an inference engine does wrong must not take the transport down.
func callHook(ctx context.Context, name string, d time.Duration, hook func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	over := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				over <- fmt.Errorf("panic: %v", r)
			}
		}()
		over <- hook(ctx)
	}()
	select {
	case err := <-over:
		if err != nil {
			return fmt.Errorf("hook %s: %w", name, err)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("hook %s: not over after %v: %w", name, d, context.Cause(ctx))
	}
}

// Version names what weights are: the same version is the same bytes.
type Version = proto.Version
