package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/moe"
)

const (
	// calmTimeout is for how long ranks wait for each other where nothing happens to them, strikeTimeout where something does.
	calmTimeout   = 30 * time.Second
	strikeTimeout = time.Second
	// pauseTime is how long a stopped rank stays so.
	pauseTime = 2 * strikeTimeout
	// strikeSpread is within what time from the begin of its steps a rank is struck.
	strikeSpread = 50 * time.Millisecond
	// lookGap is how often it is looked whether a rank wants to come again.
	lookGap = 10 * time.Millisecond
)

// moeSession is one check between processes. It decides who takes part. Owned by the goroutine of run, which joins one for each child.
type moeSession struct {
	cmd    *moeCheckCmd
	ui     *ui
	report *moeCheckReport
	rng    *rand.Rand
	dir    moe.Dir
	view   moe.View
	ranks  []*moeChild // the latest of each rank
	all    []*moeChild

	events chan moeEvent
	passed sync.WaitGroup

	limit   int              // steps for now
	strikes []os.Signal      // that are to come, each in a part of the steps
	next    <-chan time.Time // the next of them
	resume  <-chan time.Time
	when    time.Time // of the last strike
	struck  *moeChild // by the last strike, until all ranks are in one view again; nil: none
}

// moeChild is the process of a rank.
type moeChild struct {
	rank   int
	child  *proc.Child
	state  checkerSteps
	heard  bool
	killed bool // by us
	ended  bool
}

type moeEvent struct {
	from *moeChild
	msg  proc.Message
	err  error // io.EOF: it ended well
}

// wrongStep is a step in which bytes differ.
type wrongStep struct {
	step  uint64
	bytes int
	first string
}

func (e *wrongStep) Error() string { return fmt.Sprintf("%d bytes differ: %s", e.bytes, e.first) }

func (s *moeSession) run(ctx context.Context) (err error) {
	if s.dir.Path, err = os.MkdirTemp("", "hawser-moe-"); err != nil {
		return err
	}
	s.dir.Ranks = s.cmd.Ranks
	ctx, cancel := context.WithCancel(ctx)
	defer func() { err = errors.Join(err, os.RemoveAll(s.dir.Path)) }()
	defer s.passed.Wait()
	defer cancel()
	defer s.stop()
	for range s.cmd.Kill {
		s.strikes = append(s.strikes, syscall.SIGKILL)
	}
	for range s.cmd.Stop {
		s.strikes = append(s.strikes, syscall.SIGSTOP)
	}
	s.rng.Shuffle(len(s.strikes), func(i, j int) { s.strikes[i], s.strikes[j] = s.strikes[j], s.strikes[i] })
	if err = s.steps(ctx); err != nil && ctx.Err() != nil {
		return context.Cause(ctx) // signals come to the children too, which then end in any order
	}
	return err
}

// steps starts the ranks and follows them to the end.
func (s *moeSession) steps(ctx context.Context) (err error) {
	for rank := range s.cmd.Ranks {
		if err := s.start(ctx, rank); err != nil {
			return err
		}
	}
	s.cmd.show(s.ui, "moe check", 0, s.cmd.Steps)
	for !s.settled() {
		if err := s.event(ctx); err != nil {
			return err
		}
	}
	if s.view, err = s.dir.Next(ctx, 0); err != nil {
		return err
	}
	parts := len(s.strikes) + 1
	for part := range parts {
		s.limit = s.cmd.Steps * (part + 1) / parts
		s.order(checkerOrder{Limit: uint64(s.limit)})
		if part < parts-1 {
			s.next = time.After(time.Duration(s.rng.Int64N(int64(strikeSpread))))
		}
		for s.next != nil || s.resume != nil || s.struck != nil || s.done() < s.limit || !s.settled() {
			if err := s.event(ctx); err != nil {
				return err
			}
			if err := s.members(ctx); err != nil {
				return err
			}
			s.cmd.show(s.ui, "moe check", s.done(), s.cmd.Steps)
		}
	}
	s.order(checkerOrder{End: true})
	return s.finish(ctx)
}

