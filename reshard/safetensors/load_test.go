package safetensors_test

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/moe/numeric"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/safetensors"
)

// number is the value of an element, as BF16: something that depends on its tensor and its index.
func number(name string, i int64) uint16 {
	h := fnv.New64a()
	fmt.Fprint(h, name, i)
	return numeric.BF16(float32(int64(h.Sum64()%2001)-1000) / 128)
}

// numbered is a checkpoint of BF16 tensors.
func numbered(t *testing.T, shapes map[string][]int64) *safetensors.Checkpoint {
	t.Helper()
	dir := t.TempDir()
	var tensors []safetensors.Tensor
	for name, shape := range shapes {
		tensors = append(tensors, safetensors.Tensor{Name: name, DType: reshard.BF16, Shape: shape})
	}
	err := safetensors.Save(dir, tensors, 4000, func(w io.Writer, i int) error {
		n, err := safetensors.Bytes(reshard.U8, tensors[i].Shape)
		var b []byte
		for k := range n {
			b = binary.LittleEndian.AppendUint16(b, number(tensors[i].Name, k))
		}
		if err == nil {
			_, err = w.Write(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := safetensors.Open(os.DirFS(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

const loadLayout = `{
"schema": "hawser-layout/1", "side": "infer",
"meshes": {"m": {"dims": ["tp"], "shape": [2]}},
"tensors": [
  {"name": "embed", "shape": [5, 6], "dtype": "BF16"},
  {"name": "wide", "shape": [7, 3], "dtype": "F32", "codec": {"kind": "cast"}},
  {"name": "m.experts.gate.w", "shape": [4, 3, 8], "dtype": "BF16"},
  {"name": "m.experts.up.w", "shape": [4, 3, 8], "dtype": "BF16"},
  {"name": "m.experts.down.w", "shape": [4, 6, 5], "dtype": "F8_E4M3", "codec": {"kind": "fp8block", "block": [4, 2], "scale": "F8_E8M0"}},
  {"name": "big", "shape": [9, 10], "dtype": "F8_E4M3", "codec": {"kind": "fp8block", "block": [3, 4]}},
  {"name": "qkv", "shape": [12, 2], "dtype": "BF16"}
],
"place": [
  {"match": "embed", "mesh": "m", "placements": ["shard1"], "auto": true},
  {"match": "wide", "mesh": "m", "placements": ["shard0"], "auto": true},
  {"match": "m.experts.down.w", "mesh": "m", "placements": ["shard0"], "auto": true},
  {"match": "big", "mesh": "m", "placements": ["replicate"], "auto": true},
  {"match": "m.experts.gate.w", "mesh": "m", "placements": ["shard0"], "buffer": 1, "offset": 0, "strides": [96, 16, 2]},
  {"match": "m.experts.up.w", "mesh": "m", "placements": ["shard0"], "buffer": 1, "offset": 48, "strides": [96, 16, 2]},
  {"match": "qkv", "mesh": "m", "placements": ["shard1"], "buffer": 1, "offset": 200, "digits": [[2, 4], [3, 16], [2, 2], [2, 8]]}
],
"buffers": [[10000, 300], [10000, 300]],
"aliases": {"embed": "table"}
}`

// Every element of every rank is where the layout says, and has the value of the checkpoint, cast or quantized. Experts that are tensors of
// their own in the checkpoint are found, and so are aliases.
func TestLoad(t *testing.T) {
	shapes := map[string][]int64{"table": {5, 6}, "wide": {7, 3}, "big": {9, 10}, "qkv": {12, 2}}
	for e := range 4 {
		for name, shape := range map[string][]int64{"gate": {3, 8}, "up": {3, 8}, "down": {6, 5}} {
			shapes[fmt.Sprintf("m.experts.%d.%s.w", e, name)] = shape
		}
	}
	c := numbered(t, shapes)
	l, _, err := reshard.ParseLayout(strings.NewReader(loadLayout))
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for rank := range 2 {
		memory := [][]byte{make([]byte, l.Buffers[rank][0]), make([]byte, l.Buffers[rank][1])}
		if err := c.Load(l, rank, memory); err != nil {
			t.Fatal(err)
		}
		for _, f := range l.OnRank(rank) {
			x := l.Tensors[f.Tensor]
			shape, elem := x.Shape, x.DType.Size()
			if f.Scales {
				shape, elem = f.Codec.Blocks(shape), f.Codec.Normal().Scale.Size()
			}
			err := f.Each(shape, elem, func(index []int64, at int64) {
				checked++
				got := memory[f.Buffer][at : at+elem]
				if want := element(x, f, index); string(got) != string(want) {
					t.Errorf("rank %d: %s%v scales %v: % x, want % x", rank, x.Name, index, f.Scales, got, want)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	// All of embed, wide, gate, up and qkv; values and scales of down; twice the values and scales of big.
	if want := 30 + 21 + 96 + 96 + 24 + 120 + 4*2*3 + 2*(90+9); checked != want {
		t.Errorf("%d elements, want %d", checked, want)
	}
	delete(l.Aliases, "embed")
	if err := c.Load(l, 0, [][]byte{make([]byte, 10000), make([]byte, 300)}); err == nil || !strings.Contains(err.Error(), "embed") {
		t.Errorf("a tensor that is missing: %v", err)
	}
	if err := c.Load(l, 0, [][]byte{make([]byte, 10000)}); err == nil {
		t.Errorf("a buffer that is missing")
	}
}

// element is what a rank should have at an index, found in the plainest way.
func element(x reshard.Tensor, f reshard.Fragment, index []int64) []byte {
	name := map[string]string{"embed": "table"}[x.Name]
	if name == "" {
		name = x.Name
	}
	shape := x.Shape
	if strings.Contains(name, ".experts.") {
		name = strings.Replace(name, ".experts.", fmt.Sprintf(".experts.%d.", index[0]), 1)
		shape, index = shape[1:], index[1:]
	}
	at := func(r, c int64) float32 { return numeric.FromBF16(number(name, r*shape[1]+c)) }
	switch {
	case f.Codec.Kind == "cast":
		return binary.LittleEndian.AppendUint32(nil, math.Float32bits(at(index[0], index[1])))
	case f.Codec.Kind != "fp8block":
		return binary.LittleEndian.AppendUint16(nil, number(name, index[0]*shape[1]+index[1]))
	}
	b := [2]int64{int64(f.Codec.Block[0]), int64(f.Codec.Block[1])}
	first := [2]int64{index[0] * b[0], index[1] * b[1]}
	if !f.Scales {
		first = [2]int64{index[0] / b[0] * b[0], index[1] / b[1] * b[1]}
	}
	amax := float32(1e-10)
	for r := first[0]; r < min(shape[0], first[0]+b[0]); r++ {
		for c := first[1]; c < min(shape[1], first[1]+b[1]); c++ {
			amax = max(amax, at(r, c), -at(r, c))
		}
	}
	s := amax / 448
	if f.Codec.Scale == reshard.F8E8M0 {
		s = float32(math.Exp2(math.Ceil(math.Log2(float64(s)))))
	}
	switch {
	case !f.Scales:
		return []byte{numeric.E4M3(at(index[0], index[1]) / s)}
	case f.Codec.Scale == reshard.F8E8M0:
		return []byte{byte(math.Log2(float64(s)) + 127)}
	}
	return binary.LittleEndian.AppendUint32(nil, math.Float32bits(s))
}
