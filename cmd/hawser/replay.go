package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv/simllm"
)

type replayCmd struct {
	kvFlags
	prefillFlags
	decodeFlags
	Rails         railPair      `default:"1,1" placeholder:"A,B" help:"Rails of the prefill side and of the decode side (default: ${default})."`
	KillPrefiller time.Duration `xor:"fault" placeholder:"DUR" help:"Kill the prefiller (SIGKILL) after this time."`
	StopPrefiller time.Duration `xor:"fault" placeholder:"DUR" help:"Stop the prefiller (SIGSTOP) after this time, and let it go on 5 s later."`
}

const (
	// stopTime is how long a stopped prefiller stays so: much longer than it takes to be found dead.
	stopTime = 5 * time.Second
	// stopGrace is what a child has to close its engine before it is killed.
	stopGrace = closeTimeout + 2*time.Second
)

// Run replays and reports.
func (c *replayCmd) Run(ctx context.Context, u *ui) error {
	r, err := c.replay(ctx, u)
	if err != nil {
		return err
	}
	printReport(u, "kv replay", r)
	return errors.Join(u.result(r), r.verdict())
}

// replay runs both processes to the end of the trace.
func (c *replayCmd) replay(ctx context.Context, u *ui) (*replayReport, error) {
	if err := c.checkAll(ctx); err != nil {
		return nil, err
	}
	s := &session{cmd: c, ui: u, events: make(chan childEvent)}
	err := s.run(ctx)
	s.stop()
	if err != nil {
		return nil, err
	}
	return s.result()
}

// checkAll finds what is wrong with the flags and the trace before a process is started for them.
func (c *replayCmd) checkAll(ctx context.Context) error {
	switch {
	case c.KillPrefiller < 0:
		return usage("--kill-prefiller: %v, want 0 or more", c.KillPrefiller)
	case c.StopPrefiller < 0:
		return usage("--stop-prefiller: %v, want 0 or more", c.StopPrefiller)
	}
	if err := c.check(); err != nil {
		return err
	}
	if _, err := c.layer(); err != nil {
		return err
	}
	if _, err := c.Provider.open(ctx); err != nil {
		return err
	}
	g, err := c.shape()
	if err != nil {
		return err
	}
	if _, err := c.requests(g, c.Pool); err != nil {
		return err
	}
	if c.Log == "" {
		return nil
	}
	f, err := openLog(c.Log)
	if err != nil {
		return err
	}
	return f.Close()
}

// session is one replay. Owned by the goroutine that calls run, which joins one goroutine per child that passes its messages on.
type session struct {
	cmd             *replayCmd
	ui              *ui
	prefill, decode *proc.Child
	events          chan childEvent
	report          *decoded
	prefillReport   *simllm.PrefillReport
	fault           *injected // nil before
	faultAt         time.Time
	running         int       // children whose end has not been taken
	decoded         bool      // the decoder has ended
	stopped         bool      // the prefiller is stopped by us
	began           time.Time // of the first arrival
}

// childEvent is a message of a child, or its end.
type childEvent struct {
	from *proc.Child
	msg  proc.Message
	err  error // io.EOF: it ended well
}

