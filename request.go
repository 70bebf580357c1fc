package hawser

import (
	"fmt"
	"math/bits"

	"github.com/hawser-project/hawser/internal/invariants"
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/provider"
)

// OptImm is an immediate or none. The zero value is none; Imm makes one, and 0 is a valid immediate.
type OptImm struct {
	v   uint32
	set bool
}

// Imm is the immediate v.
func Imm(v uint32) OptImm { return OptImm{v: v, set: true} }

// Write copies Src to the beginning of Dst, which must be at least as long.
type Write struct {
	Src Slice
	Dst RemoteSlice

	// Imm is counted at the peer once per part.
	Imm OptImm

	// Parts is into how many pieces the write is cut, each with the immediate when there is one. Default 1 with an immediate;
	// without one the engine decides. Pieces beyond the length are sent empty, so the number of immediates is Parts,
	// whatever the length.
	Parts int

	// Pin restricts the write to one rail as long as that works. Default: all rails share it.
	Pin OptRail
}

// Pages are pages of local memory: page i is at Offset + Indices[i]*Stride of the region. Indices are copied at submit.
type Pages struct {
	Region         *Region
	Indices        []uint32
	Stride, Offset uint64 // bytes
}

// RemotePages are pages of a peer's memory, as Pages; offsets are from the beginning of the descriptor's range.
type RemotePages struct {
	Remote         *Remote
	Indices        []uint32
	Stride, Offset uint64 // bytes
}

// WritePages copies page i of Src, PageLen bytes, to page i of Dst. With an immediate, each page carries one: the peer
// counts as many as there are pages. Pages that do not overlap may be written in any order.
type WritePages struct {
	PageLen uint64
	Src     Pages
	Dst     RemotePages
	Imm     OptImm

	// ImmLast sends the immediate once, after all pages have landed, instead of once per page; also when there are no pages.
	// It needs Pin, to a rail whose network keeps the order of writes; ErrUnsupported otherwise.
	ImmLast bool

	// Pin is as Write.Pin.
	Pin OptRail
}

// Signal sends an immediate without data.
type Signal struct {
	To  *Peer
	Imm uint32
	Pin OptRail // as Write.Pin
}

// maxOps bounds the operations in flight per engine.
const maxOps = 1 << 16

// op is an operation and what its end has to update. Ops are pooled; the submitter owns one from takeOp to submit, the worker
// until Complete.
type op struct {
	rail.Op
	e        *Engine
	name     string
	sess     *session
	area     *area // of the destination
	transfer *Transfer
	queue    *Queue
	uses     uint32   // of this op, since it was made; see stampEvery
	traced   *TraceOp // nil when nothing is traced
}

// takeOp reserves an operation, ErrLimit when too many are in flight.
// hot:
func (e *Engine) takeOp(name string) (*op, error) {
	if err := e.count(name, 1); err != nil {
		return nil, err
	}
	o, ok := e.ops.Pop()
	if !ok {
		o = e.newOp()
	}
	o.name = name
	return o, nil
}

func (e *Engine) newOp() *op { return &op{e: e, uses: e.newOps.Add(1) - 1} }

// count adds n operations to those in flight.
// hot:
func (e *Engine) count(name string, n int) error {
	if now := e.inflight.Add(int64(n)); now > maxOps {
		e.inflight.Add(-int64(n))
		return fmt.Errorf("%s: %w: %d operations in flight", name, ErrLimit, maxOps)
	}
	if e.closing.Load() { // after the count: Close sees us, or we see it
		e.inflight.Add(-int64(n))
		return fmt.Errorf("%s: engine: %w", name, ErrClosed)
	}
	return nil
}

// dropOp gives an operation back that was not submitted, or that has completed.
func (e *Engine) dropOp(o *op) {
	q := o.queue
	o.clear()
	if q != nil {
		q.putBack(o)
	} else {
		e.ops.Push(o) // when the pool is full the collector takes it
	}
	e.inflight.Add(-1)
}

// clear makes an operation that has ended, or was not submitted, ready for its next use.
// hot:
func (o *op) clear() {
	if cap(o.Data) > keepData {
		o.Data = nil
	}
	if cap(o.SrcIdx) > keepPages {
		o.SrcIdx, o.DstIdx = nil, nil
	}
	o.Op.Reset()
	o.sess, o.area, o.transfer, o.queue, o.traced = nil, nil, nil, nil, nil
}

// What a pooled operation keeps: message buffers up to 4096 bytes, lists of up to 4096 pages.
const (
	keepData  = 4096
	keepPages = 4096
)

// stampEvery is of how many operations one is followed with the clock, whose reading costs as much as all the rest of a submit. New ones
// begin at different places, so that those of a batch do not all come at once.
const stampEvery = 64

