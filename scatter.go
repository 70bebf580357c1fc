package hawser

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/internal/invariants"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/internal/ring"
)

// Scatter writes from one source to many targets, which may belong to different peers. It is one Transfer, which ends when all
// targets have ended. A target whose peer is down fails alone: the others are written, and the error, a *ScatterError, comes at the
// end.
type Scatter struct {
	Src     Slice
	Targets []Target // copied at submit; at most MaxTargets

	// Imm is the immediate of targets that have no own.
	Imm OptImm

	// Pin is as Write.Pin, for all targets.
	Pin OptRail
}

// Target is one write of a Scatter: Len bytes from SrcOff of Scatter.Src to the beginning of Dst.
type Target struct {
	Dst    RemoteSlice
	SrcOff uint64 // from the beginning of Scatter.Src
	Len    uint64 // bytes, at most Dst.Len; may be 0

	// Imm, when set, is sent instead of Scatter.Imm, once per part.
	Imm OptImm

	// Parts is as Write.Parts.
	Parts int
}

// MaxTargets bounds the targets of one Scatter.
const MaxTargets = 4096

// ScatterError says which targets of a Scatter failed. errors.Is and errors.As look at all of them, in order.
type ScatterError struct {
	Targets int           // of the Scatter
	Failed  []TargetError // by rising index
}

// TargetError is why one target failed.
type TargetError struct {
	Index int
	Peer  *Peer
	Err   error

	log *flightLog // nil: see Err
}

// namedTargets is how many targets the text of a ScatterError names; Failed has all.
const namedTargets = 16

func (e *ScatterError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "scatter: %d of %d targets failed", len(e.Failed), e.Targets)
	for i := range e.Failed {
		if i == namedTargets {
			fmt.Fprintf(&b, "; and %d more", len(e.Failed)-i)
			break
		}
		fmt.Fprintf(&b, "; %s", &e.Failed[i])
	}
	return b.String()
}

// Unwrap gives access to the failed targets.
func (e *ScatterError) Unwrap() []error {
	out := make([]error, len(e.Failed))
	for i := range e.Failed {
		out[i] = &e.Failed[i]
	}
	return out
}

func (e *TargetError) Error() string {
	return fmt.Sprintf("target %d to %s: %v", e.Index, e.Peer, e.Err)
}

// Unwrap gives access to the sentinels.
func (e *TargetError) Unwrap() error { return e.Err }

// Flight is as OpError.Flight.
func (e *TargetError) Flight() []Event {
	if e.log == nil {
		return FlightOf(e.Err)
	}
	return e.log.list()
}

// imm is the immediate that the target sends.
// hot:
func (t *Target) imm(common OptImm) OptImm {
	if t.Imm.set {
		return t.Imm
	}
	return common
}

// scatter is a Scatter under way. Scatters are pooled, by the engine or by their Template; the submitter owns one until it has
// submitted the legs, the worker until the last of them has ended.
type scatter struct {
	e        *Engine
	of       *Template // nil: the engine's
	legs     []leg
	filled   bool    // the legs hold what does not change from submit to submit
	taking   int     // legs that take part: all but the masked ones
	empty    rail.Op // what goes to the worker when no leg does
	left     int     // legs that have not ended
	failed   []TargetError
	transfer *Transfer
	queue    *Queue
	cookie   uint64
	uses     uint32   // as op.uses
	traced   *TraceOp // nil when nothing is traced
}

// leg is the operation of one target.
type leg struct {
	rail.Op
	parent *scatter
	sess   *session
	area   *area // of the destination
	masked bool  // takes no part; of templates only
}

// takeScatter reserves a scatter of n legs, of which some take part, ErrLimit when too many operations are in flight.
// hot:
func (e *Engine) takeScatter(n, taking int, of *Template) (*scatter, error) {
	if n > MaxTargets {
		return nil, fmt.Errorf("scatter: targets: %w: %d, at most %d", ErrInvalid, n, MaxTargets)
	}
	if err := e.count("scatter", max(taking, 1)); err != nil {
		return nil, err
	}
	pool := e.scatters
	if of != nil {
		pool = of.idle
	}
	s, ok := pool.Pop()
	if !ok {
		s = &scatter{e: e, of: of, uses: e.newOps.Add(1) - 1}
	}
	if cap(s.legs) < n {
		s.legs = make([]leg, n)
		for i := range s.legs {
			s.legs[i].parent = s
		}
	}
	s.legs, s.taking = s.legs[:n], taking
	return s, nil
}

