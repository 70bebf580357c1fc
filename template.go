package hawser

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/hawser-project/hawser/internal/ring"
)

// Request is a Write, WritePages, Scatter or Signal.
type Request interface {
	// ImmCount is how many immediates the request sends. It depends on nothing but the request.
	ImmCount() int

	prepare(e *Engine) (*Template, error)
}

// Template is a request that was checked and resolved once, to be submitted many times with other offsets, lengths, page indices
// and immediates. It never changes: anybody may submit it, also while others do. It lives as long as the session with its peer:
// afterwards Submit fails with ErrStale, and the request has to be bound to remotes that were imported again; see Rebind. A template
// needs no Close; it does not keep its regions from closing.
type Template struct {
	e    *Engine
	kind templateKind
	name string
	sess *session // nil for a Scatter
	args Args     // as prepared; lists are nil

	write   Write
	pages   WritePages
	signal  Signal
	scatter Scatter

	srcTop, dstTop uint32                // highest index of either list of pages
	idle           *ring.Queue[*scatter] // filled as prepared
}

type templateKind uint8

const (
	kindWrite templateKind = iota
	kindPages
	kindSignal
	kindScatter
)

// Args are what Submit takes instead of what was prepared. All fields count, also those that are zero, so one starts with
// Template.Args; what the kind of the request does not have is ignored.
type Args struct {
	// SrcOff and DstOff: for a Write from the beginning of its Src and its Dst, for WritePages instead of the offsets of
	// its Pages.
	SrcOff, DstOff uint64

	// Len is the length of a Write, or of each page. A Write must stay inside the Src and the Dst that were prepared.
	Len uint64

	// SrcIndices and DstIndices are pages. Nil: those that were prepared, which are not checked again.
	SrcIndices, DstIndices []uint32

	// Imm is the immediate, for a Scatter that of targets without own. A Signal needs one.
	Imm OptImm

	// Targets are those of a Scatter, as many as were prepared. Nil: as prepared.
	Targets []TargetArgs

	// Mask chooses among the targets of a Scatter: target i takes part if bit i%64 of Mask[i/64] is set. It has a bit for each
	// target that was prepared; what lies beyond is ignored. The others get neither bytes nor immediates, and their Targets are
	// not looked at. Nil: all of them.
	Mask []uint64
}

// taking is how many of n targets the mask chooses. All of them when it is of the wrong length, which fillScatter refuses.
// hot:
func (a *Args) taking(n int) int {
	if a.Mask == nil || len(a.Mask) != maskWords(n) {
		return n
	}
	k := 0
	for i, w := range a.Mask {
		if rest := n - 64*i; rest < 64 {
			w &= 1<<rest - 1
		}
		k += bits.OnesCount64(w)
	}
	return k
}

// takes reports whether target i takes part, of a mask of the right length.
// hot:
func (a *Args) takes(i int) bool { return a.Mask == nil || a.Mask[i/64]>>(i%64)&1 != 0 }

func maskWords(targets int) int { return (targets + 63) / 64 }

// TargetArgs are what changes of one target of a Scatter.
type TargetArgs struct {
	SrcOff uint64 // from the beginning of Scatter.Src
	DstOff uint64 // from the beginning of Target.Dst
	Len    uint64
	Imm    OptImm // as Target.Imm
	Parts  int    // as Target.Parts; 0: as prepared
}

// Prepare checks r and resolves what does not change from one Submit to the next. The slices of a Write and of the targets of a
// Scatter are the bounds of all its submits; Src and Dst may differ in length.
func (e *Engine) Prepare(r Request) (*Template, error) {
	if r == nil {
		return nil, fmt.Errorf("prepare: request: %w: none", ErrInvalid)
	}
	t, err := r.prepare(e)
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	return t, nil
}

// Args are the arguments as prepared, to be changed and submitted. Their lists are nil, which means as prepared.
func (t *Template) Args() Args { return t.args }

// Submit submits the request with the given arguments. Queue.Submit is its twin that allocates nothing.
func (t *Template) Submit(a Args) (*Transfer, error) {
	if t.kind == kindScatter {
		n := len(t.scatter.Targets)
		return t.e.startScatter(n, a.taking(n), t, func(s *scatter) error { return t.fillScatter(s, &a) })
	}
	return t.e.start(t.name, func(o *op) error { return t.fill(o, &a) })
}

func (w Write) prepare(e *Engine) (*Template, error) {
	t := &Template{e: e, kind: kindWrite, name: "write", write: w, args: Args{Len: min(w.Src.Len, w.Dst.Len), Imm: w.Imm}}
	if err := e.checkWrite(&w); err != nil {
		return nil, fmt.Errorf("write: %w", err)
	}
	return t.to(w.Dst.Remote.sess, w.Pin)
}

