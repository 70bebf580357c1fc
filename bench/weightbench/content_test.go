package weightbench

import (
	"testing"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/stage"
)

// dense makes a destination right without a push, by one source that has everything, and returns its memory.
func dense(t *testing.T, k Case, version uint64) (*content, [][]byte) {
	t.Helper()
	k.Src, k.Dst = 1, 1
	src, dst, err := k.Layouts()
	if err != nil {
		t.Fatal(err)
	}
	plan, err := reshard.Compute(t.Context(), src, dst, nil, reshard.Options{})
	if err != nil {
		t.Fatal(err)
	}
	from, err := newContent(src, 0, reshard.Codec{})
	if err != nil {
		t.Fatal(err)
	}
	to, err := newContent(dst, 0, k.codec())
	if err != nil {
		t.Fatal(err)
	}
	source, out := [][]byte{make([]byte, src.Buffers[0][0])}, [][]byte{make([]byte, dst.Buffers[0][0])}
	from.fill(source, version)
	s := plan.Source(0)
	var cpu stage.CPU
	for i := range s.Tasks {
		task := &s.Tasks[i]
		b := source[0]
		if task.Size > 0 {
			b = make([]byte, task.Size)
			if err := cpu.Stage(t.Context(), s, task, source, nil, b); err != nil {
				t.Fatal(err)
			}
		}
		for _, r := range task.Runs {
			copy(out[0][r.Offset:r.Offset+r.Len], b[r.From:])
		}
	}
	return to, out
}

// The comparison counts exactly what is wrong: a byte here and there, another version, a destination that nothing was written to.
func TestWrongBytesAreCounted(t *testing.T) {
	for name, k := range map[string]Case{
		"raw": {Model: "Qwen3-0.6B", Codec: "raw", Layers: []int{1, 1}},
		"fp8": {Model: "Qwen3-0.6B", Codec: "fp8block", Layers: []int{1, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c, memory := dense(t, k, 7)
			if n := c.wrong(memory, 7); n != 0 {
				t.Fatalf("%d bytes of a right destination are wrong", n)
			}
			for i := range c.held {
				h := &c.held[i]
				memory[h.Buffer][h.Offset+volume(h)*h.DType.Size()-1] ^= 0x11
			}
			if n := c.wrong(memory, 7); n != int64(len(c.held)) {
				t.Fatalf("%d bytes are wrong, want %d", n, len(c.held))
			}
			if n := c.wrong(memory, 8); n < int64(len(memory[0]))/4 {
				t.Fatalf("only %d bytes differ from another version", n)
			}
			c.poison(memory)
			if n := c.wrong(memory, 7); n < int64(len(memory[0]))*9/10 {
				t.Fatalf("only %d bytes of a poisoned destination are wrong", n)
			}
		})
	}
}