// drop gives a scatter back that was not submitted, or that has ended.
// hot:
func (s *scatter) drop() {
	e, n := s.e, s.taking
	pool := s.rewind()
	s.left, s.failed, s.transfer, s.queue, s.traced = 0, nil, nil, nil, nil
	pool.Push(s) // when the pool is full the collector takes it
	e.inflight.Add(-max(int64(n), 1))
}

// rewind makes the legs ready for the next use, and returns the pool where that comes from.
// hot:
func (s *scatter) rewind() *ring.Queue[*scatter] {
	if s.of != nil {
		for i := range s.legs {
			s.legs[i].Rewind()
		}
		return s.of.idle
	}
	for i := range s.legs {
		s.legs[i].Reset()
		s.legs[i].sess, s.legs[i].area = nil, nil
	}
	if cap(s.legs) > keepLegs {
		s.legs = nil
	}
	return s.e.scatters
}

const (
	idleScatters = 64  // kept by the engine, and by each template of one
	keepLegs     = 256 // targets of the largest that the engine keeps, 300 bytes each
)

// fill checks r and fills s with it.
// hot:
func (s *scatter) fill(r *Scatter) error {
	if err := s.e.checkScatter(r); err != nil {
		return err
	}
	if err := r.Src.Region.use(); err != nil {
		return err
	}
	for i := range r.Targets {
		t := &r.Targets[i]
		if err := s.e.checkTarget(r, t); err != nil {
			return fmt.Errorf("target %d: %w", i, err)
		}
		if err := s.legs[i].aim(i, r, t); err != nil {
			return err
		}
		s.legs[i].load(r.Src.Off+t.SrcOff, t.Dst.Off, t.Len, t.imm(r.Imm), t.Parts)
	}
	return nil
}

// checkScatter checks everything about r but its targets.
// hot:
func (e *Engine) checkScatter(r *Scatter) error {
	switch {
	case r.Src.Region == nil:
		return fmt.Errorf("source: %w: no region", ErrInvalid)
	case r.Src.Region.e != e:
		return fmt.Errorf("source: %w: belongs to another engine", ErrInvalid)
	case !within(r.Src.Off, r.Src.Len, r.Src.Region.Len()):
		return fmt.Errorf("source: %w: [%d, +%d) is not inside the region's %d bytes", ErrInvalid, r.Src.Off, r.Src.Len, r.Src.Region.Len())
	}
	return e.checkPin(r.Pin)
}

// checkTarget checks one target of r.
// hot:
func (e *Engine) checkTarget(r *Scatter, t *Target) error {
	switch {
	case t.Dst.Remote == nil:
		return fmt.Errorf("destination: %w: no remote", ErrInvalid)
	case t.Dst.Remote.sess.e != e:
		return fmt.Errorf("destination: %w: belongs to another engine", ErrInvalid)
	case !within(t.Dst.Off, t.Dst.Len, t.Dst.Remote.Len()):
		return fmt.Errorf("destination: %w: [%d, +%d) is not inside the descriptor's %d bytes", ErrInvalid, t.Dst.Off, t.Dst.Len, t.Dst.Remote.Len())
	}
	if err := checkParts(t.Parts); err != nil {
		return err
	}
	return checkSpan(t.SrcOff, t.Len, r.Src.Len, 0, t.Dst.Len)
}

// checkSpan checks n bytes at an offset of either side's slice.
// hot:
func checkSpan(srcOff, n, srcLen, dstOff, dstLen uint64) error {
	if !within(srcOff, n, srcLen) {
		return fmt.Errorf("source: %w: [%d, +%d) is not inside the slice's %d bytes", ErrInvalid, srcOff, n, srcLen)
	}
	if !within(dstOff, n, dstLen) {
		return fmt.Errorf("destination: %w: [%d, +%d) is not inside the slice's %d bytes", ErrInvalid, dstOff, n, dstLen)
	}
	return nil
}

// aim fills l, leg i, with what does not change from one submit of target t of r to the next.
// hot:
func (l *leg) aim(i int, r *Scatter, t *Target) (err error) {
	l.Kind = rail.Write
	l.Src, l.Dst = &r.Src.Region.mr, &t.Dst.Remote.rr
	l.Owner, l.Cookie, l.sess, l.area = l, uint64(i), t.Dst.Remote.sess, t.Dst.Remote.area
	if l.Rail, err = l.sess.pinned(r.Pin); err != nil {
		return fmt.Errorf("target %d: %w", i, err)
	}
	return nil
}