func (w WritePages) prepare(e *Engine) (*Template, error) {
	w.Src.Indices, w.Dst.Indices = slices.Clone(w.Src.Indices), slices.Clone(w.Dst.Indices)
	t, err := e.newPages(w)
	if err != nil {
		return nil, err
	}
	if err := checkIndices(&t.pages); err != nil {
		return nil, fmt.Errorf("write pages: %w", err)
	}
	if len(w.Src.Indices) > 0 {
		t.srcTop, t.dstTop = slices.Max(w.Src.Indices), slices.Max(w.Dst.Indices)
	}
	return t, nil
}

// newPages makes the template of w, whose lists are its own and not checked yet.
func (e *Engine) newPages(w WritePages) (*Template, error) {
	t := &Template{e: e, kind: kindPages, name: "write pages", pages: w}
	t.args = Args{SrcOff: w.Src.Offset, DstOff: w.Dst.Offset, Len: w.PageLen, Imm: w.Imm}
	if err := e.checkPages(&w); err != nil {
		return nil, fmt.Errorf("write pages: %w", err)
	}
	return t.to(w.Dst.Remote.sess, w.Pin)
}

func (s Signal) prepare(e *Engine) (*Template, error) {
	if err := e.checkSignal(&s); err != nil {
		return nil, fmt.Errorf("signal: %w", err)
	}
	sess, err := s.To.session()
	if err != nil {
		return nil, fmt.Errorf("signal: %w", err)
	}
	t := &Template{e: e, kind: kindSignal, name: "signal", signal: s, args: Args{Imm: Imm(s.Imm)}}
	return t.to(sess, s.Pin)
}

