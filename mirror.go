package hawser

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/rail"
)

// Mirror makes the count appear in memory: s is 8 bytes at an address that is a multiple of 8, in the machine's byte order, and belongs
// to the engine while it mirrors. It starts with the present count and only grows; when it reads n, the bytes of n writes are
// there. One word per counter: ErrBusy when there is one. The zero Slice ends it, and so does Close of the counter: the word
// keeps the count of that moment, and nothing writes to it any more. Until then Close of the region is refused with ErrBusy.
func (c *Counter) Mirror(s Slice) error {
	if s.Region == nil {
		c.unmirror()
		return nil
	}
	if err := c.startMirror(s); err != nil {
		return fmt.Errorf("mirror counter %#x: %w", c.c.Imm, err)
	}
	return nil
}

func (c *Counter) startMirror(s Slice) error {
	r := s.Region
	switch {
	case r.e != c.e:
		return fmt.Errorf("word: %w: region of another engine", ErrInvalid)
	case r.readOnly:
		return fmt.Errorf("word: %w: region %d was registered as ReadOnly", ErrInvalid, r.id)
	case !within(s.Off, s.Len, r.Len()):
		return fmt.Errorf("word: %w: [%d, +%d) is not inside the region's %d bytes", ErrInvalid, s.Off, s.Len, r.Len())
	}
	r.mu.Lock() // so that the region is not freed before its use is counted
	defer r.mu.Unlock()
	if r.closed.Load() {
		return fmt.Errorf("region %d: %w", r.id, ErrClosed)
	}
	word, err := imm.Word(r.Bytes()[s.Off:][:s.Len])
	if err != nil {
		return fmt.Errorf("word: %w: %w", ErrInvalid, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.gone != nil:
		return c.gone
	case c.mirror != nil:
		return fmt.Errorf("%w: it has a mirror in region %d", ErrBusy, c.mirror.id)
	}
	r.uses.Add(1)
	c.mirror = r
	c.c.Mirror(word)
	return nil
}

// unmirror ends the mirror, if there is one, and then the use of its region: when the worker has gone on, it does not write to the
// word any more.
func (c *Counter) unmirror() {
	c.mu.Lock()
	r := c.mirror
	c.mu.Unlock()
	if r == nil || !c.letGo(r) {
		return
	}
	if err := c.e.worker.do(func(*rail.Group) error { return nil }); errors.Is(err, errNoWorker) {
		<-c.e.worker.done
	}
	r.uses.Add(-1)
}

// letGo makes r hold no mirror of c, and reports false when another call was faster. The engine may have freed r when it closed.
func (c *Counter) letGo(r *Region) bool {
	r.mu.Lock() // before mu, as in startMirror
	defer r.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mirror != r {
		return false
	}
	c.mirror = nil
	c.c.Unmirror(r.freed)
	return true
}
