package hawser

import (
	"fmt"
	"math/bits"
)

// How many immediates a request sends is decided here, from the request alone: never by rails, their number or their health.

// MaxParts bounds the parts of one write and the pages of one WritePages.
const MaxParts = 1 << 24

const (
	minPart = 64 << 10 // bytes; below it a part costs more than it gains
	maxPart = 4 << 20  // bytes; above it one part keeps a rail for so long that others have nothing to take over
	goodCut = 16       // parts that keep four rails busy, four each
)

// PartsFor recommends Write.Parts for a write of length bytes whose parts are to be counted: 16 parts of 64 KiB to 4 MiB where that
// is possible, fewer or more where not. It depends on length alone, so both sides can compute it. 1 for 0 bytes.
func PartsFor(length uint64) int {
	if length == 0 {
		return 1
	}
	part := min(max((length-1)/goodCut+1, minPart), maxPart)
	return int(min((length-1)/part+1, MaxParts))
}

// partsOf is how many parts are asked for; 0 leaves it to the engine.
// hot:
func partsOf(imm OptImm, parts int) int {
	if imm.set && parts == 0 {
		return 1
	}
	return parts
}

// checkParts checks a number of parts that was asked for.
// hot:
func checkParts(parts int) error {
	if parts < 0 || parts > MaxParts {
		return fmt.Errorf("parts: %w: %d is not within 0 .. %d", ErrInvalid, parts, MaxParts)
	}
	return nil
}

// immCount is how many immediates parts with imm send.
func immCount(imm OptImm, parts int) int {
	if !imm.set {
		return 0
	}
	return partsOf(imm, parts)
}

// ImmCount is how many immediates the write sends: its parts, or 0 without an immediate.
func (w Write) ImmCount() int { return immCount(w.Imm, w.Parts) }

// ImmCount is how many immediates the pages send: one each, one in all with ImmLast, or 0 without an immediate.
func (w WritePages) ImmCount() int {
	if w.ImmLast {
		return immCount(w.Imm, 1)
	}
	if !w.Imm.set {
		return 0
	}
	return len(w.Src.Indices)
}

// ImmCount is 1.
func (s Signal) ImmCount() int { return 1 }

// ImmCount is how many immediates the scatter sends to all targets together.
func (s Scatter) ImmCount() int {
	n := 0
	for i := range s.Targets {
		n += s.TargetImmCount(i)
	}
	return n
}

// TargetImmCount is how many immediates target i gets: its parts, or 0 without an immediate.
func (s Scatter) TargetImmCount(i int) int {
	t := &s.Targets[i]
	return immCount(t.imm(s.Imm), t.Parts)
}

// OptRail is one rail of this engine, or any. The zero value is any; OnRail makes one. What is pinned to a rail goes over others only
// while no link to the peer over that rail is in service.
type OptRail struct {
	i   int
	set bool
}

// OnRail is rail i of this engine, as Stats numbers them.
func OnRail(i int) OptRail { return OptRail{i: i, set: true} }

// checkPin checks that there is such a rail.
// hot:
func (e *Engine) checkPin(pin OptRail) error {
	if pin.set && (pin.i < 0 || pin.i >= len(e.rails)) {
		return fmt.Errorf("pin: %w: rail %d is not within 0 .. %d", ErrInvalid, pin.i, len(e.rails)-1)
	}
	return nil
}

// checkLast checks that pages may be followed by one immediate.
// hot:
func (e *Engine) checkLast(pin OptRail) error {
	if !pin.set {
		return fmt.Errorf("imm last: %w: the pages are not pinned to a rail, and nothing orders rails", ErrUnsupported)
	}
	if err := e.checkPin(pin); err != nil {
		return err
	}
	if !e.worker.group.Caps(pin.i).Ordered {
		return fmt.Errorf("imm last: %w: rail %d (%s) does not keep the order of writes", ErrUnsupported, pin.i, e.rails[pin.i].Provider)
	}
	return nil
}

// pinned returns rail.Op.Rail for a pin that was checked. ErrUnsupported: the peer is not reached over that rail.
// hot:
func (s *session) pinned(pin OptRail) (int, error) {
	if !pin.set {
		return 0, nil
	}
	if rails := s.rails.Load(); rails>>pin.i&1 == 0 {
		return 0, fmt.Errorf("pin: %w: peer %s is not reached over rail %d, but over %s", ErrUnsupported, s.peer, pin.i, bitNames(rails))
	}
	return pin.i + 1, nil
}

// bitNames lists the bits that are set.
func bitNames(set uint64) string {
	out := ""
	for ; set != 0; set &= set - 1 {
		if out != "" {
			out += ", "
		}
		out += fmt.Sprint(bits.TrailingZeros64(set))
	}
	return out
}
