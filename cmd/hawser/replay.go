package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-project/hawser/kv/simllm"
)

type replayCmd struct {
	kvFlags
	prefillFlags
	decodeFlags
	Prefillers    int           `default:"1" placeholder:"N" help:"Prefillers to start (default: ${default})."`
	Decoders      int           `default:"1" placeholder:"N" help:"Decoders to start, each of which replays a part of the trace (default: ${default})."`
	Rails         railPair      `default:"1,1" placeholder:"A,B" help:"Rails of the prefill side and of the decode side (default: ${default})."`
	KillPrefiller time.Duration `placeholder:"DUR" help:"Kill one prefiller (SIGKILL) after this time."`
	StopPrefiller time.Duration `placeholder:"DUR" help:"Stop one prefiller, not the killed one if there are more, (SIGSTOP) after this time, and let it go on 5 s later."`
	Join          time.Duration `placeholder:"DUR" help:"Start one more prefiller after this time."`
	TraceOut      string        `placeholder:"FILE" help:"Write what happens to all attempts, on both sides, as a trace for Perfetto or chrome://tracing."`
	Timeline      string        `placeholder:"FILE" help:"Draw the longest request as SVG: layers computed, layers landed."`
}

// maxProcesses is more than any host can run with sense.
const maxProcesses = 64

// Run replays and reports.
func (c *replayCmd) Run(ctx context.Context, u *ui) error {
	r, err := c.replay(ctx, u)
	if err != nil {
		return err
	}
	printReport(u, "kv replay", r)
	return errors.Join(u.result(r), r.verdict())
}

// replay runs all processes to the end of the trace.
func (c *replayCmd) replay(ctx context.Context, u *ui) (r *replayReport, err error) {
	if err := c.checkAll(ctx); err != nil {
		return nil, err
	}
	s := &session{cmd: c, ui: u, events: make(chan childEvent)}
	if c.TraceOut != "" || c.Timeline != "" {
		if s.dir, err = os.MkdirTemp("", "hawser-replay-"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
	}
	err = s.run(ctx)
	s.stop()
	if err != nil {
		return nil, err
	}
	if err := s.draw(); err != nil {
		return nil, err
	}
	return s.result()
}

// checkAll finds what is wrong with the flags and the trace before a process is started for them.
func (c *replayCmd) checkAll(ctx context.Context) error {
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"kill-prefiller", c.KillPrefiller}, {"stop-prefiller", c.StopPrefiller}, {"join", c.Join}} {
		if f.d < 0 {
			return usage("--%s: %v, want 0 or more", f.name, f.d)
		}
	}
	switch {
	case c.Prefillers < 1 || c.Prefillers > maxProcesses:
		return usage("--prefillers: %d, want 1 .. %d", c.Prefillers, maxProcesses)
	case c.KillPrefiller > 0 && c.StopPrefiller > 0 && c.Prefillers == 1:
		return usage("--kill-prefiller and --stop-prefiller strike two: --prefillers 2 or more")
	case c.Decoders < 1 || c.Decoders > maxProcesses:
		return usage("--decoders: %d, want 1 .. %d", c.Decoders, maxProcesses)
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
	if err := c.checkShapes(); err != nil {
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

// checkShapes also looks whether the two sides can be paired, and whether each decoder has something to do.
func (c *replayCmd) checkShapes() error {
	src, err := c.prefillFlags.shape(&c.kvFlags)
	if err != nil {
		return err
	}
	dst, err := c.decodeFlags.shape(&c.kvFlags)
	if err != nil {
		return err
	}
	if err := src.Feeds(dst); err != nil {
		return usage("--src-tp, --src-page, --dst-tp, --dst-page: %w", err)
	}
	all, err := c.requests(src, dst)
	if err != nil {
		return err
	}
	for i := range c.Decoders {
		if _, err := part(all, fmt.Sprintf("%d/%d", i, c.Decoders)); err != nil {
			return usage("--decoders: %w", err)
		}
	}
	return nil
}

// draw writes what was asked for besides the report.
func (s *session) draw() error {
	if s.dir == "" {
		return nil
	}
	traces, err := filepath.Glob(filepath.Join(s.dir, "*.json"))
	if err != nil {
		return err
	}
	if s.cmd.TraceOut != "" {
		if err := joinTraces(s.cmd.TraceOut, traces); err != nil {
			return err
		}
	}
	if s.cmd.Timeline == "" {
		return nil
	}
	var longest *sighting
	for _, w := range s.decoders {
		if l := w.decoded.Longest; l != nil && (longest == nil || l.Tokens > longest.Tokens) {
			longest = l
		}
	}
	return drawTimeline(s.cmd.Timeline, longest, traces)
}

// result puts the report together. All processes have ended.
func (s *session) result() (*replayReport, error) {
	var sum decoded
	sum.Tally = &simllm.Tally{}
	for _, w := range s.decoders {
		sum.Add(w.decoded.Tally)
		sum.Path = w.decoded.Path
	}
	r := newReport(sum, &s.cmd.kvFlags, fmt.Sprintf("%d,%d", s.cmd.Rails.prefill, s.cmd.Rails.decode))
	r.Prefillers, r.Decoders = len(s.prefillers), len(s.decoders)
	var cpu time.Duration
	for _, w := range append(s.prefillers[:len(s.prefillers):len(s.prefillers)], s.decoders...) {
		r.RSSMB = max(r.RSSMB, float64(w.child.MaxRSS())/1e6)
		cpu += w.child.CPU()
		if w.served != nil {
			r.addPrefill(w.served)
		}
	}
	if r.Bytes > 0 {
		r.CPUPerGiB = cpu.Seconds() / (float64(r.Bytes) / (1 << 30))
	}
	return r, s.faultsSeen(r)
}

// faultsSeen adds the faults to a report: when each decoder that had a link knew.
func (s *session) faultsSeen(r *replayReport) error {
	for _, f := range s.faults {
		i := injected{Kind: f.kind, Process: f.worker, At: f.at.Sub(s.began).Seconds()}
		for _, w := range s.decoders {
			own := w.decoded.Report()
			if after, ok := own.NoticedAfter(f.worker, f.at); ok {
				i.Noticed = max(i.Noticed, millis(after))
			}
		}
		if i.Noticed == 0 && f.kind != joinFault {
			return fmt.Errorf("replay: no decoder ever noticed the %s after %.1f s: the trace had ended; let it come earlier", i.Kind, i.At)
		}
		if f.kind == killFault || f.kind == stopFault && r.PeerDeath == 0 {
			r.PeerDeath = i.Noticed
		}
		r.Faults = append(r.Faults, i)
	}
	if n := len(s.wanted()); n > len(s.faults) {
		return fmt.Errorf("replay: the trace ended after %.1f s, before the fault %s: let it come earlier, or replay more requests", r.Wall, s.wanted()[len(s.faults)].kind)
	}
	return nil
}
