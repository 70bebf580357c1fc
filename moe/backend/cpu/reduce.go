package cpu

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
)

const (
	sumColumns = 1024 // summed at a time: with the rows that are added it stays in the first cache
	sumRows    = 64   // added in one pass
)

// reducing is the job of Reduce.
type reducing struct {
	r            *backend.Reduction
	out, weights view
	to, wire     numeric.Type
	bias         []bias
	gone         bool
}

type bias struct {
	v view
	t numeric.Type
}

// Reduce sums the results of the plan, a token after the other.
//
// hot: no allocation.
func (l *Lane) Reduce(_ backend.Queue, seq uint64, r *backend.Reduction) error {
	if err := l.ready(); err != nil {
		return err
	}
	if l.plan.Tokens < 0 {
		return fmt.Errorf("reduce: %w: nothing was counted", hawser.ErrInvalid)
	}
	if err := l.lookSums(r); err != nil {
		return fmt.Errorf("reduce: %w", err)
	}
	return l.run(opReduce, l.plan.Tokens, l.cfg.TopK*l.cfg.Combine, 1, &l.flags.Reduced, seq)
}

func (l *Lane) lookSums(r *backend.Reduction) (err error) {
	s := &l.doing.sum
	*s = reducing{r: r, bias: s.bias[:0]}
	if l.plan.Tokens == 0 {
		return nil
	}
	s.wire, _ = number(l.wire)
	if s.out, s.to, err = l.lookSum("Out", &r.Out); err != nil {
		return err
	}
	if r.Weights.Type != backend.None {
		if r.Weights.Type != backend.F32 {
			return wrongType("Weights", r.Weights.Type)
		}
		if s.weights, err = look("Weights", &r.Weights, 2, l.cfg.TopK, 4); err != nil {
			return err
		}
		if s.weights.n[1] < l.plan.Tokens {
			return fmt.Errorf("%w: Weights of %d tokens, want %d", hawser.ErrInvalid, s.weights.n[1], l.plan.Tokens)
		}
	}
	for i := range r.Bias {
		v, t, err := l.lookSum("Bias", &r.Bias[i])
		if err != nil {
			return err
		}
		s.bias = append(s.bias, bias{v, t})
	}
	if n := (l.cfg.MaxRanks + 63) / 64; r.Gone != nil && len(r.Gone) < n {
		return fmt.Errorf("%w: Gone has %d words, want %d", hawser.ErrInvalid, len(r.Gone), n)
	}
	for _, w := range r.Gone {
		s.gone = s.gone || w != 0
	}
	return nil
}

// lookSum checks a tensor with a row of numbers for each token.
func (l *Lane) lookSum(name string, t *backend.Tensor) (view, numeric.Type, error) {
	n, ok := number(t.Type)
	if !ok {
		return view{}, 0, wrongType(name, t.Type)
	}
	v, err := lookRows(name, t, 2, l.cfg.Hidden, n.Size())
	if err == nil && v.n[1] < l.plan.Tokens {
		err = fmt.Errorf("%w: %s of %d tokens, want %d", hawser.ErrInvalid, name, v.n[1], l.plan.Tokens)
	}
	return v, n, err
}

// reduceTokens sums tokens lo .. hi-1.
//
// hot: no allocation.
func (l *Lane) reduceTokens(lo, hi int, s *scratch) {
	r := &l.doing.sum
	for token := lo; token < hi; token++ {
		rescale := l.rescale(token)
		out := r.out.row(0, token)
		for col := 0; col < l.cfg.Hidden; col += sumColumns {
			n := min(sumColumns, l.cfg.Hidden-col)
			l.sum(out[col*r.to.Size():(col+n)*r.to.Size()], token, col, rescale, s)
		}
	}
}

// sum is that of some columns of a token.
//
// hot: no allocation.
func (l *Lane) sum(out []byte, token, col int, rescale float32, s *scratch) {
	r, k := &l.doing.sum, l.cfg.TopK
	n := len(out) / r.to.Size()
	acc, changed := s.acc[:4*n], !r.r.Accumulate
	if r.r.Accumulate {
		numeric.Convert(acc, numeric.TypeF32, out, r.to)
	} else {
		clear(acc)
	}
	rows := l.mem.Results[col*r.wire.Size():]
	for j := 0; j < k; {
		m := 0
		for ; j < k && m < sumRows; j++ {
			i := token*k + j
			if l.present(i) {
				s.at[m], s.w[m] = int(l.plan.Slot[i])*l.cfg.Combine, l.weight(token, j)
				if rescale != 1 {
					s.w[m] *= rescale
				}
				m++
			}
		}
		changed = changed || m > 0
		numeric.Weigh(acc, rows, r.wire, s.at[:m], s.w[:m])
	}
	for i := range r.bias {
		b := &r.bias[i]
		row := b.v.row(0, token)[col*b.t.Size():]
		s.at[0], s.w[0] = 0, 1
		numeric.Weigh(acc, row, b.t, s.at[:1], s.w[:1])
		changed = true
	}
	if changed {
		numeric.FromSums(out, r.to, acc)
	}
}

// present: there is a result for the pair with index i.
func (l *Lane) present(i int) bool {
	if l.plan.Slot[i] == backend.NoSlot {
		return false
	}
	r := &l.doing.sum
	if !r.gone {
		return true
	}
	rank := int(l.keys[i]) / l.cfg.Local
	return r.r.Gone[rank/64]>>(rank%64)&1 == 0
}

func (l *Lane) weight(token, j int) float32 {
	w := &l.doing.sum.weights
	if !w.there() {
		return 1
	}
	return numeric.At(w.data[w.at(0, token, j):], numeric.TypeF32, 0)
}

// rescale is by what the weights of a token are multiplied.
func (l *Lane) rescale(token int) float32 {
	r, k := &l.doing.sum, l.cfg.TopK
	if !r.gone || !r.r.Rescale {
		return 1
	}
	all, have, lacks := float32(0), float32(0), false
	for j := range k {
		if i := token*k + j; l.plan.Slot[i] != backend.NoSlot {
			w := l.weight(token, j)
			all += w
			if l.present(i) {
				have += w
			} else {
				lacks = true
			}
		}
	}
	if !lacks || have == 0 {
		return 1
	}
	return all / have
}