// to binds the template to a session.
func (t *Template) to(s *session, pin OptRail) (*Template, error) {
	err := s.usable()
	if err == nil {
		_, err = s.pinned(pin)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	t.sess = s
	return t, nil
}

func (s Scatter) prepare(e *Engine) (*Template, error) {
	s.Targets = slices.Clone(s.Targets)
	return e.newScatter(s)
}

// newScatter makes the template of s, whose list of targets is its own.
func (e *Engine) newScatter(s Scatter) (*Template, error) {
	t := &Template{e: e, kind: kindScatter, name: "scatter", scatter: s, args: Args{Imm: s.Imm}, idle: ring.NewQueue[*scatter](idleScatters)}
	sc, err := e.takeScatter(len(s.Targets), len(s.Targets), nil)
	if err != nil {
		return nil, err
	}
	err = sc.fill(&t.scatter)
	sc.drop()
	if err != nil {
		return nil, fmt.Errorf("scatter: %w", err)
	}
	return t, nil
}

// Rebind is the same request with other remotes: with(old) takes the place of old, of the one remote of a Write or of WritePages or of
// each target of a Scatter, and may be old. Offsets and lengths stay, and must lie inside the new remotes; what does not depend on the
// remote is not checked again. t itself stays as it is, and what was submitted with it goes on. It is for a peer that has granted anew,
// or that came back. A Signal has no remote and is prepared again (ErrInvalid).
func (t *Template) Rebind(with func(old *Remote) *Remote) (*Template, error) {
	n, err := t.rebind(with)
	if err != nil {
		return nil, fmt.Errorf("rebind: %w", err)
	}
	return n, nil
}

func (t *Template) rebind(with func(old *Remote) *Remote) (*Template, error) {
	switch t.kind {
	case kindWrite:
		w := t.write
		w.Dst.Remote = with(w.Dst.Remote)
		return w.prepare(t.e)
	case kindPages:
		w := t.pages
		w.Dst.Remote = with(w.Dst.Remote)
		n, err := t.e.newPages(w)
		if err != nil {
			return nil, err
		}
		if n.srcTop, n.dstTop = t.srcTop, t.dstTop; !n.topsFit(&w) {
			return nil, fmt.Errorf("write pages: %w", checkIndices(&w))
		}
		return n, nil
	case kindScatter:
		s := t.scatter
		s.Targets = slices.Clone(s.Targets)
		for i := range s.Targets {
			s.Targets[i].Dst.Remote = with(s.Targets[i].Dst.Remote)
		}
		return t.e.newScatter(s)
	}
	return nil, fmt.Errorf("%s: %w: it has no remote; prepare it again", t.name, ErrInvalid)
}

// fill fills o with the request and a, of which it checks what can differ from what was prepared.
// hot:
func (t *Template) fill(o *op, a *Args) error {
	var err error
	switch t.kind {
	case kindWrite:
		err = t.fillWrite(o, a)
	case kindPages:
		err = t.fillPages(o, a)
	default:
		if !a.Imm.set {
			return fmt.Errorf("immediate: %w: a signal needs one", ErrInvalid)
		}
		s := t.signal
		s.Imm = a.Imm.v
		err = o.setSignal(t.sess, &s)
	}
	if err != nil {
		return staleTemplate(t.sess, err)
	}
	return nil
}

// hot:
func (t *Template) fillWrite(o *op, a *Args) error {
	w := t.write
	if err := checkSpan(a.SrcOff, a.Len, w.Src.Len, a.DstOff, w.Dst.Len); err != nil {
		return err
	}
	w.Src.Off, w.Src.Len = w.Src.Off+a.SrcOff, a.Len
	w.Dst.Off += a.DstOff
	w.Imm = a.Imm
	return o.setWrite(&w)
}

// hot:
func (t *Template) fillPages(o *op, a *Args) error {
	w := t.pages
	w.Src.Offset, w.Dst.Offset, w.PageLen, w.Imm = a.SrcOff, a.DstOff, a.Len, a.Imm
	fresh := a.SrcIndices != nil || a.DstIndices != nil
	if a.SrcIndices != nil {
		w.Src.Indices = a.SrcIndices
	}
	if a.DstIndices != nil {
		w.Dst.Indices = a.DstIndices
	}
	if fresh || !t.topsFit(&w) {
		if err := checkIndices(&w); err != nil {
			return err
		}
	}
	return o.setPages(&w)
}

// topsFit reports whether the prepared pages lie inside both sides with the offsets and the length of w.
// hot:
func (t *Template) topsFit(w *WritePages) bool {
	return len(w.Src.Indices) == 0 ||
		pageWithin(t.srcTop, w.Src.Stride, w.Src.Offset, w.PageLen, w.Src.Region.Len()) &&
			pageWithin(t.dstTop, w.Dst.Stride, w.Dst.Offset, w.PageLen, w.Dst.Remote.Len())
}

// fillScatter is fill for a scatter.
// hot:
func (t *Template) fillScatter(s *scatter, a *Args) error {
	r := &t.scatter
	if a.Targets != nil && len(a.Targets) != len(r.Targets) {
		return fmt.Errorf("targets: %w: %d, %d were prepared", ErrInvalid, len(a.Targets), len(r.Targets))
	}
	if a.Mask != nil && len(a.Mask) != maskWords(len(r.Targets)) {
		return fmt.Errorf("mask: %w: %d words, %d targets need %d", ErrInvalid, len(a.Mask), len(r.Targets), maskWords(len(r.Targets)))
	}
	if err := r.Src.Region.use(); err != nil {
		return err
	}
	for i := 0; !s.filled && i < len(s.legs); i++ {
		if err := s.legs[i].aim(i, r, &r.Targets[i]); err != nil {
			return err
		}
	}
	s.filled = true
	for i := range s.legs {
		l, g := &s.legs[i], &r.Targets[i]
		if l.masked = !a.takes(i); l.masked {
			continue
		}
		if a.Targets == nil {
			l.load(r.Src.Off+g.SrcOff, g.Dst.Off, g.Len, g.imm(a.Imm), g.Parts)
			continue
		}
		if err := l.reload(r, g, &a.Targets[i], a.Imm); err != nil {
			return fmt.Errorf("target %d: %w", i, err)
		}
	}
	return nil
}

// reload fills l with what x changes of target g of r.
// hot:
func (l *leg) reload(r *Scatter, g *Target, x *TargetArgs, common OptImm) error {
	if err := checkSpan(x.SrcOff, x.Len, r.Src.Len, x.DstOff, g.Dst.Len); err != nil {
		return err
	}
	imm, parts := x.Imm, x.Parts
	if !imm.set {
		imm = common
	}
	if parts == 0 {
		parts = g.Parts
	}
	if err := checkParts(parts); err != nil {
		return err
	}
	l.load(r.Src.Off+x.SrcOff, g.Dst.Off+x.DstOff, x.Len, imm, parts)
	return nil
}

// staleTemplate adds ErrStale to the error of an operation that failed because its session has gone.
func staleTemplate(s *session, err error) error {
	if s.usable() == nil || errors.Is(err, ErrStale) || errors.Is(err, ErrInvalid) {
		return err
	}
	return fmt.Errorf("%w: prepare again: %w", ErrStale, err)
}
