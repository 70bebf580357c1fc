package moetest

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"
)

var shapes = []Shape{{1, 1, 1, 1}, {4, 16, 16, 4}, {3, 5, 7, 3}, {4, 3, 5, 2}, {8, 4, 6, 6}, {16, 8, 64, 8}}

func dist(t testing.TB, text string) Dist {
	t.Helper()
	d, err := ParseDist(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func routing(t testing.TB, s Shape) *Routing {
	t.Helper()
	r, err := NewRouting(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// rules says what must hold for each id of a distribution, beyond what holds for all.
var rules = map[string]func(r *Routing, from int, ids []int32) bool{
	"none": func(_ *Routing, _ int, ids []int32) bool { return filled(ids) == 0 },
	"one":  func(r *Routing, _ int, ids []int32) bool { return filled(ids) == 1 && ids[0] == first(r)[0] },
	"dummy": func(r *Routing, _ int, ids []int32) bool {
		return filled(ids) == len(ids) && slices.Equal(ids, first(r))
	},
	"rank": func(r *Routing, _ int, ids []int32) bool {
		f := first(r)
		return f[0] < 0 && filled(ids) == 0 || all(ids, func(e int) bool { return r.RankOf(e) == r.RankOf(int(f[0])) })
	},
	"self": func(r *Routing, from int, ids []int32) bool {
		return all(ids, func(e int) bool { return r.RankOf(e) == from })
	},
	"dup": func(_ *Routing, _ int, ids []int32) bool {
		return ids[0] >= 0 && all(ids, func(e int) bool { return e == int(ids[0]) })
	},
	"cycle": func(r *Routing, from int, ids []int32) bool {
		return r.Ranks == 1 || all(ids, func(e int) bool { return r.RankOf(e) != from })
	},
	"uniform": full, "zipf": full, "hot": full, "single": full,
	"node": func(_ *Routing, _ int, ids []int32) bool { return true },
	"mix":  func(_ *Routing, _ int, ids []int32) bool { return true },
}

func full(_ *Routing, _ int, ids []int32) bool { return filled(ids) == len(ids) }

func filled(ids []int32) (n int) {
	for _, e := range ids {
		if e >= 0 {
			n++
		}
	}
	return n
}

func all(ids []int32, ok func(int) bool) bool {
	return !slices.ContainsFunc(ids, func(e int32) bool { return e >= 0 && !ok(int(e)) })
}

// first are the ids of the first token in the world.
func first(r *Routing) []int32 {
	for i := range r.Ranks {
		if ids, _ := r.Row(i); len(ids) > 0 {
			return ids[:r.TopK]
		}
	}
	return nil
}

// TestDraw: routings are what their names say, and nothing but functions of seed and step.
func TestDraw(t *testing.T) {
	for name, rule := range rules {
		d := dist(t, name)
		for _, s := range shapes {
			r, again := routing(t, s), routing(t, s)
			draw, other := NewDraw(d, 7, true), NewDraw(d, 7, true)
			zero, tokens, steps := 0, 0, uint64(40)
			for step := range steps {
				draw.Step(r, step)
				for i, n := range r.N {
					if n == 0 {
						zero++
					}
					tokens += n
					ids, weights := r.Row(i)
					for at := 0; at < len(ids); at += s.TopK {
						row := ids[at : at+s.TopK]
						if !all(row, func(e int) bool { return e < s.Experts }) || !rule(r, i, row) {
							t.Fatalf("%s %+v step %d rank %d: ids %v", name, s, step, i, row)
						}
						if name != "dup" && name != "mix" && !different(row) {
							t.Fatalf("%s %+v step %d rank %d: ids %v are not different", name, s, step, i, row)
						}
					}
					if slices.ContainsFunc(weights, func(g float32) bool { return g <= 0 || g > 1 }) {
						t.Fatalf("%s: weights %v", name, weights)
					}
				}
				if name == "single" && r.Records()[0] > s.TopK {
					t.Fatalf("single: %v tokens", r.N)
				}
			}
			if name == "single" && tokens != int(steps) {
				t.Errorf("single %+v: %d tokens in %d steps", s, tokens, steps)
			}
			if name == "uniform" && (zero == 0 || tokens == 0) {
				t.Errorf("%+v: ranks were without tokens %d times, all had %d", s, zero, tokens)
			}
			other.Step(again, steps-1) // without the steps before
			if !reflect.DeepEqual(r, again) {
				t.Errorf("%s %+v: step %d depends on those before", name, s, steps-1)
			}
		}
	}
	if len(rules) != int(dists) {
		t.Errorf("%d distributions have rules, there are %d", len(rules), dists)
	}
}

func different(ids []int32) bool {
	for i, e := range ids {
		if e >= 0 && slices.Contains(ids[:i], e) {
			return false
		}
	}
	return true
}

// TestSkew: zipf and hot prefer few experts, by as much as they say.
func TestSkew(t *testing.T) {
	s := Shape{4, 256, 64, 2}
	share := func(name string) float64 {
		r, n, counts := routing(t, s), 0, make([]int, s.Experts)
		NewDraw(dist(t, name), 3, false).Step(r, 0)
		for _, e := range r.IDs {
			counts[e]++
			n++
		}
		slices.Sort(counts)
		top := 0
		for _, c := range counts[s.Experts-4:] {
			top += c
		}
		return float64(top) / float64(n)
	}
	if u, z, z2, h := share("uniform"), share("zipf"), share("zipf:2"), share("hot"); u > 0.15 || z < 0.4 || z2 < z+0.2 || h < 0.8 {
		t.Errorf("the first 4 experts of 64 have a share of %.2f uniform, %.2f zipf:1.2, %.2f zipf:2, %.2f hot", u, z, z2, h)
	}
}

// TestParseDist: names are parsed and printed, others refused.
func TestParseDist(t *testing.T) {
	for text, want := range map[string]string{
		"uniform": "uniform", "zipf": "zipf:1.2", "zipf:1.5": "zipf:1.5", "hot": "hot:0.9", "hot:0.5": "hot:0.5", "mix": "mix",
	} {
		if d := dist(t, text); d.String() != want || dist(t, d.String()) != d {
			t.Errorf("%q is %v, want %s", text, d, want)
		}
	}
	for _, text := range []string{"", "Uniform", "uniform:1", "zipf:", "zipf:9", "zipf:nan", "hot:1.5", "hot:-1", "kinds", "zipf:1:2"} {
		if d, err := ParseDist(text); err == nil || !strings.Contains(err.Error(), "zipf[:s]") {
			t.Errorf("%q is %v, %v", text, d, err)
		}
	}
}

func encoded(t testing.TB, s Shape, name string) []byte {
	t.Helper()
	r := routing(t, s)
	NewDraw(dist(t, name), 5, true).Step(r, 1)
	var b bytes.Buffer
	if err := r.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestFile: what is written is read; whatever is cut off, appended or out of bounds is refused.
func TestFile(t *testing.T) {
	s := Shape{3, 2, 4, 2}
	r := routing(t, s)
	NewDraw(dist(t, "zipf:1.25"), 5, true).Step(r, 1)
	b := encoded(t, s, "zipf:1.25")
	got, err := ReadRouting(bytes.NewReader(b))
	if err != nil || !reflect.DeepEqual(got, r) {
		t.Fatalf("%+v, %v, want %+v", got, err, r)
	}
	for n := range b {
		if _, err := ReadRouting(bytes.NewReader(b[:n])); !errors.Is(err, ErrFormat) {
			t.Fatalf("of %d bytes the first %d are read: %v", len(b), n, err)
		}
	}
	ids, weights := fileHead+4*s.Ranks, fileHead+4*s.Ranks+4*s.Ranks*s.Tokens*s.TopK
	for name, at := range map[string]int{
		"magic": 0, "version": 4, "ranks": 11, "tokens": 15, "experts": 19, "top-k": 23, "distribution": 32, "zeros": 63,
		"tokens of a rank": fileHead + 1, "id": ids + 2, "weight": weights + 3, "top-k above experts": 20,
	} {
		bad := bytes.Clone(b)
		bad[at] = 0x7f
		if name == "weight" {
			bad[at-1] = 0xff
		}
		if _, err := ReadRouting(bytes.NewReader(bad)); !errors.Is(err, ErrFormat) {
			t.Errorf("%s is read: %v", name, err)
		}
	}
	if _, err := ReadRouting(bytes.NewReader(append(bytes.Clone(b), 0))); !errors.Is(err, ErrFormat) {
		t.Errorf("a byte after the end is read: %v", err)
	}
	if _, err := ReadRouting(io.MultiReader(bytes.NewReader(b[:70]), broken{})); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("an error of the reader becomes %v", err)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, io.ErrClosedPipe }

// FuzzRead: nothing that is read crashes, takes memory that it did not bring, or is written otherwise than it was read.
func FuzzRead(f *testing.F) {
	f.Add(encoded(f, Shape{3, 2, 4, 2}, "mix"))
	f.Add(encoded(f, Shape{1, 1, 1, 1}, "none"))
	huge := encoded(f, Shape{2, 2, 4, 2}, "hot")[:fileHead]
	copy(huge[8:], []byte{0, 16, 0, 0, 0, 0, 1, 0}) // 4096 ranks, 65536 tokens
	f.Add(huge)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ReadRouting(bytes.NewReader(b))
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatal(err)
			}
			return
		}
		var again bytes.Buffer
		if err := r.Write(&again); err != nil {
			t.Fatal(err)
		}
		// The distribution may be spelled in several ways.
		if got, want := again.Bytes(), b; !bytes.Equal(got[:32], want[:32]) || !bytes.Equal(got[fileHead:], want[fileHead:]) {
			t.Fatal("what was read is written otherwise")
		}
		if next, err := ReadRouting(&again); err != nil || !reflect.DeepEqual(next, r) {
			t.Fatalf("%+v, %v, want %+v", next, err, r)
		}
	})
}
