package cpu

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
)

// sumColumns are summed at a time: the sums stay in the first cache while all rows are added.
const sumColumns = 1024

// A bias is added as one row with the weight 1, by which nothing changes.
var (
	biasAt     = []int{0}
	biasWeight = []float32{1}
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
		n := l.terms(token, s)
		if n == 0 && r.r.Accumulate && len(r.bias) == 0 {
			continue // as it is, even a NaN
		}
		out := r.out.row(0, token)
		for col := 0; col < l.cfg.Hidden; col += sumColumns {
			end := min(col+sumColumns, l.cfg.Hidden)
			l.sum(out[col*r.to.Size():end*r.to.Size()], token, col, n, s)
		}
	}
}

// terms lists the results of a token, and their weights, and says how many there are.
//
// hot: no allocation.
func (l *Lane) terms(token int, s *scratch) int {
	n, k, rescale := 0, l.cfg.TopK, l.rescale(token)
	for j := range k {
		if i := token*k + j; l.present(i) {
			w := l.weight(token, j)
			if rescale != 1 {
				w *= rescale
			}
			s.at[n], s.w[n] = int(l.plan.Slot[i])*l.cfg.Combine, w
			n++
		}
	}
	return n
}

// sum adds the n terms of a token, and its biases, for the columns from col on that out has.
//
// hot: no allocation.
func (l *Lane) sum(out []byte, token, col, n int, s *scratch) {
	r := &l.doing.sum
	acc := s.acc[:4*(len(out)/r.to.Size())]
	if r.r.Accumulate {
		numeric.Convert(acc, numeric.TypeF32, out, r.to)
	} else {
		clear(acc)
	}
	numeric.Weigh(acc, l.mem.Results[col*r.wire.Size():], r.wire, s.at[:n], s.w[:n])
	for i := range r.bias {
		b := &r.bias[i]
		numeric.Weigh(acc, b.v.row(0, token)[col*b.t.Size():], b.t, biasAt, biasWeight)
	}
	numeric.FromSums(out, r.to, acc)
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
