package reshard

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// smallPair is a pair of layouts with all that plans have: two stages, replicas, blocks that straddle sources, pads, an alias.
func smallPair() (src, dst *Layout) {
	tensors := []Tensor{{"layers.0.a", []int64{10, 6}, BF16}, {"layers.1.b", []int64{7, 4}, BF16}, {"embed", []int64{9}, F32}}
	p := newPacker("train", 4, tensors)
	mesh := Mesh{Dims: []string{"rep", "fsdp"}, Shape: []int{2, 2}}
	for i := range tensors {
		p.grid(Grid{Tensors: []int{i}, Mesh: mesh, Place: []Placement{{Kind: "replicate"}, {Kind: "shard"}}})
	}
	src = p.layout()
	into := slices.Clone(tensors)
	into[0].DType = F8E4M3
	q := newPacker("infer", 2, into)
	codec := Codec{Kind: "fp8block", Block: [2]int{4, 4}}
	whole := []Placement{{Kind: "replicate"}}
	two := Mesh{Shape: []int{2}}
	q.grid(Grid{Tensors: []int{0}, Mesh: two, Place: whole, Codec: codec})
	q.grid(Grid{Tensors: []int{0}, Mesh: two, Place: whole, Codec: codec, Scales: true})
	q.grid(Grid{Tensors: []int{1}, Mesh: two, Place: []Placement{{Kind: "shard", Dim: 1}}})
	q.grid(Grid{Tensors: []int{2}, Mesh: two, Place: whole})
	dst = q.layout()
	dst.Buffers[1][0] += 8
	dst.Pads = []Range{{1, 0, dst.Buffers[1][0] - 8, 8}}
	dst.Aliases = map[string]string{"head": "embed"}
	return src, dst
}

func mustCompute(t testing.TB, src, dst *Layout, rules []Rule, o Options) *Plan {
	t.Helper()
	p, err := Compute(context.Background(), src, dst, rules, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// allSlices encodes every slice of a plan.
func allSlices(p *Plan) (out [][]byte) {
	for r := range p.src.Buffers {
		out = append(out, p.Source(r).Append(nil))
	}
	for r := range p.dst.Buffers {
		out = append(out, p.Dest(r).Append(nil))
	}
	return out
}

func TestPlanFile(t *testing.T) {
	src, dst := smallPair()
	p := mustCompute(t, src, dst, nil, Options{})
	q, err := p.Repair([]int{1}, func(d, stage int) bool { return d == 0 && stage == 1 })
	if err != nil {
		t.Fatal(err)
	}
	for name, p := range map[string]*Plan{"computed": p, "repaired": q} {
		var b bytes.Buffer
		if n, err := p.WriteTo(&b); err != nil || n != int64(b.Len()) {
			t.Fatalf("%s: WriteTo: %d of %d bytes, %v", name, n, b.Len(), err)
		}
		back, err := ReadPlan(bytes.NewReader(b.Bytes()))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if back.ID() != p.ID() || !reflect.DeepEqual(allSlices(p), allSlices(back)) {
			t.Fatalf("%s: what was read differs", name)
		}
		for i := range b.Len() { // any byte that is not as it was is found
			c := slices.Clone(b.Bytes())
			c[i] ^= 1
			if _, err := ReadPlan(bytes.NewReader(c)); !errors.Is(err, ErrFormat) {
				t.Fatalf("%s: byte %d of %d changed: %v", name, i, b.Len(), err)
			}
			if _, err := ReadPlan(bytes.NewReader(b.Bytes()[:i])); !errors.Is(err, ErrFormat) {
				t.Fatalf("%s: cut at byte %d: %v", name, i, err)
			}
		}
	}
	if p.ID() == q.ID() {
		t.Fatal("a repaired plan has the id of the first")
	}
}

// FuzzReadPlan feeds bodies behind a head and a checksum that fit, so that the decoder sees them.
func FuzzReadPlan(f *testing.F) {
	src, dst := smallPair()
	p := mustCompute(f, src, dst, nil, Options{})
	f.Add(append(p.inputs(), 0))
	q, err := p.Repair([]int{3}, nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(q.repairs(append(q.inputs(), 1)))
	f.Fuzz(func(t *testing.T, body []byte) {
		if len(body) > 1<<12 {
			t.Skip("longer than 4 KiB: planning it takes too long")
		}
		p, err := parsePlan(body, ID{})
		if err == nil {
			t.Fatalf("a plan of id 0: %v", p.id)
		}
	})
}

// FuzzParseSlice checks that whatever ParseSlice lets through encodes to the same bytes, if these are canonical, and never panics.
func FuzzParseSlice(f *testing.F) {
	src, dst := smallPair()
	for _, b := range allSlices(mustCompute(f, src, dst, nil, Options{MaxWrite: 16, SmallTensor: 8})) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSlice(b)
		if err != nil {
			if !errors.Is(err, ErrFormat) {
				t.Fatalf("%v is no ErrFormat", err)
			}
			return
		}
		again, err := ParseSlice(s.Append(nil))
		if err != nil || !bytes.Equal(again.Append(nil), s.Append(nil)) {
			t.Fatalf("encoded again: %v", err)
		}
	})
}

// TestSlices decodes the slices of random plans; each is what it was, and passes the checks.
func TestSlices(t *testing.T) {
	src, dst := smallPair()
	for _, b := range allSlices(mustCompute(t, src, dst, nil, Options{})) {
		s, err := ParseSlice(b)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(s.Append(nil), b) {
			t.Fatalf("rank %d, source %v: differs", s.Rank, s.Source)
		}
		for i := range b {
			if _, err := ParseSlice(b[:i]); !errors.Is(err, ErrFormat) {
				t.Fatalf("cut at byte %d of %d: %v", i, len(b), err)
			}
		}
	}
}

// TestPlanDeterministic plans the same on one processor and on all, from layouts that are read again.
func TestPlanDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tensors := []Tensor{{"layers.0.a", []int64{10, 6}, BF16}, {"layers.1.b", []int64{7, 4}, BF16}, {"embed", []int64{9}, F32}}
		src, dst := drawLayout(t, "train", tensors), drawLayout(t, "infer", tensors)
		o := drawOptions(t)
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		one, err := Compute(context.Background(), src, dst, nil, o)
		if err != nil {
			t.Fatal(err)
		}
		want, stats := allSlices(one), one.Stats(NIC{})
		runtime.GOMAXPROCS(4)
		var b bytes.Buffer
		if _, err := one.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		four, err := ReadPlan(&b)
		if err != nil {
			t.Fatal(err)
		}
		if one.ID() != four.ID() || !reflect.DeepEqual(want, allSlices(four)) || !reflect.DeepEqual(stats, four.Stats(NIC{})) {
			t.Fatal("plans differ")
		}
	})
}