// submit hands a filled operation to the worker. On an error the operation has been given back.
// hot:
func (e *Engine) submit(o *op) error {
	o.Owner = o
	o.Peer = o.sess.links.Load()
	if o.uses%stampEvery == 0 {
		o.Stamp = record.Now()
	}
	o.uses++
	if e.tracer != nil {
		t := e.tracer.begin(o.traceOp())
		o.traced = &t
	}
	if !e.worker.group.Submit(&o.Op) {
		name, traced := o.name, o.traced
		e.dropOp(o)
		err := fmt.Errorf("%s: %w: the worker is %d operations behind", name, ErrLimit, rail.SubmitDepth)
		if traced != nil {
			e.tracer.end(*traced, err)
		}
		return err
	}
	return nil
}

// Complete is called by the worker when nothing of the operation reads local memory any more.
// hot:
func (o *op) Complete(*rail.Op) {
	var err error
	o.e.worker.ended(codeOf(o.Kind), &o.Op)
	if o.Status != 0 {
		o.e.worker.failed[o.Status%statuses]++
		err = &OpError{Op: o.name, Peer: o.sess.peer, Err: o.area.explain(opError(&o.Op, o.sess)), log: o.sess.failed()}
	}
	if o.traced != nil {
		o.e.tracer.end(*o.traced, err)
	}
	if invariants.Enabled && o.transfer == nil && o.queue == nil {
		invariants.Broken("%s completed twice", o.name)
	}
	e, t, q, cookie := o.e, o.transfer, o.queue, o.Cookie
	if q != nil {
		o.clear()
		q.complete(o, cookie, err)
		e.worker.over++
		return
	}
	e.dropOp(o)
	t.complete(err)
}

// opError is why an operation has failed.
func opError(o *rail.Op, s *session) error {
	if o.Status == provider.StatusLocal && o.Src != nil && o.Src.Retired() {
		return fmt.Errorf("source region: %w", ErrClosed)
	}
	return statusError(o.Status, s.cause())
}

// use makes o read s until it completes.
// hot:
func (o *op) use(r *Region) error {
	o.Src = &r.mr
	return r.use()
}

// use returns an error when r is closed. An operation that this comes too late for is refused by the worker.
// hot:
func (r *Region) use() error {
	if r.closed.Load() {
		return fmt.Errorf("source region %d: %w", r.id, ErrClosed)
	}
	return nil
}

// target makes o write to r, over the rail that pin names.
// hot:
func (o *op) target(r *Remote, pin OptRail) error {
	o.Dst = &r.rr
	if err := o.reach(r.sess, pin); err != nil {
		return err
	}
	o.area = r.area
	return r.area.usable()
}

// reach makes o go to the other side of s.
// hot:
func (o *op) reach(s *session, pin OptRail) (err error) {
	if err := s.usable(); err != nil {
		return err
	}
	o.sess = s
	o.Rail, err = s.pinned(pin)
	return err
}

// fillWrite checks w and fills o with it.
// hot:
func (o *op) fillWrite(w *Write) error {
	if err := o.e.checkWrite(w); err != nil {
		return err
	}
	if w.Src.Len > w.Dst.Len {
		return fmt.Errorf("%w: source has %d bytes, destination %d", ErrInvalid, w.Src.Len, w.Dst.Len)
	}
	return o.setWrite(w)
}

// checkWrite checks everything about w but that its source fits into its destination.
// hot:
func (e *Engine) checkWrite(w *Write) error {
	switch {
	case w.Src.Region == nil:
		return fmt.Errorf("source: %w: no region", ErrInvalid)
	case w.Dst.Remote == nil:
		return fmt.Errorf("destination: %w: no remote", ErrInvalid)
	case w.Src.Region.e != e || w.Dst.Remote.sess.e != e:
		return fmt.Errorf("%w: source or destination belongs to another engine", ErrInvalid)
	case !within(w.Src.Off, w.Src.Len, w.Src.Region.Len()):
		return fmt.Errorf("source: %w: [%d, +%d) is not inside the region's %d bytes", ErrInvalid, w.Src.Off, w.Src.Len, w.Src.Region.Len())
	case !within(w.Dst.Off, w.Dst.Len, w.Dst.Remote.Len()):
		return fmt.Errorf("destination: %w: [%d, +%d) is not inside the descriptor's %d bytes", ErrInvalid, w.Dst.Off, w.Dst.Len, w.Dst.Remote.Len())
	}
	if err := checkParts(w.Parts); err != nil {
		return err
	}
	return e.checkPin(w.Pin)
}

// setWrite fills o with w, which was checked.
// hot:
func (o *op) setWrite(w *Write) error {
	o.Kind = rail.Write
	o.SrcOff, o.DstOff, o.Len = w.Src.Off, w.Dst.Off, w.Src.Len
	o.HasImm, o.Imm, o.Parts = w.Imm.set, w.Imm.v, partsOf(w.Imm, w.Parts)
	if err := o.use(w.Src.Region); err != nil {
		return err
	}
	return o.target(w.Dst.Remote, w.Pin)
}

// fillPages checks w and fills o with it.
// hot:
func (o *op) fillPages(w *WritePages) error {
	if err := o.e.checkPages(w); err != nil {
		return err
	}
	if err := checkIndices(w); err != nil {
		return err
	}
	return o.setPages(w)
}

