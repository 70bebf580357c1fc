package weights

import (
	"context"
	"runtime"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// Content roots. Receivers that hold the same are compared with each other, so each takes its root before it is prepared. One that is alone with what it holds has
// nobody to differ from: it takes the root when it serves the version, off the push's time. With digests off a root is taken only
// when the rank is suspended, to know the content again.

// alone reports whether nobody else in the epoch holds what this receiver does.
func (x *reception) alone() bool {
	me := &x.e.Members[x.e.Me]
	for i := range x.e.Members {
		if m := &x.e.Members[i]; i != x.e.Me && m.Role == proto.RoleReceiver && m.Shard == me.Shard && m.Layout == me.Layout {
			return false
		}
	}
	return true
}

// hashing takes the root of the memory that is served.
type hashing struct {
	stop context.CancelFunc
	over chan struct{} // closed when the memory is read no more
}

// hash begins to take the root of version v, which is served from now on, unless it is known. Needs mu.
func (r *Receiver) hash(v Version) {
	if r.verify == stage.Off || r.roots[r.active] != (proto.Hash{}) || r.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(r.ctx)
	h := &hashing{stop, make(chan struct{})}
	memory, copy := r.served(), r.active
	r.hashing = h
	r.wg.Go(func() {
		defer close(h.over)
		defer stop()
		root, err := r.rootOf(ctx, memory)
		if err != nil {
			return // the memory will be written, or the receiver is closed
		}
		r.event(func(now proto.Time) {
			if ctx.Err() == nil {
				r.roots[copy] = root
				r.m.Rooted(now, v, root)
			}
		})
	})
}

// still has nobody read the memory for a root, and returns a function that waits until it is so. Needs mu, the function does not.
func (r *Receiver) still() (wait func()) {
	h := r.hashing
	if h == nil {
		return func() {}
	}
	r.hashing = nil
	h.stop()
	return func() { <-h.over }
}

// remember takes the root of a suspended rank, if it is not known, while the memory is there.
func (r *Receiver) remember(ctx context.Context) error {
	r.mu.Lock()
	wait, memory, st := r.still(), r.served(), r.m.Status()
	r.mu.Unlock()
	wait()
	if st.Version == 0 || st.Root != (proto.Hash{}) {
		return nil
	}
	root, err := r.rootOf(ctx, memory)
	if err != nil {
		return err
	}
	r.event(func(now proto.Time) { r.m.Rooted(now, st.Version, root) })
	return nil
}

// rootOf is the content root of a copy.
func (r *Receiver) rootOf(ctx context.Context, memory []*hawser.Region) (proto.Hash, error) {
	root := stage.NewRoot()
	if err := r.addTo(ctx, root, memory); err != nil {
		return proto.Hash{}, err
	}
	return root.Sum(), nil
}

// addTo adds what the layout puts here.
func (r *Receiver) addTo(ctx context.Context, root *stage.Root, memory []*hawser.Region) error {
	for i := range r.held {
		h := &r.held[i]
		name := r.o.Layout.Tensors[h.Tensor].Name
		if h.Scales {
			name += " scales"
		}
		root.Begin(name)
		b := memory[h.Buffer].Bytes()
		h.Spans(func(off, n int64) bool {
			for n > 0 && ctx.Err() == nil {
				k := min(n, stage.RootCell)
				root.Add(b[off : off+k])
				off, n = off+k, n-k
				runtime.Gosched() // whoever ends the push has no time to wait
			}
			return ctx.Err() == nil
		})
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}
