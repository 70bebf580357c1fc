package cpu

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
)

// combining is the job of PackCombine.
type combining struct {
	y        view
	runs     []backend.Back
	from, to numeric.Type
}

// PackCombine copies rows of y to slots.
//
// hot: no allocation.
func (l *Lane) PackCombine(_ backend.Queue, seq uint64, y backend.Tensor, runs []backend.Back) error {
	if err := l.ready(); err != nil {
		return err
	}
	b := &l.doing.back
	*b = combining{runs: runs}
	ends, n := l.doing.ends[:0], 0
	if len(runs) > 0 {
		if err := l.lookY(&y); err != nil {
			return fmt.Errorf("pack results: %w", err)
		}
	}
	for i := range runs {
		r := &runs[i]
		slots := l.cfg.YRows
		if r.Own {
			slots = l.cfg.Records()
		}
		if r.N < 0 || r.Row < 0 || r.Row+r.N > b.y.n[1] || r.Local < 0 || r.Local >= l.cfg.Local || r.Slot < 0 || r.Slot+r.N > slots {
			return fmt.Errorf("pack results: %w: %d rows from %d of expert %d, of %d rows, to slot %d, of %d",
				hawser.ErrInvalid, r.N, r.Row, r.Local, b.y.n[1], r.Slot, slots)
		}
		n += r.N
		ends = append(ends, n)
	}
	l.doing.ends = ends
	return l.run(opPackCombine, n, l.cfg.Combine, 1, &l.flags.YPacked, seq)
}

func (l *Lane) lookY(y *backend.Tensor) (err error) {
	b := &l.doing.back
	var ok bool
	if b.from, ok = number(y.Type); !ok {
		return wrongType("y", y.Type)
	}
	b.to, _ = number(l.wire)
	dims := 2
	if y.Shape[0] > 0 {
		dims = 3
	}
	if b.y, err = lookRows("y", y, dims, l.cfg.Hidden, b.from.Size()); err != nil {
		return err
	}
	if dims == 3 && b.y.n[0] != l.cfg.Local {
		return fmt.Errorf("%w: y is of %d experts, want %d", hawser.ErrInvalid, b.y.n[0], l.cfg.Local)
	}
	return nil
}

// combineRows does rows lo .. hi-1 of all runs.
//
// hot: no allocation.
func (l *Lane) combineRows(lo, hi int) {
	eachRun(l.doing.ends, lo, hi, func(i, lo, hi int) {
		b, c := &l.doing.back, l.cfg
		r := &b.runs[i]
		x, to := b.y.expert(r.Local), l.mem.Y
		if r.Own {
			to = l.mem.Results
		}
		if c.Combine == l.result && b.from == b.to && b.y.s[1] == l.result {
			at := b.y.at(x, r.Row+lo, 0)
			copy(to[(r.Slot+lo)*l.result:], b.y.data[at:at+(hi-lo)*l.result])
			return
		}
		for n := lo; n < hi; n++ {
			dst := to[(r.Slot+n)*c.Combine:][:c.Combine]
			numeric.Convert(dst, b.to, b.y.row(x, r.Row+n), b.from)
			clear(dst[l.result:])
		}
	})
}
