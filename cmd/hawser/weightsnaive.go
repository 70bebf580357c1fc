package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/safetensors"
	"github.com/hawser-project/hawser/weights"
	"github.com/hawser-project/hawser/weights/stage"
)

// naive reshards a checkpoint rank by rank, without a plan, to compare receivers with.
type naive struct {
	ckpt *safetensors.Checkpoint
	l    *reshard.Layout
	done map[int]*shard // by rank within the instance: these hold the same
}

// shard is what a rank must hold.
type shard struct {
	root  string
	cells []cell
}

type cell struct {
	sum uint64
	n   int
}

func newNaive(from string, v weights.Version, l *reshard.Layout) (*naive, error) {
	ckpt, err := checkpointAt(from, v)
	if err != nil {
		return nil, err
	}
	return &naive{ckpt, l, map[int]*shard{}}, nil
}

func (n *naive) close() error { return n.ckpt.Close() }

// wrong is how many bytes are in cells that differ, and the root that the rank should have.
func (n *naive) wrong(x *weights.Content) (bytes int64, root string, err error) {
	want, err := n.shard(x.Rank)
	if err != nil {
		return 0, "", err
	}
	if x.Root == want.root {
		return 0, want.root, nil
	}
	for i, c := range want.cells {
		if 8*i+8 > len(x.Cells) || binary.LittleEndian.Uint64(x.Cells[8*i:]) != c.sum {
			bytes += int64(c.n)
		}
	}
	return bytes, want.root, nil
}

func (n *naive) shard(rank int) (*shard, error) {
	if rank >= len(n.l.Buffers) {
		return nil, usage("--layout: it has %d ranks, receiver %d has joined", len(n.l.Buffers), rank)
	}
	index := 0
	for r, instance := range n.l.Topo.Instance {
		if r < rank && instance == n.l.Topo.Instance[rank] {
			index++
		}
	}
	if n.l.Topo.Instance == nil {
		index = rank
	}
	if s := n.done[index]; s != nil {
		return s, nil
	}
	s, err := n.load(rank)
	if err != nil {
		return nil, usage("--from: %w", err)
	}
	n.done[index] = s
	return s, nil
}

// load hashes what a rank would hold.
func (n *naive) load(rank int) (*shard, error) {
	var memory [][]byte
	for _, size := range n.l.Buffers[rank] {
		memory = append(memory, make([]byte, size))
	}
	if err := n.ckpt.Load(n.l, rank, memory); err != nil {
		return nil, err
	}
	held, err := n.l.Held(rank)
	if err != nil {
		return nil, fmt.Errorf("rank %d: %w", rank, err)
	}
	s := &shard{}
	sum := stage.NewRoot()
	sum.Cell = func(sum uint64, n int) { s.cells = append(s.cells, cell{sum, n}) }
	for i := range held {
		h := &held[i]
		name := n.l.Tensors[h.Tensor].Name
		if h.Scales {
			name += " scales"
		}
		sum.Begin(name)
		h.Spans(func(off, n int64) bool {
			sum.Add(memory[h.Buffer][off : off+n])
			return true
		})
	}
	root := sum.Sum()
	s.root = hex.EncodeToString(root[:])
	return s, nil
}