// start starts a rank.
func (s *moeSession) start(ctx context.Context, rank int) error {
	c, err := proc.Start(proc.Spec{Name: fmt.Sprint("rank ", rank), Args: []string{"moe", "checker"}})
	if err != nil {
		return err
	}
	m := &moeChild{rank: rank, child: c}
	s.all = append(s.all, m)
	if rank < len(s.ranks) {
		s.ranks[rank] = m
	} else {
		s.ranks = append(s.ranks, m)
	}
	s.passed.Go(func() { s.pass(ctx, m) })
	timeout := calmTimeout
	if s.cmd.Kill+s.cmd.Stop > 0 {
		timeout = strikeTimeout
	}
	return c.Send(msgSetup, checkerSetup{
		Provider: network(s.cmd.Provider), Dir: s.dir.Path, Rank: rank, Shape: s.cmd.shape(), Hidden: s.cmd.Hidden,
		DType: dtypes[s.cmd.DType], Routing: s.cmd.Routing, Seed: s.cmd.Seed, StepTimeout: timeout,
	})
}

// pass passes a child's messages on until its end, which is the last event.
func (s *moeSession) pass(ctx context.Context, m *moeChild) {
	for {
		msg, err := m.child.Next(ctx)
		select {
		case s.events <- moeEvent{m, msg, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// order tells all ranks something. One that has ended is an event.
func (s *moeSession) order(o checkerOrder) {
	for _, m := range s.ranks {
		if !m.ended {
			_ = m.child.Send(msgOrder, o)
		}
	}
}

// event waits for something to happen.
func (s *moeSession) event(ctx context.Context) error {
	var look <-chan time.Time
	if s.struck != nil {
		look = time.After(lookGap)
	}
	select {
	case e := <-s.events:
		return s.take(e)
	case <-s.next:
		s.next = nil
		return s.strike()
	case <-s.resume:
		s.resume = nil
		return s.struck.child.Signal(syscall.SIGCONT)
	case <-look:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *moeSession) take(e moeEvent) error {
	m := e.from
	switch {
	case e.err != nil:
		m.ended = true
		if m.killed {
			return nil
		}
		if errors.Is(e.err, io.EOF) {
			return fmt.Errorf("rank %d: %w", m.rank, errEndedEarly)
		}
		return e.err
	case e.msg.Kind == msgSteps:
		return s.heard(m, e.msg)
	}
	return nil
}

func (s *moeSession) heard(m *moeChild, msg proc.Message) error {
	before := len(m.state.Missing)
	m.state = checkerSteps{}
	if err := msg.Decode(&m.state); err != nil {
		return err
	}
	m.heard = true
	if k := s.struck; k != nil && k.killed && before == 0 && slices.Equal(m.state.Missing, []int{k.rank}) {
		s.report.Named++
	}
	if w := m.state.Wrong; w.Bytes > 0 {
		s.report.Mismatched, s.report.First = w.Bytes, w.First
		s.sum()
		return fmt.Errorf("rank %d: %w", m.rank, &wrongStep{m.state.Next - 1, w.Bytes, w.First})
	}
	return nil
}

// strike kills or stops a rank.
func (s *moeSession) strike() error {
	m := s.ranks[s.rng.IntN(len(s.ranks))]
	sig := s.strikes[0]
	s.strikes = s.strikes[1:]
	s.report.Faults++
	s.struck, s.when = m, time.Now()
	if sig == syscall.SIGKILL {
		m.killed = true
	} else {
		s.resume = time.After(pauseTime)
	}
	return m.child.Signal(sig.(syscall.Signal))
}

// members changes the view when it must change: a member needs another one, is dead, or one has come again. It starts who was killed again
// once the others are in a view without it.
func (s *moeSession) members(ctx context.Context) error {
	if m := s.needy(); s.report.Faults == 0 {
		if m != nil {
			return fmt.Errorf("rank %d: %s", m.rank, m.state.Why)
		}
		return nil
	}
	waiting, err := s.dir.Waiting()
	if err != nil {
		return err
	}
	waiting = slices.DeleteFunc(waiting, func(m moe.Member) bool { return s.ranks[m.Rank].ended })
	changed := len(waiting) > 0
	v := moe.View{Epoch: s.view.Epoch + 1, Members: waiting}
	for _, m := range s.view.Members {
		c := s.ranks[m.Rank]
		gone := c.ended || slices.ContainsFunc(waiting, func(w moe.Member) bool { return w.Rank == m.Rank })
		changed = changed || gone || c.state.Stale && c.state.Epoch >= s.view.Epoch
		if !gone {
			v.Members = append(v.Members, m)
		}
	}
	slices.SortFunc(v.Members, func(a, b moe.Member) int { return a.Rank - b.Rank })
	switch {
	case changed:
		if err := s.dir.Admit(v); err != nil {
			return err
		}
		s.view = v
		s.report.Views++
		s.order(checkerOrder{View: &v})
	case !s.settled():
	case len(s.view.Members) < len(s.ranks):
		for _, m := range s.ranks {
			if m.ended {
				if err := s.start(ctx, m.rank); err != nil {
					return err
				}
				return s.ranks[m.rank].child.Send(msgOrder, checkerOrder{Limit: uint64(s.limit)})
			}
		}
	case s.struck != nil && s.resume == nil && (!s.struck.killed || s.ranks[s.struck.rank] != s.struck):
		s.struck = nil
		s.report.Recovered = max(s.report.Recovered, time.Since(s.when).Seconds()*1e3)
	}
	return nil
}

// needy is a rank that needs another view.
func (s *moeSession) needy() *moeChild {
	for _, m := range s.ranks {
		if m.state.Stale {
			return m
		}
	}
	return nil
}

// settled: all members are in the latest view.
func (s *moeSession) settled() bool {
	for _, m := range s.ranks {
		member := s.view.Epoch == 0 || slices.ContainsFunc(s.view.Members, func(x moe.Member) bool { return x.Rank == m.rank })
		if member && (!m.heard || m.state.Stale || m.state.Epoch < s.view.Epoch) {
			return false
		}
	}
	return true
}

// done is how many steps all members have behind them.
func (s *moeSession) done() int {
	done := s.cmd.Steps
	for _, m := range s.ranks {
		if !m.ended {
			done = min(done, int(max(m.state.Next, 1)-1))
		}
	}
	return done
}

// finish takes the ends of all ranks.
func (s *moeSession) finish(ctx context.Context) error {
	for _, m := range s.ranks {
		m.killed = true // they may end now
	}
	for slices.ContainsFunc(s.all, func(m *moeChild) bool { return !m.ended }) {
		select {
		case e := <-s.events:
			if e.err != nil && !errors.Is(e.err, io.EOF) && slices.Contains(s.ranks, e.from) {
				return e.err
			}
			if err := s.take(e); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	s.sum()
	return nil
}

// sum adds up what the ranks have said. A step is verified if all who have done it found nothing wrong.
func (s *moeSession) sum() {
	s.report.Verified = s.done()
	lost := 0
	for _, m := range s.all {
		s.report.Partial += m.state.Partial
		s.report.Lost += m.state.Lost
		lost = max(lost, m.state.Lost)
		s.report.Bytes += m.state.Bytes
	}
	s.report.Verified -= lost
}

// stop ends what still runs.
func (s *moeSession) stop() {
	if s.resume != nil {
		_ = s.struck.child.Signal(syscall.SIGCONT) // it may have ended
	}
	for _, m := range s.all {
		m.child.End()
	}
	for _, m := range s.all {
		_ = m.child.Stop(stopGrace)
	}
}