// checkPages checks everything about w but its indices.
// hot:
func (e *Engine) checkPages(w *WritePages) error {
	switch {
	case w.Src.Region == nil:
		return fmt.Errorf("source: %w: no region", ErrInvalid)
	case w.Dst.Remote == nil:
		return fmt.Errorf("destination: %w: no remote", ErrInvalid)
	case w.Src.Region.e != e || w.Dst.Remote.sess.e != e:
		return fmt.Errorf("%w: source or destination belongs to another engine", ErrInvalid)
	}
	if w.ImmLast {
		return e.checkLast(w.Pin)
	}
	return e.checkPin(w.Pin)
}

// checkIndices checks the pages of w against both sides.
// hot:
func checkIndices(w *WritePages) error {
	n := len(w.Src.Indices)
	switch {
	case n != len(w.Dst.Indices):
		return fmt.Errorf("%w: %d source pages, %d destination pages", ErrInvalid, n, len(w.Dst.Indices))
	case n > MaxParts:
		return fmt.Errorf("%w: %d pages, at most %d", ErrInvalid, n, MaxParts)
	}
	if i, ok := pagesWithin(w.Src.Indices, w.Src.Stride, w.Src.Offset, w.PageLen, w.Src.Region.Len()); !ok {
		return pageError("source", i, w.Src.Indices[i], w.Src.Region.Len())
	}
	if i, ok := pagesWithin(w.Dst.Indices, w.Dst.Stride, w.Dst.Offset, w.PageLen, w.Dst.Remote.Len()); !ok {
		return pageError("destination", i, w.Dst.Indices[i], w.Dst.Remote.Len())
	}
	return nil
}

// setPages fills o with w, which was checked.
// hot:
func (o *op) setPages(w *WritePages) error {
	o.Kind = rail.Pages
	o.SrcOff, o.SrcStride, o.DstOff, o.DstStride = w.Src.Offset, w.Src.Stride, w.Dst.Offset, w.Dst.Stride
	o.Len, o.Parts = w.PageLen, len(w.Src.Indices)
	o.HasImm, o.Imm, o.ImmLast = w.Imm.set, w.Imm.v, w.ImmLast && w.Imm.set
	o.SrcIdx = append(o.SrcIdx[:0], w.Src.Indices...)
	o.DstIdx = append(o.DstIdx[:0], w.Dst.Indices...)
	if err := o.use(w.Src.Region); err != nil {
		return err
	}
	return o.target(w.Dst.Remote, w.Pin)
}

func pageError(side string, i int, index uint32, length uint64) error {
	return fmt.Errorf("%s: %w: page %d (index %d) does not end inside %d bytes", side, ErrInvalid, i, index, length)
}

// fillSignal checks s and fills o with it.
// hot:
func (o *op) fillSignal(s *Signal) error {
	if err := o.e.checkSignal(s); err != nil {
		return err
	}
	sess, err := s.To.session()
	if err != nil {
		return err
	}
	return o.setSignal(sess, s)
}

// checkSignal checks everything about s but that its peer is up.
// hot:
func (e *Engine) checkSignal(s *Signal) error {
	if s.To == nil || s.To.e != e {
		return fmt.Errorf("peer: %w: none, or of another engine", ErrInvalid)
	}
	return e.checkPin(s.Pin)
}

// setSignal fills o with s, which was checked.
// hot:
func (o *op) setSignal(to *session, s *Signal) error {
	o.Kind, o.HasImm, o.Imm = rail.Signal, true, s.Imm
	return o.reach(to, s.Pin)
}

// fillSend copies a message.
func (o *op) fillSend(p *Peer, data []byte) error {
	if p == nil || p.e != o.e {
		return fmt.Errorf("peer: %w: none, or of another engine", ErrInvalid)
	}
	if len(data) > MaxMessage {
		return fmt.Errorf("message: %w: %d bytes, at most %d", ErrInvalid, len(data), MaxMessage)
	}
	sess, err := p.session()
	if err != nil {
		return err
	}
	o.Kind, o.sess, o.Len = rail.Send, sess, uint64(len(data))
	o.Data = append(o.Data[:0], data...)
	return nil
}

// within reports whether [off, off+n) lies in [0, length).
// hot:
func within(off, n, length uint64) bool { return off <= length && n <= length-off }

// pagesWithin reports the first page that does not end inside length bytes.
// hot:
func pagesWithin(idx []uint32, stride, off, page, length uint64) (int, bool) {
	var top uint32
	for _, x := range idx {
		top = max(top, x)
	}
	if len(idx) == 0 || pageWithin(top, stride, off, page, length) {
		return 0, true
	}
	for i, x := range idx {
		if !pageWithin(x, stride, off, page, length) {
			return i, false
		}
	}
	return 0, true
}

func pageWithin(index uint32, stride, off, page, length uint64) bool {
	hi, at := bits.Mul64(uint64(index), stride)
	at, carry := bits.Add64(at, off, 0)
	return hi == 0 && carry == 0 && within(at, page, length)
}
