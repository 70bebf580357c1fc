package cpu

import (
	"fmt"
	"runtime"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

const (
	defaultProcs = 8
	maxTopK      = 1 << 10 // of proto.Config
)

// Backend makes lanes that share its workers.
type Backend struct{ pool pool }

// New starts a backend whose lanes use up to procs processors each; 0 is as many as the program may, but at most 8. Close ends it.
func New(procs int) (*Backend, error) {
	if procs < 0 {
		return nil, fmt.Errorf("%w: cpu backend: %d processors", hawser.ErrInvalid, procs)
	}
	if procs == 0 {
		procs = min(runtime.GOMAXPROCS(0), defaultProcs)
	}
	b := &Backend{}
	b.pool.start(procs - 1)
	return b, nil
}

// Caps has no bounds but those of proto.Config.
func (b *Backend) Caps() backend.Caps {
	return backend.Caps{Name: "cpu", MaxTopK: maxTopK, MaxHidden: 1 << 20, MaxLocal: 1 << 16}
}

// Close ends the workers and waits for them. Calls of lanes that come later fail with ErrClosed.
func (b *Backend) Close() error {
	b.pool.close()
	return nil
}

// NewLane checks the spec, and makes a lane of it.
func (b *Backend) NewLane(s backend.Spec) (backend.Lane, error) {
	l := &Lane{pool: &b.pool, cfg: s.Layout, in: s.In, wire: s.Wire, scale: s.Scale}
	l.scratch = newScratch()
	l.job.done.L = &b.pool.mu
	l.job.work = l
	if err := l.measure(); err != nil {
		return nil, fmt.Errorf("lane of the cpu backend: %w", err)
	}
	records := l.cfg.Records()
	l.keys, l.nextKeys = make([]uint32, records), make([]uint32, records)
	l.doing.ends = make([]int, 0, 2*l.cfg.MaxRanks*l.cfg.Local)
	l.cursor = make([]uint32, l.cfg.MaxRanks*l.cfg.Local)
	l.plan = backend.Plan{
		Records: make([]uint32, l.cfg.MaxRanks), Base: make([]uint32, l.cfg.MaxRanks), Counts: make([]uint32, l.cfg.MaxRanks*l.cfg.Local),
		Slot: make([]uint32, 0, records), Token: make([]uint32, 0, records), Column: make([]uint16, 0, records),
	}
	if err := l.Rebase(s.Memory, s.Place); err != nil {
		return nil, err
	}
	return l, nil
}

// scalings are the elements that share a scale, and its bytes.
var scalings = [...]struct{ block, bytes int }{backend.NoScale: {0, 0}, backend.F32x128: {128, 4}, backend.UE8M0x128: {128, 1}, backend.UE8M0x32: {32, 1}}

// measure decides what lies where in a record.
func (l *Lane) measure() error {
	c := l.cfg
	if int(l.scale) >= len(scalings) || scalings[l.scale].block != c.ScaleBlock || scalings[l.scale].bytes != c.ScaleBytes {
		return fmt.Errorf("%w: scaling %d, but the layout has %d bytes for %d elements", proto.ErrConfig, l.scale, c.ScaleBytes, c.ScaleBlock)
	}
	if size := sizeOf(l.in); size == 0 || l.in > backend.Bytes || l.in != backend.Bytes && size != c.InBytes {
		return fmt.Errorf("%w: rows of type %d, but the layout has elements of %d bytes", proto.ErrConfig, l.in, c.InBytes)
	}
	wire, ok := number(l.wire)
	if !ok || wire.Size() != c.WireBytes {
		return fmt.Errorf("%w: results of type %d, but the layout has elements of %d bytes", proto.ErrConfig, l.wire, c.WireBytes)
	}
	l.row, l.result = c.Hidden*c.InBytes, c.Hidden*c.WireBytes
	l.scaleAt = (l.row + 15) &^ 15
	l.metaAt = c.Dispatch
	if c.Meta {
		l.metaAt -= metaBytes
	}
	if c.ScaleBlock > 0 {
		l.blocks = (c.Hidden + c.ScaleBlock - 1) / c.ScaleBlock
	}
	return nil
}
