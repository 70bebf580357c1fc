package moetest

import (
	"math"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/moe/backend"
)

func ref(s Shape, hidden int) *Ref {
	return &Ref{Shape: s, Hidden: hidden, Align: 3, In: backend.F32, Wire: backend.F32, Out: backend.F32}
}

// TestPayloads: all numbers of a step differ, are between 1 and 4 aside from their sign, and tell where they belong.
func TestPayloads(t *testing.T) {
	f := ref(Shape{4, 16, 16, 4}, 64)
	seen := map[float32]bool{}
	for r := range f.Ranks {
		for token := range f.Tokens {
			for h := range f.Hidden {
				x := f.payload(5, r, token, h)
				if a := math.Abs(float64(x)); seen[x] || a < 1 || a >= 4 {
					t.Fatalf("rank %d, token %d, element %d: %v", r, token, h, x)
				}
				seen[x] = true
			}
		}
	}
	if got := f.Tell(f.payload(5, 3, 7, 9)); !strings.Contains(got, "rank 3, token 7, element 9, of a step that is 5 modulo 8192") {
		t.Error(got)
	}
}

// dense does a step by the simplest means, with float64 beside, of rows and columns as they come.
func dense(f *Ref, r *Routing, step uint64) (rows [][]byte, counts [][]uint32, sums [][]byte, worst float64) {
	for to := range f.Ranks {
		c, offsets := f.Received(r, to, nil)
		x := make([]byte, (int(offsets[len(c)])+1)*f.Hidden*size(f.In))
		at := append([]uint32(nil), offsets...)
		for src := range f.Ranks {
			all := make([]byte, r.N[src]*f.Hidden*size(f.In))
			f.Input(r, step, src, all)
			n := f.Hidden * size(f.In)
			for token := range r.N[src] {
				for j := range f.TopK {
					if e := r.ID(src, token, j); e >= 0 && r.RankOf(e) == to {
						copy(x[int(at[e%f.Local()])*n:], all[token*n:(token+1)*n])
						at[e%f.Local()]++
					}
				}
			}
		}
		rows, counts = append(rows, x), append(counts, c)
	}
	for rank := range f.Ranks {
		out := make([]byte, r.N[rank]*f.Hidden*4)
		for token := range r.N[rank] {
			for h := range f.Hidden {
				acc, exact, bound := float32(0), 0.0, 0.0
				if SumOf(step).Accumulate {
					acc = f.payload(^step, rank, token, h)
					exact, bound = float64(acc), math.Abs(float64(acc))
				}
				for j := range f.TopK {
					if e := r.ID(rank, token, j); e >= 0 {
						y := Expert(e, f.payload(step, rank, token, h))
						p := float32(r.Weight(rank, token, j) * y)
						acc += p
						exact += float64(r.Weight(rank, token, j)) * float64(y)
						bound += math.Abs(float64(p))
					}
				}
				if SumOf(step).Bias {
					v := f.payload(^step^1<<40, rank, token, h)
					acc += v
					exact += float64(v)
					bound += math.Abs(float64(v))
				}
				if bound > 0 {
					worst = max(worst, math.Abs(float64(acc)-exact)/(bound*float64(f.TopK+2)*0x1p-24))
				}
				le.PutUint32(out[4*(token*f.Hidden+h):], math.Float32bits(acc))
			}
		}
		sums = append(sums, out)
	}
	return rows, counts, sums, worst
}

// TestRef: what is right passes, and no byte of it may change, nor rows change places.
func TestRef(t *testing.T) {
	for _, s := range shapes {
		f := ref(s, 5)
		r := routing(t, s)
		draw := NewDraw(dist(t, "mix"), 11, true)
		for step := range uint64(24) {
			draw.Step(r, step)
			rows, counts, sums, worst := dense(f, r, step)
			if worst > 1 {
				t.Errorf("the error is %.2f of its bound", worst)
			}
			for rank := range s.Ranks {
				_, offsets := f.Received(r, rank, nil)
				check := func() Wrong { return f.CheckDispatch(r, step, rank, counts[rank], offsets, rows[rank], nil, nil) }
				if w := check(); w.Bytes > 0 {
					t.Fatalf("%+v: %s", s, w.First)
				}
				for local, n := range counts[rank] {
					if n == 0 {
						continue
					}
					at := int(offsets[local]) * f.Hidden * 4
					rows[rank][at+7] ^= 1
					if w := check(); w.Bytes != 1 || !strings.Contains(w.First, "element 1 is") {
						t.Fatalf("a changed byte: %+v", w)
					}
					rows[rank][at+7] ^= 1
					counts[rank][local]--
					if w := check(); w.Bytes == 0 {
						t.Fatal("a row less is not noticed")
					}
					counts[rank][local]++
				}
				sum := func() Wrong { return f.CheckCombine(r, step, rank, sums[rank], nil, nil) }
				if w := sum(); w.Bytes > 0 {
					t.Fatalf("%+v: %s", s, w.First)
				}
				for at := range sums[rank] {
					sums[rank][at] ^= 0x10
					if w := sum(); w.Bytes != 1 {
						t.Fatalf("a changed byte of a sum: %+v", w)
					}
					sums[rank][at] ^= 0x10
				}
			}
		}
	}
}

// TestGone: who is gone has sent nothing, and its experts add nothing.
func TestGone(t *testing.T) {
	s := Shape{3, 8, 6, 2}
	f, r := ref(s, 3), routing(t, s)
	NewDraw(dist(t, "uniform"), 1, false).Step(r, 0)
	gone := func(rank int) bool { return rank == 1 }
	counts, _ := f.Received(r, 0, gone)
	all, _ := f.Received(r, 0, nil)
	records := r.Records()
	if counts[0]+counts[1] != all[0]+all[1]-uint32(records[1*3+0]) {
		t.Errorf("%v without rank 1, %v with it, which sends %d", counts, all, records[3])
	}
	without := *r
	without.IDs = append([]int32(nil), r.IDs...)
	for i, e := range without.IDs {
		if e >= 0 && r.RankOf(int(e)) == 1 {
			without.IDs[i] = -1
		}
	}
	_, _, sums, _ := dense(f, &without, 0)
	if w := f.CheckCombine(r, 0, 0, sums[0], gone, nil); w.Bytes > 0 {
		t.Error(w.First)
	}
	if w := f.CheckCombine(r, 0, 0, sums[0], nil, nil); w.Bytes == 0 {
		t.Error("that rank 1 is gone makes no difference")
	}
}