// load fills l with the rest.
// hot:
func (l *leg) load(src, dst, n uint64, imm OptImm, parts int) {
	l.SrcOff, l.DstOff, l.Len = src, dst, n
	l.HasImm, l.Imm, l.Parts = imm.set, imm.v, partsOf(imm, parts)
}

// submit hands the legs to the worker. On an error the scatter has been given back.
// hot:
func (s *scatter) submit() error {
	var first, last *rail.Op
	for i := range s.legs {
		l := &s.legs[i]
		if l.masked {
			continue
		}
		err := l.sess.usable()
		if err == nil {
			err = l.area.usable()
		}
		if err != nil {
			s.fail(i, err, nil)
			continue
		}
		l.Peer = l.sess.links.Load()
		if last == nil {
			first = &l.Op
		} else {
			last.Chain = &l.Op
		}
		last = &l.Op
		s.left++
	}
	e := s.e
	if e.tracer != nil {
		t := e.tracer.begin(TraceOp{Op: "scatter", Parts: s.taking, Cookie: s.cookie})
		s.traced = &t
	}
	if first == nil {
		first = &s.empty
		s.empty.Owner = s
	}
	if s.uses%stampEvery == 0 {
		first.Stamp = record.Now()
	}
	s.uses++
	if !e.worker.group.Submit(first) {
		traced := s.traced
		s.drop()
		err := fmt.Errorf("scatter: %w: the worker is %d operations behind", ErrLimit, rail.SubmitDepth)
		if traced != nil {
			e.tracer.end(*traced, err)
		}
		return err
	}
	return nil
}

// fail notes that a target has failed. log may be nil.
func (s *scatter) fail(i int, err error, log *flightLog) {
	if s.of != nil {
		err = staleTemplate(s.legs[i].sess, err)
	}
	s.failed = append(s.failed, TargetError{Index: i, Peer: s.legs[i].sess.peer, Err: err, log: log})
}

// Complete is called by the worker when nothing of the target reads local memory any more.
// hot:
func (l *leg) Complete(*rail.Op) {
	s := l.parent
	if l.Status != 0 {
		s.e.worker.failed[l.Status%statuses]++
		s.e.worker.targets++
		s.e.worker.ended(codeTarget, &l.Op)
		s.fail(int(l.Cookie), l.area.explain(opError(&l.Op, l.sess)), l.sess.failed())
	}
	if invariants.Enabled && (l.Owner == nil || s.left <= 0) {
		invariants.Broken("a target of a scatter completed twice")
	}
	if s.left--; s.left == 0 {
		s.e.worker.recorder.Ended(uint8(codeScatter), 0, noLink, 0, 0, uint64(s.taking))
		s.finish()
	}
}

// Complete is called by the worker for a scatter of which no target could be tried.
func (s *scatter) Complete(*rail.Op) {
	s.empty.Reset()
	s.finish()
}

// finish ends the scatter: no leg is left. The worker calls it.
// hot:
func (s *scatter) finish() {
	var err error
	if len(s.failed) > 0 {
		err = s.verdict()
	}
	if s.traced != nil {
		s.e.tracer.end(*s.traced, err)
	}
	t, q, cookie := s.transfer, s.queue, s.cookie
	s.drop()
	if t != nil {
		t.complete(err)
	} else {
		q.complete(nil, cookie, err)
	}
}

// verdict is the error of a scatter of which targets have failed.
func (s *scatter) verdict() error {
	slices.SortFunc(s.failed, func(a, b TargetError) int { return cmp.Compare(a.Index, b.Index) })
	return &ScatterError{Targets: len(s.legs), Failed: s.failed}
}

// Targets makes one target for each member, in the order of Peers: all of remotes[i], which must be memory of member i. SrcOff,
// Len and the rest are left to the caller.
func (g *Group) Targets(remotes []*Remote) ([]Target, error) {
	if len(remotes) != len(g.peers) {
		return nil, fmt.Errorf("targets: %w: %d remotes for %d members", ErrInvalid, len(remotes), len(g.peers))
	}
	out := make([]Target, len(remotes))
	for i, r := range remotes {
		if r == nil || r.Peer() != g.peers[i] {
			return nil, fmt.Errorf("targets: remote %d: %w: none, or not memory of %s", i, ErrInvalid, g.peers[i])
		}
		out[i].Dst = r.All()
	}
	return out, nil
}
