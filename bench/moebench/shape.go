package moebench

import (
	"fmt"
	"os"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/moetest"
)

// Shape is a layer.
type Shape struct {
	Name    string `json:"name"`
	Ranks   int    `json:"ranks"`
	Tokens  int    `json:"tokens"` // of each rank
	Hidden  int    `json:"hidden"`
	Experts int    `json:"experts"`
	TopK    int    `json:"topk"`
	DType   string `json:"dtype"` // of rows: bf16, or fp8 with a scale of 32 bits for 128 elements; results are bf16
	Routing string `json:"routing"`
}

// Each is a routing that package moetest has not: a token for each expert in turn, so that all pairs have the same number of rows.
const Each = "each"

// Named are shapes that have a name: decode and prefill are those of DeepSeek-V3, pair is rows of 1 KiB, as many for each pair of ranks.
func Named(name string, ranks int) (Shape, error) {
	s := Shape{Name: name, Ranks: ranks, Hidden: 7168, Experts: 256, TopK: 8, DType: "fp8", Routing: "uniform"}
	switch name {
	case "decode":
		s.Tokens = 128
	case "prefill":
		s.Tokens = 2048
	case "small":
		s.Tokens, s.Hidden, s.Experts = 8, 2048, 64
	case "pair":
		s.Tokens, s.Hidden, s.Experts, s.TopK, s.DType, s.Routing = ranks, 512, ranks, 1, "bf16", Each
	default:
		return s, fmt.Errorf("moebench: shape %q: %w: want decode, prefill, small or pair", name, hawser.ErrInvalid)
	}
	return s, nil
}

// NewRouting is the routing of a shape: a distribution by its name, or a file.
func (s *Shape) NewRouting(seed uint64) (*moetest.Routing, error) {
	if s.Routing == Each {
		return s.each()
	}
	d, err := moetest.ParseDist(s.Routing)
	if err != nil {
		if r, e := s.read(); e == nil || !os.IsNotExist(e) {
			return r, e
		}
		return nil, fmt.Errorf("moebench: %w: %w, %s, or a file", hawser.ErrInvalid, err, Each)
	}
	r, err := moetest.NewRouting(s.moetest())
	if err != nil {
		return nil, fmt.Errorf("moebench: %w: %w", hawser.ErrInvalid, err)
	}
	moetest.NewDraw(d, seed, false).Step(r, 0)
	return r, nil
}

func (s *Shape) moetest() moetest.Shape {
	return moetest.Shape{Ranks: s.Ranks, Tokens: s.Tokens, Experts: s.Experts, TopK: s.TopK}
}

func (s *Shape) each() (*moetest.Routing, error) {
	r, err := moetest.NewRouting(s.moetest())
	if err != nil {
		return nil, fmt.Errorf("moebench: %w: %w", hawser.ErrInvalid, err)
	}
	for i := range r.N {
		r.N[i] = s.Tokens
	}
	for i := range r.IDs {
		r.IDs[i], r.Weights[i] = int32(i%s.Experts), 1
	}
	return r, nil
}

// read takes the shape from the file.
func (s *Shape) read() (*moetest.Routing, error) {
	f, err := os.Open(s.Routing)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := moetest.ReadRouting(f)
	if err != nil {
		return nil, fmt.Errorf("moebench: %s: %w", s.Routing, err)
	}
	if r.Ranks != s.Ranks {
		return nil, fmt.Errorf("moebench: %s: %w: it is for %d ranks", s.Routing, hawser.ErrInvalid, r.Ranks)
	}
	s.Tokens, s.Experts, s.TopK = r.Tokens, r.Experts, r.TopK
	return r, nil
}

// Config is that of a group for the shape.
func (s *Shape) Config() (moe.Config, error) {
	c := moe.Config{
		MaxRanks: s.Ranks, MaxTokens: s.Tokens, Hidden: s.Hidden, TopK: s.TopK, Experts: s.Experts, Wire: backend.BF16, Lanes: 1,
	}
	switch s.DType {
	case "bf16":
		c.In = backend.BF16
	case "fp8":
		c.In, c.Scale = backend.E4M3, backend.F32x128
	default:
		return c, fmt.Errorf("moebench: dtype %q: %w: want fp8 or bf16", s.DType, hawser.ErrInvalid)
	}
	return c, nil
}

// load is what a routing has every rank move, in records.
type load struct {
	out, in []int // to and from other ranks
	all     []int // that it receives, its own included
	own     []int
	over    int // beyond the first chunks, of all ranks
}

func loadOf(r *moetest.Routing, firstChunk int) load {
	n := r.Ranks
	l := load{make([]int, n), make([]int, n), make([]int, n), make([]int, n), 0}
	for i, x := range r.Records() {
		from, to := i/n, i%n
		l.all[to] += x
		if from == to {
			l.own[to] = x
			continue
		}
		l.out[from] += x
		l.in[to] += x
		l.over += max(0, x-firstChunk)
	}
	return l
}

// most rows that any rank receives.
func (l *load) most() int { return slices.Max(l.all) }
