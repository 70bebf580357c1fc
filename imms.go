package hawser

import (
	"fmt"
	"sync"

	"github.com/hawser-project/hawser/internal/imm"
)

// Imms manages immediate values. A managed value counts only between Take and Put, or while its Block is open; an immediate that
// arrives at another time is stale: it is counted in Stats.StaleImms, shown to the handlers of OnStale, and never part of a
// later use. All other values are open: they count from their first arrival on.
//
// Take lends the values that Options.ImmBase and Options.ImmBits name, which are managed from the first Take on. Reserve manages
// values that peers have agreed on.
type Imms struct {
	note // fires when stale immediates wait for their handlers
	e    *Engine

	mu     sync.Mutex
	values *imm.Range // of Take, nil before the first; guarded by mu
	fresh  uint32     // how many of them have been used; guarded by mu
	back   []uint32   // given back, oldest first; guarded by mu

	stale staleReports
}

// Imms is the engine's manager of immediate values.
func (e *Engine) Imms() *Imms { return &e.managed }

// takeHolder is how Take is named in the errors of others.
const takeHolder = "Imms.Take"

// Take lends a value that nobody else uses, and its counter, which starts at 0. Values come back in the order in which they
// were given back, so that each rests as long as possible. ErrLimit: all are lent.
func (m *Imms) Take() (*Counter, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.next()
	if err != nil {
		return nil, fmt.Errorf("take immediate: %w", err)
	}
	c := &Counter{}
	m.e.counterMu.Lock()
	c.count(m.e, m.e.imms.Open(v), takenCounter)
	m.e.counterMu.Unlock()
	return c, nil
}

// next is the value to lend. Needs mu.
func (m *Imms) next() (uint32, error) {
	if m.e.closing.Load() {
		return 0, errNoEngine
	}
	if m.values == nil {
		r := &imm.Range{Holder: takeHolder, Base: m.e.opts.ImmBase, Bits: m.e.opts.ImmBits, BlockBits: -1}
		if err := m.hold(r); err != nil {
			return 0, err
		}
		m.values = r
	}
	if m.fresh < 1<<m.values.Bits {
		m.fresh++
		return m.values.Base + m.fresh - 1, nil
	}
	if len(m.back) == 0 {
		return 0, fmt.Errorf("%w: all %d values are lent", ErrLimit, 1<<m.values.Bits)
	}
	v := m.back[0]
	m.back = m.back[1:]
	return v, nil
}

// Put gives back what Take lent: waits for the counter end with ErrClosed, and its value is lent again some time. It must be quiet:
// a write that is under way with the value is stale when it arrives before the next use, and counts for the next use when not.
// ErrClosed: it was given back before.
func (m *Imms) Put(c *Counter) error {
	if c == nil || c.e != m.e || c.kind != takenCounter {
		return fmt.Errorf("put immediate: counter: %w: not one that this engine lent", ErrInvalid)
	}
	if !c.retire() {
		return fmt.Errorf("put immediate %#x: %w: given back before", c.c.Imm, ErrClosed)
	}
	m.e.imms.Remove(c.c)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.back = append(m.back, c.c.Imm)
	return nil
}

// hold makes values managed.
func (m *Imms) hold(r *imm.Range) error {
	stale, err := m.e.imms.Hold(r)
	m.stale.count.Add(stale)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return nil
}
