package cpu

import (
	"fmt"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
)

// unpacking is the job of Unpack and of padding.
type unpacking struct {
	runs                                []backend.Run
	x, scale, srcRank, srcToken, weight view
	batched                             bool
	counts, offsets                     []uint32
}

// Unpack copies runs to rows.
//
// hot: no allocation.
func (l *Lane) Unpack(_ backend.Queue, seq uint64, runs []backend.Run, out *backend.Output) error {
	if err := l.ready(); err != nil {
		return err
	}
	if err := l.lookOutput(out); err != nil {
		return fmt.Errorf("unpack: %w", err)
	}
	o := &l.doing.out
	o.runs = runs
	ends, n := l.doing.ends[:0], 0
	for i := range runs {
		r := &runs[i]
		if r.N < 0 || r.Row < 0 || r.Row+r.N > o.x.n[1] || r.Local < 0 || r.Local >= l.cfg.Local || len(r.From) < r.N*l.cfg.Dispatch {
			return fmt.Errorf("unpack: %w: %d records in %d bytes for rows from %d of expert %d, of %d rows", hawser.ErrInvalid, r.N, len(r.From), r.Row, r.Local, o.x.n[1])
		}
		n += r.N
		ends = append(ends, n)
	}
	l.doing.ends = ends
	unit := 1
	if o.srcRank.there() || o.srcToken.there() || o.weight.there() || o.scale.there() && o.scale.s[2] != o.scale.size {
		unit = lineRows // elements of neighbouring rows share lines
	}
	return l.run(opUnpack, n, l.cfg.Dispatch, unit, &l.flags.Unpacked, seq)
}

// lineRows is how many rows' elements of four bytes share a cache line.
const lineRows = 16

// lookOutput checks the tensors of an Output.
func (l *Lane) lookOutput(out *backend.Output) (err error) {
	o := &l.doing.out
	*o = unpacking{}
	if out.X.Type != l.in {
		return wrongType("X", out.X.Type)
	}
	dims := 2
	if o.batched = out.X.Shape[0] > 0; o.batched {
		dims = 3
	}
	if o.x, err = lookRows("X", &out.X, dims, l.cfg.Hidden, l.cfg.InBytes); err != nil {
		return err
	}
	if o.batched && o.x.n[0] != l.cfg.Local {
		return fmt.Errorf("%w: X is of %d experts, want %d", hawser.ErrInvalid, o.x.n[0], l.cfg.Local)
	}
	if out.XScale.Type != backend.None {
		if o.scale, err = l.lookScales(&out.XScale, dims); err != nil {
			return err
		}
		if o.scale.n[0] != o.x.n[0] || o.scale.n[1] < o.x.n[1] {
			return fmt.Errorf("%w: XScale has shape %v, X %v", hawser.ErrInvalid, out.XScale.Shape, out.X.Shape)
		}
	}
	for _, f := range []struct {
		name string
		t    *backend.Tensor
		v    *view
		want backend.DType
		ok   bool
	}{
		{"SrcRank", &out.SrcRank, &o.srcRank, backend.I32, true},
		{"SrcToken", &out.SrcToken, &o.srcToken, backend.I32, l.cfg.Meta},
		{"Weights", &out.Weights, &o.weight, backend.F32, l.cfg.Meta},
	} {
		if f.t.Type == backend.None {
			continue
		}
		if f.t.Type != f.want || !f.ok {
			return wrongType(f.name, f.t.Type)
		}
		if *f.v, err = look(f.name, f.t, dims-1, max(f.t.Shape[2], o.x.n[1]), 4); err != nil {
			return err
		}
		if f.v.n[1] != o.x.n[0] {
			return fmt.Errorf("%w: %s has shape %v, X %v", hawser.ErrInvalid, f.name, f.t.Shape, out.X.Shape)
		}
	}
	return nil
}

// expert is the first index of a row: 0 if the tensor is not batched.
func (v *view) expert(local int) int {
	if v.n[0] == 1 {
		return 0
	}
	return local
}

// eachRun calls f with the runs that have items lo .. hi-1, whose ends are given, and which of each run's these are.
func eachRun(ends []int, lo, hi int, f func(run, lo, hi int)) {
	hi = min(hi, ends[len(ends)-1])
	i, _ := slices.BinarySearch(ends, lo+1)
	for before := 0; lo < hi; i++ {
		if i > 0 {
			before = ends[i-1]
		}
		n := min(hi, ends[i])
		if n > lo {
			f(i, lo-before, n-before)
			lo = n
		}
	}
}

// unpackRows does records lo .. hi-1 of all runs.
//
// hot: no allocation.
func (l *Lane) unpackRows(lo, hi int) {
	eachRun(l.doing.ends, lo, hi, func(i, lo, hi int) {
		o, c := &l.doing.out, l.cfg
		r := &o.runs[i]
		x := o.x.expert(r.Local)
		if c.Dispatch == l.row && o.x.s[1] == l.row {
			at := o.x.at(x, r.Row+lo, 0)
			copy(o.x.data[at:at+(hi-lo)*l.row], r.From[lo*l.row:])
		} else {
			for n := lo; n < hi; n++ {
				copy(o.x.row(x, r.Row+n), r.From[n*c.Dispatch:][:l.row])
			}
		}
		if o.scale.there() {
			for n := lo; n < hi; n += lineRows {
				l.scatter(x, r.Row+n, r.From[n*c.Dispatch:], min(lineRows, hi-n))
			}
		}
		for n := lo; n < hi; n++ {
			meta := r.From[n*c.Dispatch:][l.metaAt:c.Dispatch]
			if o.srcRank.there() {
				le.PutUint32(o.srcRank.data[o.srcRank.at(0, x, r.Row+n):], uint32(r.Src))
			}
			if o.srcToken.there() {
				copy(o.srcToken.data[o.srcToken.at(0, x, r.Row+n):][:4], meta)
			}
			if o.weight.there() {
				copy(o.weight.data[o.weight.at(0, x, r.Row+n):][:4], meta[metaWeight:])
			}
		}
	})
}

// scatter writes the scales of n records to rows from row on. Behind the last scale of a record there are zeros.
//
// hot: no allocation.
func (l *Lane) scatter(x, row int, records []byte, n int) {
	v, step := &l.doing.out.scale, l.cfg.Dispatch
	at, from := v.at(x, row, 0), l.scaleAt
	switch {
	case v.s[2] == v.size: // row by row
		for ; n > 0; n-- {
			copy(v.data[at:at+v.n[2]*v.size], records[from:])
			at, from = at+v.s[1], from+step
		}
	case v.size == 4: // column by column: what is adjacent is written together
		for b := range v.n[2] {
			at, from := at+b*v.s[2], from+4*b
			for range n {
				le.PutUint32(v.data[at:], le.Uint32(records[from:]))
				at, from = at+v.s[1], from+step
			}
		}
	default:
		for b := range v.n[2] {
			at, from := at+b*v.s[2], from+b
			for range n {
				v.data[at] = records[from]
				at, from = at+v.s[1], from+step
			}
		}
	}
}
