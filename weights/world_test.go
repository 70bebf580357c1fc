package weights

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/stage"
)

// toy is a small model in both shardings.
type toy struct {
	layers    int
	rows      int64 // of a matrix: FSDP cuts them, TP cuts columns of half of the matrices
	cols      int64
	trainers  int
	replicas  int // HSDP: groups of trainers that hold the same
	ranks     int // of an instance
	instances int
	fp8       bool
}

func (m toy) withDefaults() toy {
	for _, x := range []struct {
		at  *int
		def int
	}{{&m.layers, 4}, {&m.trainers, 4}, {&m.replicas, 1}, {&m.ranks, 2}, {&m.instances, 1}} {
		if *x.at == 0 {
			*x.at = x.def
		}
	}
	if m.rows == 0 && m.cols == 0 {
		m.rows, m.cols = 256, 256
	}
	return m
}

func (m toy) names() (names []string) {
	names = append(names, "model.embed_tokens.weight")
	for l := range m.layers {
		names = append(names, fmt.Sprintf("model.layers.%d.mlp.up_proj.weight", l), fmt.Sprintf("model.layers.%d.mlp.down_proj.weight", l))
	}
	return append(names, "lm_head.weight")
}

// source is FSDP over dim 0, replicated replicas times.
func (m toy) source() *reshard.Layout {
	l := &reshard.Layout{Side: "train"}
	g := reshard.Grid{
		Mesh:  reshard.Mesh{Dims: []string{"dp", "fsdp"}, Shape: []int{m.replicas, m.trainers / m.replicas}},
		Place: []reshard.Placement{{Kind: "replicate"}, {Kind: "shard", Dim: 0}},
	}
	piece := (m.rows + int64(m.trainers/m.replicas) - 1) / int64(m.trainers/m.replicas) * m.cols * 2
	for i, name := range m.names() {
		l.Tensors = append(l.Tensors, reshard.Tensor{Name: name, Shape: []int64{m.rows, m.cols}, DType: reshard.BF16})
		g.Tensors, g.Offsets = append(g.Tensors, i), append(g.Offsets, int64(i)*piece)
	}
	l.Grids = []reshard.Grid{g}
	for range m.trainers {
		l.Buffers = append(l.Buffers, []int64{piece * int64(len(l.Tensors))})
	}
	return l
}

// destination is TP over columns for down projections, over rows for the rest, on each instance.
func (m toy) destination() *reshard.Layout {
	l := &reshard.Layout{Side: "infer"}
	dtype, codec, elem := reshard.BF16, reshard.Codec{}, int64(2)
	if m.fp8 {
		dtype, codec, elem = reshard.F8E4M3, reshard.Codec{Kind: "fp8block", Block: [2]int{128, 128}, Scale: reshard.F32}, 1
	}
	grid := func(dim int, scales bool) *reshard.Grid {
		return &reshard.Grid{
			Mesh:  reshard.Mesh{Dims: []string{"dp", "tp"}, Shape: []int{m.instances, m.ranks}},
			Place: []reshard.Placement{{Kind: "replicate"}, {Kind: "shard", Dim: dim}}, Codec: codec, Scales: scales,
		}
	}
	grids := []*reshard.Grid{grid(0, false), grid(1, false), grid(0, true), grid(1, true)}
	piece := m.rows * m.cols / int64(m.ranks) * elem
	blocks := (m.rows + 127) / 128 * ((m.cols + 127) / 128) / int64(m.ranks) * 4
	at := int64(64) // something else is before
	for i, name := range m.names() {
		l.Tensors = append(l.Tensors, reshard.Tensor{Name: name, Shape: []int64{m.rows, m.cols}, DType: dtype})
		k := 0
		if i%2 == 0 {
			k = 1
		}
		put := func(g *reshard.Grid, n int64) {
			g.Tensors, g.Offsets = append(g.Tensors, i), append(g.Offsets, at)
			at += n
		}
		put(grids[k], piece)
		if m.fp8 {
			put(grids[2+k], blocks)
		}
	}
	for _, g := range grids {
		if len(g.Tensors) > 0 {
			l.Grids = append(l.Grids, *g)
		}
	}
	for r := range m.instances * m.ranks {
		l.Buffers = append(l.Buffers, []int64{at + 32})
		l.Topo.Instance = append(l.Topo.Instance, r/m.ranks)
		l.Pads = append(l.Pads, reshard.Range{Rank: r, Offset: at, Len: 32})
	}
	return l
}

