package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv/simllm"
)

const (
	// stopTime is how long a stopped prefiller stays so: much longer than it takes to be found dead.
	stopTime = 5 * time.Second
	// stopGrace is what a child has to close its engine before it is killed: 10 s of a side of the transfer, then the engine's own.
	stopGrace = 10*time.Second + closeTimeout + 2*time.Second
	// beginPause is what messages take until all decoders know when to begin.
	beginPause = 100 * time.Millisecond
)

// session is one replay. Owned by the goroutine that calls run, which joins one goroutine per child that passes its messages on.
type session struct {
	cmd        *replayCmd
	ui         *ui
	dir        string // of the children's traces; empty: none
	prefillers []*worker
	decoders   []*worker
	events     chan childEvent
	forwarders sync.WaitGroup
	running    int       // children whose end has not been taken
	began      time.Time // zero: not yet
	ending     bool      // all decoders have ended
	faults     []happened
}

// worker is one child.
type worker struct {
	name     string
	child    *proc.Child
	prefill  bool
	addr     string // of a prefiller
	ready    bool   // listens, or waits for the begin
	ended    bool
	killed   bool // by us
	stopped  bool // by us, and not resumed
	progress simllm.DecodeProgress
	decoded  *decoded              // report of a decoder
	served   *simllm.PrefillReport // report of a prefiller
}

// happened is a fault that was injected.
type happened struct {
	kind, worker string
	at           time.Time
}

// childEvent is a message of a child, or its end.
type childEvent struct {
	from *worker
	msg  proc.Message
	err  error // io.EOF: it ended well
}

// compact drops flags without a value.
func compact(args []string) []string {
	var kept []string
	for i := 0; i+1 < len(args); i += 2 {
		if args[i+1] != "" {
			kept = append(kept, args[i]+"="+args[i+1])
		}
	}
	return kept
}

// start starts a child whose messages become events.
func (s *session) start(ctx context.Context, w *worker, command string, args ...[]string) error {
	line := []string{"kv", command, "--child", "--name=" + w.name}
	for _, a := range args {
		line = append(line, compact(a)...)
	}
	if s.dir != "" {
		line = append(line, "--trace-out="+filepath.Join(s.dir, w.name+".json"))
	}
	c, err := proc.Start(proc.Spec{Name: w.name, Args: line})
	if err != nil {
		return err
	}
	w.child = c
	s.running++
	s.forwarders.Go(func() { s.forward(ctx, w) })
	return nil
}

func (s *session) startPrefiller(ctx context.Context) (*worker, error) {
	w := &worker{name: fmt.Sprintf("prefill-%d", len(s.prefillers)), prefill: true}
	err := s.start(ctx, w, "prefill", s.cmd.kvFlags.args(), s.cmd.prefillFlags.args(), []string{"--rails", fmt.Sprint(s.cmd.Rails.prefill)})
	if err == nil {
		s.prefillers = append(s.prefillers, w)
	}
	return w, err
}

func (s *session) startDecoder(ctx context.Context, i int) error {
	w := &worker{name: fmt.Sprintf("decode-%d", i)}
	more := []string{"--rails", fmt.Sprint(s.cmd.Rails.decode), "--part", fmt.Sprintf("%d/%d", i, s.cmd.Decoders), "--timeline", s.cmd.Timeline}
	err := s.start(ctx, w, "decode", s.cmd.kvFlags.args(), s.cmd.decodeFlags.args(), more)
	if err == nil {
		s.decoders = append(s.decoders, w)
	}
	return err
}

