package weights

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/weights/proto"
)

// receiverOut carries out what the receiver's machine wants. All methods need mu, which the machine's caller holds.
type receiverOut struct{ *Receiver }

// Grant lets the writers of an epoch write. Descriptors are of everything that the layout puts here, in both copies, so that they stay the same
// from epoch to epoch; the immediate after those of the stages is the number of the copy.
func (r receiverOut) Grant(e *proto.Epoch, _ uint64, kept []uint64) {
	r.phases.begin()
	if e.Since == e.Key && (r.copies[1] != nil || !r.me.Leader) { // a repair goes on; a leader in place has begun with Pause
		r.spans.begin()
	}
	x, d, err := r.grant(e, kept)
	if err == nil {
		r.in[e.Key] = x
	}
	wait := r.still()
	r.do(func(context.Context) func(proto.Time) {
		wait()
		if err == nil {
			r.poison(x)
		}
		return func(now proto.Time) {
			if err != nil {
				r.m.Granted(now, e.Key, nil, nil, err)
				return
			}
			r.m.Granted(now, e.Key, append(x.in.imms(), uint32(x.copy)), d, nil)
			x.start()
		}
	})
}

func (r *Receiver) grant(e *proto.Epoch, kept []uint64) (*reception, [][]byte, error) {
	slice := r.slices[e.Key].slice
	if slice == nil {
		return nil, nil, errors.New("no slice was adopted")
	}
	if len(kept) == 0 {
		if err := r.complete(slice); err != nil {
			return nil, nil, err
		}
	}
	d, err := describe(r.everything(), r.hulls())
	if err != nil {
		return nil, nil, err
	}
	r.roots[r.writes()] = proto.Hash{}
	x, err := r.newReception(e, slice, kept)
	return x, d, err
}

func (r receiverOut) Put(e proto.Key) {
	x := r.in[e]
	if x == nil {
		return
	}
	x.cancel()
	delete(r.in, e)
	if !x.started {
		close(x.over)
	}
	r.do(func(context.Context) func(proto.Time) {
		<-x.over
		x.in.put()
		return nil
	})
}

// Pause runs the leader's hook.
func (r receiverOut) Pause(v proto.Version) {
	r.phases.stop()
	if r.copies[1] == nil {
		r.spans.begin()
	}
	began := time.Now()
	r.hook("Pause", r.o.Hooks.Pause, v, func(now proto.Time, err error) {
		r.spans.note("pause", "", began)
		r.m.Paused(now, err)
	})
}

func (r receiverOut) Resume(v proto.Version) {
	began := time.Now()
	r.hook("Resume", r.o.Hooks.Resume, v, func(now proto.Time, err error) {
		r.phases.resumed(began)
		r.spans.note("resume", "", began)
		r.tell(r.m.Status().Epoch, memberReport{Phases: r.phases.now()})
		r.m.Resumed(now, err)
	})
}

func (r *Receiver) hook(name string, hook func(context.Context, Version) error, v proto.Version, answer func(proto.Time, error)) {
	r.do(func(ctx context.Context) func(proto.Time) {
		var err error
		if hook != nil {
			err = callHook(ctx, name, r.o.Limits.Pause, func(ctx context.Context) error { return hook(ctx, v) })
		}
		return func(now proto.Time) { answer(now, err) }
	})
}

// Flip swaps the copies, then tells the engine. Derived tensors are rebuilt before anybody computes with them.
func (r receiverOut) Flip(e proto.Key, v proto.Version) {
	if r.copies[1] != nil {
		r.active = 1 - r.active
	}
	r.do(func(ctx context.Context) func(proto.Time) {
		began := time.Now()
		err := r.flip(ctx, v)
		r.spans.note("flip", "", began)
		return func(now proto.Time) {
			r.tell(e, memberReport{Phases: r.phases.now()})
			r.m.Flipped(now, err)
			if err == nil {
				r.hash(v)
			}
		}
	})
}

func (r *Receiver) flip(ctx context.Context, v Version) error {
	call := func(name string, hook func(context.Context, Version) error) error {
		if hook == nil {
			return nil
		}
		return callHook(ctx, name, r.o.Limits.Pause, func(ctx context.Context) error { return hook(ctx, v) })
	}
	if err := call("Flip", r.o.Hooks.Flip); err != nil {
		return err
	}
	for _, d := range r.o.Layout.Derived {
		hook := r.o.Hooks.Derived[d.Hook]
		if hook == nil {
			return fmt.Errorf("derived tensor %s: there is no hook %q", d.Name, d.Hook)
		}
		if err := call("Derived "+d.Hook, hook); err != nil {
			return err
		}
	}
	return call("Committed", r.o.Hooks.Committed)
}

func (r receiverOut) Sums(e proto.Key, sums []proto.StageSum) {
	if x := r.in[e]; x != nil {
		x.sums(sums)
	}
}

// Restore checks that the copy that is not served still holds a version.
func (r receiverOut) Restore(e proto.Key, v proto.Version) {
	other := r.writes()
	memory := r.copies[other]
	r.do(func(ctx context.Context) func(proto.Time) {
		var root proto.Hash
		err := fmt.Errorf("v%d: %w: there is no second copy", v, proto.ErrVersion)
		if r.o.Shadow != nil {
			root, err = r.rootOf(ctx, memory)
		}
		return func(now proto.Time) {
			if err == nil {
				r.roots[other] = root
			}
			r.m.Ready(now, e, root, err)
		}
	})
}

func (r receiverOut) Suspended() {
	if r.suspended != nil {
		close(r.suspended)
	}
}

func (r receiverOut) Note(n proto.Note) { r.note(n) }