// word is an element of a tensor in a version: a BF16 that is a finite number, and depends on everything.
func word(tensor string, index int64, v Version) uint16 {
	h := uint64(len(tensor))
	for _, c := range []byte(tensor) {
		h = h*31 + uint64(c)
	}
	x := mix(h ^ uint64(index)<<20 ^ uint64(v)<<50)
	return uint16(x)&0x807f | uint16(110+x>>16%20)<<7 // exponents 110 to 129
}

// each calls f for every element of a box that has a loop for each dimension.
func each(h *reshard.Held, shape []int64, f func(index, off int64)) {
	if slices.Contains(h.Extent, 0) {
		return
	}
	at := make([]int64, len(shape))
	for {
		index, off := int64(0), h.Offset
		for d := range shape {
			index = index*shape[d] + h.Lo[d] + at[d]
			off += at[d] * h.Stride[d]
		}
		f(index, off)
		d := len(shape) - 1
		for ; d >= 0; d-- {
			if at[d]++; at[d] < h.Extent[d] {
				break
			}
			at[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// fillSource gives a trainer its part of a version.
func fillSource(t testing.TB, l *reshard.Layout, rank int, b []byte, v Version) {
	t.Helper()
	held, err := l.Held(rank)
	if err != nil {
		t.Fatal(err)
	}
	for i := range held {
		tensor := &l.Tensors[held[i].Tensor]
		each(&held[i], tensor.Shape, func(index, off int64) { binary.LittleEndian.PutUint16(b[off:], word(tensor.Name, index, v)) })
	}
}

// wrongBytes compares a rank's memory with a version, of a raw layout.
func wrongBytes(l *reshard.Layout, rank int, b []byte, v Version) error {
	held, err := l.Held(rank)
	if err != nil {
		return err
	}
	n, first := 0, ""
	for i := range held {
		tensor := &l.Tensors[held[i].Tensor]
		each(&held[i], tensor.Shape, func(index, off int64) {
			if got, want := binary.LittleEndian.Uint16(b[off:]), word(tensor.Name, index, v); got != want {
				if n == 0 {
					first = fmt.Sprintf("%s element %d: %#x, want %#x", tensor.Name, index, got, want)
				}
				n++
			}
		})
	}
	if n > 0 {
		return fmt.Errorf("rank %d, v%d: %d elements are wrong, the first: %s", rank, v, n, first)
	}
	return nil
}

// world is a controller, trainers and inference ranks, each on an engine of its own, in this process.
type world struct {
	testing.TB
	model    toy
	open     network
	src, dst *reshard.Layout
	c        *Controller
	ctl      *hawser.Engine
	pubs     []*trainer
	recs     []*rank
}

type trainer struct {
	*Publisher
	eng    *hawser.Engine
	rank   int
	memory []*hawser.Region
}

type rank struct {
	*Receiver
	eng    *hawser.Engine
	o      ReceiverOptions
	memory []*hawser.Region
}

// change adapts what a world is made of.
type change struct {
	controller func(*ControllerOptions)
	publisher  func(*PublisherOptions)
	receiver   func(*ReceiverOptions)
	shadow     bool
}

func newWorld(t testing.TB, open network, m toy, ch change) *world {
	t.Helper()
	m = m.withDefaults()
	return newWorldOf(t, open, m, m.source(), m.destination(), ch)
}

// newWorldOf makes a world of any two layouts.
func newWorldOf(t testing.TB, open network, m toy, src, dst *reshard.Layout, ch change) *world {
	t.Helper()
	w := &world{TB: t, model: m, open: open, src: src, dst: dst}
	w.ctl = open(t, "controller")
	o := ControllerOptions{StateDir: t.TempDir(), Expect: len(src.Buffers) + len(dst.Buffers), Log: testLog().With("who", "controller")}
	if ch.controller != nil {
		ch.controller(&o)
	}
	var err error
	if w.c, err = NewController(w.ctl, o); err != nil {
		t.Fatal(err)
	}
	c := w.c
	t.Cleanup(func() { closeOf(t, c.Close) })
	for r := range src.Buffers {
		w.pubs = append(w.pubs, w.newTrainer(r, ch))
	}
	for r := range dst.Buffers {
		w.recs = append(w.recs, w.newRank(r, ch))
	}
	return w
}

func (w *world) newTrainer(r int, ch change) *trainer {
	w.Helper()
	p := &trainer{eng: w.open(w, fmt.Sprint("trainer-", r)), rank: r}
	p.memory = alloc(w, p.eng, w.src.Buffers[r]...)
	o := PublisherOptions{Controller: w.ctl.Addr(), Rank: r, Layout: w.src, Regions: p.memory, Log: testLog().With("who", fmt.Sprint("publisher ", r))}
	if ch.publisher != nil {
		ch.publisher(&o)
	}
	var err error
	if p.Publisher, err = NewPublisher(p.eng, o); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { closeOf(w, p.Publisher.Close) })
	return p
}

func (w *world) newRank(r int, ch change) *rank {
	w.Helper()
	x := &rank{eng: w.open(w, fmt.Sprint("rank-", r))}
	x.memory = alloc(w, x.eng, w.dst.Buffers[r]...)
	x.o = ReceiverOptions{Controller: w.ctl.Addr(), Rank: r, Layout: w.dst, Regions: x.memory, Log: testLog().With("who", fmt.Sprint("receiver ", r))}
	if ch.shadow {
		x.o.Shadow = alloc(w, x.eng, w.dst.Buffers[r]...)
	}
	if ch.receiver != nil {
		ch.receiver(&x.o)
	}
	var err error
	if x.Receiver, err = NewReceiver(x.eng, x.o); err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { closeOf(w, x.Receiver.Close) })
	return x
}

func closeOf(t testing.TB, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	if err := f(ctx); err != nil {
		t.Error(err)
	}
}

// fill gives all trainers a version.
func (w *world) fill(v Version) {
	for _, p := range w.pubs {
		fillSource(w, w.src, p.rank, p.memory[0].Bytes(), v)
	}
}

// push pushes a version from all trainers, and returns what Update said.
func (w *world) push(v Version) (*Report, error) {
	w.Helper()
	w.fill(v)
	return w.pushFilled(v)
}

func (w *world) pushFilled(v Version) (*Report, error) {
	w.Helper()
	var wg sync.WaitGroup
	errs := make([]error, len(w.pubs))
	ctx, cancel := context.WithCancel(limit(w))
	defer cancel()
	for i, p := range w.pubs {
		wg.Go(func() { _, errs[i] = p.Push(ctx, v, nil) })
	}
	report, err := w.c.Update(limit(w), v)
	if err != nil {
		cancel() // publishers that no epoch took would wait for ever
	}
	wg.Wait()
	if err == nil {
		err = errors.Join(errs...)
	}
	return report, err
}

// mustPush pushes, and checks every byte of every rank.
func (w *world) mustPush(v Version) *Report {
	w.Helper()
	report, err := w.push(v)
	if err != nil {
		w.Fatal(err)
	}
	w.check(v)
	return report
}

// check compares all ranks with a version.
func (w *world) check(v Version) {
	w.Helper()
	for r := range w.recs {
		w.checkRank(r, v)
	}
}

func (w *world) checkRank(r int, v Version) {
	w.Helper()
	x := w.recs[r]
	if s := x.State(); s.Version != v {
		w.Errorf("rank %d serves v%d (%v), want v%d", r, s.Version, s.State, v)
	}
	b := x.Active()[0].Bytes()
	if !w.model.fp8 {
		if err := wrongBytes(w.dst, r, b, v); err != nil {
			w.Error(err)
		}
		return
	}
	want := w.quantized(r, v)
	if err := firstWrong(b, want); err != nil {
		w.Errorf("rank %d, v%d: %v", r, v, err)
	}
}

// quantized is what a rank must hold of a version with FP8 blocks: staged by one source that has all tensors whole.
func (w *world) quantized(r int, v Version) []byte {
	w.Helper()
	one := w.model
	one.trainers, one.replicas = 1, 1
	l := one.source()
	p, err := reshard.Compute(w.Context(), l, w.dst, nil, reshard.Options{})
	if err != nil {
		w.Fatal(err)
	}
	src := make([]byte, l.Buffers[0][0])
	fillSource(w, l, 0, src, v)
	out, slice := make([]byte, w.dst.Buffers[r][0]), p.Source(0)
	var cpu stage.CPU
	for i := range slice.Tasks {
		t := &slice.Tasks[i]
		b := make([]byte, t.Size)
		if err := cpu.Stage(w.Context(), slice, t, [][]byte{src}, nil, b); err != nil {
			w.Fatal(err)
		}
		for _, run := range t.Runs {
			if run.Peer == r {
				copy(out[run.Offset:run.Offset+run.Len], b[run.From:])
			}
		}
	}
	return out
}

var _ = time.Second