// forward passes a child's messages on until its end, which is the last event. It never waits for the receiver for longer than
// the context.
func (s *session) forward(ctx context.Context, w *worker) {
	for {
		m, err := w.child.Next(ctx)
		select {
		case s.events <- childEvent{w, m, err}:
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
	defer s.forwarders.Wait()
	defer cancel()
	err := s.all(ctx)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // signals come to the children too, which then end in any order
	}
	return err
}

// all starts everything, lets it begin, and follows it to the end.
func (s *session) all(ctx context.Context) error {
	for range s.cmd.Prefillers {
		if _, err := s.startPrefiller(ctx); err != nil {
			return err
		}
	}
	if err := s.until(ctx, func() bool { return allReady(s.prefillers) }); err != nil {
		return err
	}
	for i := range s.cmd.Decoders {
		if err := s.startDecoder(ctx, i); err != nil {
			return err
		}
	}
	s.tellSources()
	if err := s.until(ctx, func() bool { return allReady(s.decoders) }); err != nil {
		return err
	}
	s.began = time.Now().Add(beginPause)
	for _, w := range s.decoders {
		_ = w.child.Send(msgBegin, s.began.UnixNano()) // one that has ended is an event
	}
	return s.watch(ctx)
}

func allReady(workers []*worker) bool {
	return !slices.ContainsFunc(workers, func(w *worker) bool { return !w.ready })
}

// until takes events until a condition holds.
func (s *session) until(ctx context.Context, done func() bool) error {
	for !done() {
		select {
		case e := <-s.events:
			if err := s.take(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// fault is something to be done at a time after the begin.
type fault struct {
	kind string
	at   time.Duration
}

// wanted are the faults that were asked for, in the order of their times.
func (s *session) wanted() (all []fault) {
	for _, f := range []fault{{killFault, s.cmd.KillPrefiller}, {stopFault, s.cmd.StopPrefiller}, {joinFault, s.cmd.Join}} {
		if f.at > 0 {
			all = append(all, f)
		}
	}
	slices.SortStableFunc(all, func(a, b fault) int { return cmp.Compare(a.at, b.at) })
	return all
}

// watch follows all children until they have ended, and injects the faults.
func (s *session) watch(ctx context.Context) error {
	plan := s.wanted()
	var resume, late <-chan time.Time
	for s.running > 0 {
		var next <-chan time.Time
		if len(plan) > 0 && !s.ending {
			next = time.After(time.Until(s.began.Add(plan[0].at)))
		}
		select {
		case e := <-s.events:
			if err := s.take(e); err != nil {
				return err
			}
		case <-next:
			if err := s.inject(ctx, plan[0].kind); err != nil {
				return err
			}
			if plan[0].kind == stopFault {
				resume = time.After(stopTime)
			}
			plan = plan[1:]
		case <-resume:
			s.resume()
		case <-late:
			return fmt.Errorf("prefillers did not end within %v", stopGrace)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if s.ending && late == nil { // the prefillers' turn to end
			resume, late = nil, time.After(stopGrace)
			s.resume()
			for _, w := range s.prefillers {
				w.child.End()
			}
		}
	}
	return nil
}

func (s *session) inject(ctx context.Context, kind string) error {
	if kind == joinFault {
		w, err := s.startPrefiller(ctx)
		s.faults = append(s.faults, happened{kind, w.name, time.Now()})
		return err
	}
	w := s.victim()
	if w == nil {
		return fmt.Errorf("replay: no prefiller is left for %s", kind)
	}
	sig := syscall.SIGKILL
	if kind == stopFault {
		sig = syscall.SIGSTOP
		w.stopped = true
	} else {
		w.killed = true
	}
	s.faults = append(s.faults, happened{kind, w.name, time.Now()})
	if err := w.child.Signal(sig); err != nil {
		return fmt.Errorf("%s: %w", kind, err)
	}
	return nil
}

// victim is the first prefiller that nothing has happened to, else the first that can still be struck.
func (s *session) victim() (w *worker) {
	for _, p := range s.prefillers {
		switch {
		case p.killed || p.ended:
		case !p.stopped:
			return p
		case w == nil:
			w = p
		}
	}
	return w
}

func (s *session) resume() {
	for _, w := range s.prefillers {
		if w.stopped {
			w.stopped = false
			_ = w.child.Signal(syscall.SIGCONT) // it may have been killed meanwhile
		}
	}
}

// tellSources tells the decoders where prefillers are, as a registry would. The last one is never taken away.
func (s *session) tellSources() {
	var addrs []string
	for _, w := range s.prefillers {
		if w.addr != "" && !w.ended {
			addrs = append(addrs, w.addr)
		}
	}
	for _, w := range s.decoders {
		if len(addrs) > 0 && !w.ended {
			_ = w.child.Send(msgSources, addrs) // one that has ended is an event
		}
	}
}

// take handles one event.
func (s *session) take(e childEvent) error {
	w := e.from
	if e.err != nil {
		return s.end(w, e.err)
	}
	switch e.msg.Kind {
	case msgListening:
		w.ready = true
		if err := e.msg.Decode(&w.addr); err != nil {
			return err
		}
		s.tellSources()
	case msgReady:
		w.ready = true
	case msgProgress:
		if err := e.msg.Decode(&w.progress); err != nil {
			return err
		}
		s.show()
	case msgReport:
		if w.prefill {
			w.served = new(simllm.PrefillReport)
			return e.msg.Decode(w.served)
		}
		w.decoded = new(decoded)
		return e.msg.Decode(w.decoded)
	}
	return nil
}

// end judges the end of a child. A prefiller may end before the decoders when its operator has drained it.
func (s *session) end(w *worker, err error) error {
	s.running--
	w.ended = true
	if !w.prefill {
		s.ending = !slices.ContainsFunc(s.decoders, func(o *worker) bool { return !o.ended })
	}
	removeSocket(w.child)
	switch {
	case w.killed:
		s.tellSources()
		return nil
	case !errors.Is(err, io.EOF):
		return err
	case w.prefill && w.served == nil, !w.prefill && w.decoded == nil:
		return fmt.Errorf("%s: %w", w.name, errEndedEarly)
	case w.prefill && !s.ending && !w.served.Drained:
		return fmt.Errorf("%s: %w", w.name, errPrefillEnded)
	}
	s.tellSources()
	return nil
}

var (
	errEndedEarly   = errors.New("it ended without a report")
	errPrefillEnded = errors.New("it ended before the decoders, and nobody drained it: something else has stopped it")
)

// removeSocket removes what a killed child could not.
func removeSocket(c *proc.Child) {
	if dir, err := adminDir(); err == nil {
		_ = os.Remove(adminPath(dir, c.Pid()))
	}
}

// show sums up what the decoders have said last.
func (s *session) show() {
	var sum simllm.DecodeProgress
	for _, w := range s.decoders {
		p := w.progress
		sum.Total += p.Total
		sum.Arrived += p.Arrived
		sum.Done += p.Done
		sum.Failed += p.Failed
		sum.Cancelled += p.Cancelled
		sum.Running += p.Running
		sum.Bytes += p.Bytes
		sum.Elapsed = max(sum.Elapsed, p.Elapsed)
	}
	showProgress(s.ui, "kv replay", sum)
}

// stop ends what still runs: the decoders first, so that they see no dead peer.
func (s *session) stop() {
	s.resume()
	for _, w := range append(s.decoders[:len(s.decoders):len(s.decoders)], s.prefillers...) {
		_ = w.child.Stop(stopGrace)
		removeSocket(w.child)
	}
}
