package simllm

import "context"

// ownJob is a prompt that the engine computes for itself.
type ownJob struct {
	tokens []uint32
	done   chan struct{}
}

// own reports whether a job is an ownJob: nobody else knows of it.
func own(j Job) bool {
	_, ok := j.(*ownJob)
	return ok
}

func (*ownJob) ID() string           { return "own" }
func (j *ownJob) Tokens() []uint32   { return j.tokens }
func (*ownJob) Priority() int        { return 0 }
func (*ownJob) NeedsLast() bool      { return false }
func (*ownJob) Sourced(Source) error { return nil }
func (*ownJob) Preempt()             {}
func (j *ownJob) Computed(*Content)  { close(j.done) }

// Compute brings a prompt into the prefix cache, as when it reaches the prefiller before a decoder asks for it. It returns when
// the prompt is computed, which needs Run, or with ctx's error. No Transfer is told.
func (e *Engine) Compute(ctx context.Context, tokens []uint32) error {
	j := &ownJob{tokens, make(chan struct{})}
	if _, err := e.Admit(j); err != nil {
		return err
	}
	defer e.Stop(j)
	e.Start(j)
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
