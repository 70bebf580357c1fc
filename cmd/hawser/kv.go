package main

import (
	"context"
	"errors"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/simllm"
)

// Messages between a replay and its children.
const (
	msgListening = "listening" // prefiller: its address
	msgReady     = "ready"     // decoder: it waits for msgBegin
	msgBegin     = "begin"     // to a decoder: Unix ns of the begin of the arrivals
	msgSources   = "sources"   // to a decoder: addresses of the prefillers
	msgProgress  = "progress"  // simllm.DecodeProgress
	msgReport    = "report"    // decoded or simllm.PrefillReport
)

// tell reports a child's failure to its parent, which then speaks for it.
func tell(parent *proc.Parent, err error) error {
	if parent != nil && err != nil && !errors.Is(err, proc.ErrParentGone) {
		parent.Fail(err)
	}
	return err
}

func showProgress(u *ui, what string, p simllm.DecodeProgress) {
	rate := 0.0
	if p.Elapsed > 0 {
		rate = float64(p.Bytes) / p.Elapsed.Seconds() / 1e9
	}
	u.status.show("%s: %s, %d of %d requests: %d done, %d failed, %d cancelled, %d running, %.2f GB/s",
		what, p.Elapsed.Round(time.Second), p.Arrived, p.Total, p.Done, p.Failed, p.Cancelled, p.Running, rate)
}

func pagesOf(c pool.Counts) int { return c.Free + c.Leased + c.Pinned + c.Cached + c.Quarantined }

// childFlag makes a command the child of another one: it talks to it instead of to a person.
type childFlag struct {
	Child bool `hidden:""`
}

// attach returns nil for a command that a person has started.
func (f childFlag) attach(ctx context.Context) (*proc.Parent, context.Context) {
	if !f.Child {
		return nil, ctx
	}
	return proc.Attach(ctx)
}
