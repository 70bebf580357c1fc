package cpu

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
)

// Arrange ends what Unpack began.
//
// hot: no allocation.
func (l *Lane) Arrange(_ backend.Queue, seq uint64, moves []backend.Move, counts, offsets []uint32, out *backend.Output) error {
	if err := l.ready(); err != nil {
		return err
	}
	if err := l.lookOutput(out); err != nil {
		return fmt.Errorf("arrange: %w", err)
	}
	o := &l.doing.out
	for _, m := range moves {
		if m.N < 0 || m.To < 0 || m.To > m.From || m.From+m.N > o.x.n[1] || m.Local < 0 || m.Local >= l.cfg.Local {
			return fmt.Errorf("arrange: %w: rows %d .. %d to %d, of %d", hawser.ErrInvalid, m.From, m.From+m.N, m.To, o.x.n[1])
		}
		l.move(m)
	}
	for _, f := range []struct {
		name string
		t    *backend.Tensor
		from []uint32
	}{{"Counts", &out.Counts, counts}, {"Offsets", &out.Offsets, offsets}} {
		if f.t.Type == backend.None {
			continue
		}
		if f.t.Type != backend.I32 {
			return wrongType(f.name, f.t.Type)
		}
		v, err := look(f.name, f.t, 1, len(f.from), 4)
		if err != nil {
			return err
		}
		for i, n := range f.from {
			le.PutUint32(v.data[v.at(0, 0, i):], n)
		}
	}
	o.counts, o.offsets = counts, offsets
	rows := 0
	if out.ZeroPadding {
		var err error
		if rows, err = l.padding(); err != nil {
			return fmt.Errorf("arrange: %w", err)
		}
	}
	return l.run(opPad, rows, l.row, lineRows, &l.flags.Arranged, seq)
}

// move moves rows to the front, one after the other, because they overlap.
func (l *Lane) move(m backend.Move) {
	o := &l.doing.out
	x := o.x.expert(m.Local)
	for i := 0; i < m.N && !l.stopped(); i++ {
		to, from := m.To+i, m.From+i
		copy(o.x.row(x, to), o.x.row(x, from))
		if v := &o.scale; v.there() {
			for b := range v.n[2] {
				copy(v.data[v.at(x, to, b):][:v.size], v.data[v.at(x, from, b):])
			}
		}
		for _, v := range []*view{&o.srcRank, &o.srcToken, &o.weight} {
			if v.there() {
				copy(v.data[v.at(0, x, to):][:4], v.data[v.at(0, x, from):])
			}
		}
	}
}

// pads is the padding of an expert: its rows from lo on, below hi.
func (l *Lane) pads(local int) (lo, hi int) {
	o := &l.doing.out
	n := int(o.counts[local])
	if o.batched {
		return n, o.x.n[1]
	}
	return int(o.offsets[local]) + n, int(o.offsets[local+1])
}

// padding counts the rows of padding, into ends.
func (l *Lane) padding() (int, error) {
	o := &l.doing.out
	ends, n := l.doing.ends[:0], 0
	if len(o.counts) != l.cfg.Local || !o.batched && len(o.offsets) != l.cfg.Local+1 {
		return 0, fmt.Errorf("%w: %d counts and %d offsets of %d experts", hawser.ErrInvalid, len(o.counts), len(o.offsets), l.cfg.Local)
	}
	for x := range l.cfg.Local {
		lo, hi := l.pads(x)
		if lo > hi || hi > o.x.n[1] {
			return 0, fmt.Errorf("%w: expert %d has padding from row %d to %d, of %d", hawser.ErrInvalid, x, lo, hi, o.x.n[1])
		}
		n += hi - lo
		ends = append(ends, n)
	}
	l.doing.ends = ends
	return n, nil
}

// padRows sets rows lo .. hi-1 of all padding to zero.
//
// hot: no allocation.
func (l *Lane) padRows(lo, hi int) {
	eachRun(l.doing.ends, lo, hi, func(local, lo, hi int) {
		o := &l.doing.out
		x := o.x.expert(local)
		first, _ := l.pads(local)
		for row := first + lo; row < first+hi; row++ {
			clear(o.x.row(x, row))
			if v := &o.scale; v.there() {
				for b := range v.n[2] {
					at := v.at(x, row, b)
					clear(v.data[at : at+v.size])
				}
			}
		}
	})
}
