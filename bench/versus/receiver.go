package versus

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
)

// oursReceiver is the other process.
type oursReceiver struct {
	side
	parent *proc.Parent
	word   hawser.RemoteSlice // of the sender
}

// Receive is the receiving process of ours.
func Receive(ctx context.Context) error {
	parent, ctx := proc.Attach(ctx)
	r := &oursReceiver{parent: parent}
	err := r.serve(ctx)
	if errors.Is(err, proc.ErrParentGone) {
		err = nil
	}
	err = errors.Join(err, r.close(ctx))
	if err != nil {
		parent.Fail(err)
	}
	return err
}

func (r *oursReceiver) serve(ctx context.Context) error {
	for {
		m, err := r.parent.Next(ctx)
		if err != nil {
			return err
		}
		if err := r.answer(ctx, m); err != nil {
			return err
		}
	}
}

func (r *oursReceiver) answer(ctx context.Context, m proc.Message) error {
	switch m.Kind {
	case msgOpen:
		var q oursHello
		if err := m.Decode(&q); err != nil {
			return err
		}
		mine, err := r.side.open(ctx, q.Opening, immData)
		if err != nil {
			return err
		}
		for b := r.pool.Bytes(); len(b) > 0; b = b[min(len(b), os.Getpagesize()):] { // so that no sample pays for a page fault
			b[0] = 0xff
		}
		small, err := r.importText(ctx, q.Hello.Small)
		if err != nil {
			return err
		}
		r.word = small.Slice(0, smallSize)
		return r.parent.Send(msgAnswer, mine)
	case msgRun:
		if err := r.parent.Send(msgGo, nil); err != nil {
			return err
		}
		before := cpuTime()
		if err := r.receive(ctx); err != nil {
			return err
		}
		return r.parent.Send(msgAnswer, cpuTime()-before)
	case msgVerify:
		var moved uint64
		if err := m.Decode(&moved); err != nil {
			return err
		}
		return r.parent.Send(msgAnswer, corrupt(r.pool.Bytes(), r.order, r.o.Size, r.o.Seed, moved))
	}
	return fmt.Errorf("unexpected request %q", m.Kind)
}

func (r *oursReceiver) receive(ctx context.Context) error {
	if r.o.Scenario != Latency {
		if err := r.await(ctx, r.o.Count); err != nil {
			return err
		}
		if err := r.write(ctx, r.word, immAnswer, pingDepth); err != nil {
			return err
		}
		return r.room(ctx, 1)
	}
	for range r.o.Pings {
		if err := r.await(ctx, 1); err != nil {
			return err
		}
		if err := r.write(ctx, r.word, immAnswer, pingDepth); err != nil {
			return err
		}
	}
	return r.room(ctx, 1)
}