func (s *session) start(name string, args ...[]string) (*proc.Child, error) {
	line := []string{"kv", name, "--child"}
	for _, a := range args {
		line = append(line, compact(a)...)
	}
	c, err := proc.Start(proc.Spec{Name: name, Args: line})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// compact drops flags without a value.
func compact(args []string) []string {
	var kept []string
	for i := 0; i+1 < len(args); i += 2 {
		if args[i+1] != "" {
			kept = append(kept, args[i], args[i+1])
		}
	}
	return kept
}

// forward passes a child's messages on until its end, which is the last event. It never waits for the receiver for longer than
// the context.
func (s *session) forward(ctx context.Context, c *proc.Child) {
	for {
		m, err := c.Next(ctx)
		select {
		case s.events <- childEvent{c, m, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := s.cmd
	var err error
	s.prefill, err = s.start("prefill", c.kvFlags.args(), c.prefillFlags.args(), []string{"--rails", fmt.Sprint(c.Rails.prefill)})
	if err != nil {
		return err
	}
	m, err := s.prefill.Next(ctx)
	if errors.Is(err, io.EOF) {
		err = errEndedEarly
	}
	if err != nil {
		return err
	}
	var addr string
	if err := m.Decode(&addr); err != nil {
		return err
	}
	s.decode, err = s.start("decode", c.kvFlags.args(), c.decodeFlags.args(), []string{"--rails", fmt.Sprint(c.Rails.decode), "--from", addr})
	if err != nil {
		return err
	}
	var forwarders sync.WaitGroup
	defer forwarders.Wait()
	defer cancel()
	for _, child := range []*proc.Child{s.prefill, s.decode} {
		s.running++
		forwarders.Go(func() { s.forward(ctx, child) })
	}
	err = s.watch(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // signals come to the children too, which then end in any order
	}
	return err
}

// watch follows the two until the decoder has reported and both have ended.
func (s *session) watch(ctx context.Context) error {
	var kill, stop, resume, late <-chan time.Time
	for s.running > 0 {
		select {
		case e := <-s.events:
			first := s.began.IsZero()
			if err := s.take(e); err != nil {
				return err
			}
			if first && !s.began.IsZero() {
				kill, stop = s.due(s.cmd.KillPrefiller), s.due(s.cmd.StopPrefiller)
			}
			if s.decoded && late == nil { // the prefiller's turn to end
				kill, stop, resume, late = nil, nil, nil, time.After(stopGrace)
				s.resume()
				s.prefill.End()
			}
		case <-kill:
			if err := s.inject(killFault, syscall.SIGKILL); err != nil {
				return err
			}
		case <-stop:
			s.stopped = true
			resume = time.After(stopTime)
			if err := s.inject(stopFault, syscall.SIGSTOP); err != nil {
				return err
			}
		case <-resume:
			s.resume()
		case <-late:
			return fmt.Errorf("the prefiller did not end within %v", stopGrace)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// due is a time after the begin of the replay, never for 0. The begin is known from the decoder's first progress, so that a very early
// time comes late.
func (s *session) due(d time.Duration) <-chan time.Time {
	if d <= 0 {
		return nil
	}
	return time.After(time.Until(s.began.Add(d)))
}

func (s *session) inject(kind string, sig syscall.Signal) error {
	s.faultAt = time.Now()
	s.fault = &injected{Kind: kind, At: s.faultAt.Sub(s.began).Seconds()}
	if err := s.prefill.Signal(sig); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

func (s *session) resume() {
	if s.stopped {
		s.stopped = false
		_ = s.prefill.Signal(syscall.SIGCONT) // it may have been killed meanwhile
	}
}

// take handles one event.
func (s *session) take(e childEvent) error {
	if e.err != nil {
		s.running--
		s.decoded = s.decoded || e.from == s.decode
		switch {
		case e.from == s.prefill && s.fault != nil && s.fault.Kind == killFault:
			return nil
		case !errors.Is(e.err, io.EOF):
			return e.err
		case e.from == s.prefill && !s.decoded:
			return errPrefillEnded
		case e.from == s.decode && s.report == nil, e.from == s.prefill && s.prefillReport == nil:
			return errEndedEarly
		}
		return nil
	}
	switch {
	case e.msg.Kind == msgProgress:
		var p simllm.DecodeProgress
		if err := e.msg.Decode(&p); err != nil {
			return err
		}
		if s.began.IsZero() {
			s.began = time.Now().Add(-p.Elapsed)
		}
		showProgress(s.ui, "kv replay", p)
	case e.msg.Kind == msgReport && e.from == s.decode:
		s.report = new(decoded)
		return e.msg.Decode(s.report)
	case e.msg.Kind == msgReport:
		s.prefillReport = new(simllm.PrefillReport)
		return e.msg.Decode(s.prefillReport)
	}
	return nil
}

var (
	errEndedEarly   = errors.New("replay: a child process ended without a report")
	errPrefillEnded = errors.New("replay: the prefiller ended before the decoder: something else has stopped it")
)

// stop ends what still runs: the decoder first, so that it sees no dead peer.
func (s *session) stop() {
	s.resume()
	if s.decode != nil {
		_ = s.decode.Stop(stopGrace)
	}
	if s.prefill != nil {
		_ = s.prefill.Stop(stopGrace)
	}
}

// result puts the report together. Both processes have ended.
func (s *session) result() (*replayReport, error) {
	r := newReport(*s.report, &s.cmd.kvFlags, fmt.Sprintf("%d,%d", s.cmd.Rails.prefill, s.cmd.Rails.decode))
	r.Fault, r.Prefill = s.fault, s.prefillReport
	if r.Prefill != nil {
		r.LeakedPages += r.Prefill.LeakedPages
	}
	var cpu time.Duration
	for _, c := range []*proc.Child{s.prefill, s.decode} {
		r.RSSMB = max(r.RSSMB, float64(c.MaxRSS())/1e6)
		cpu += c.CPU()
	}
	if r.Bytes > 0 {
		r.CPUPerGiB = cpu.Seconds() / (float64(r.Bytes) / (1 << 30))
	}
	switch wanted := s.cmd.KillPrefiller+s.cmd.StopPrefiller > 0; {
	case wanted && s.fault == nil:
		return nil, fmt.Errorf("replay: the trace ended after %.1f s, before the fault: let it come earlier, or replay more requests", r.Wall)
	case s.fault != nil && !r.SetKill(s.faultAt):
		return nil, fmt.Errorf("replay: the decoder never noticed the %s after %.1f s: the trace had ended; let it come earlier", s.fault.Kind, s.fault.At)
	}
	return r, nil
}
