package cpu

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

var small = shape{ranks: 2, tokens: 6, hidden: 40, topK: 2, experts: 5, in: backend.BF16, x: backend.BF16, wire: backend.BF16, out: backend.F32, meta: true}

// Any shape, any types: each row where it belongs, each sum as declared.
func TestAnyShape(t *testing.T) {
	types := []backend.DType{backend.F32, backend.BF16, backend.F16}
	rapid.Check(t, func(r *rapid.T) {
		pick := func(name string, lo, hi int) int { return rapid.IntRange(lo, hi).Draw(r, name) }
		yes := func(name string) bool { return rapid.Bool().Draw(r, name) }
		s := shape{
			ranks: pick("ranks", 1, 5), tokens: pick("tokens", 1, 20), hidden: pick("hidden", 1, 300), experts: pick("experts", 1, 12),
			wire: types[pick("wire", 0, 2)], out: types[pick("out", 0, 2)], meta: yes("meta"), batched: yes("batched"), columns: yes("columns"),
			align: pick("align", 1, 4), accumulate: yes("accumulate"), bias: pick("bias", 0, 2), rescale: yes("rescale"), procs: pick("procs", 1, 3),
			special: yes("special"), ids: []backend.DType{backend.I32, backend.U32, backend.I64}[pick("ids", 0, 2)],
			gone: []uint64{uint64(pick("gone", 0, 31))},
		}
		s.topK = pick("topK", 1, min(s.experts, 9))
		s.x = types[pick("x", 0, 2)]
		s.in = s.x
		if s.scale = backend.Scaling(pick("scale", 0, 3)); s.scale != backend.NoScale {
			s.in = backend.E4M3
			if yes("quantized before") {
				s.x = backend.E4M3
			}
		}
		w := newWorld(r, s, uint64(pick("seed", 0, 1000)))
		defer w.close()
		r.Log(s)
		w.step(1)
		w.step(2)
	})
}

// What one worker writes is what many write.
func TestWorkersDoNotMatter(t *testing.T) {
	s := dsv3(3, 40)
	s.hidden, s.meta, s.experts = 1000, true, 13
	var first []byte
	for procs := 1; procs < 5; procs++ {
		s.procs = procs
		w := newWorld(t, s, 5)
		w.step(1)
		all := slices.Concat(w.mem[0].Send, w.mem[1].Send, w.mem[2].Results, w.outs[0].X.Data, w.outs[1].XScale.Data, w.mem[1].Y)
		w.close()
		if first == nil {
			first = all
		}
		if !bytes.Equal(all, first) {
			t.Fatalf("%d workers write other bytes than one", procs)
		}
	}
}

// Lanes of one backend work at the same time.
func TestLanesAtOnce(t *testing.T) {
	s := dsv3(4, 64)
	s.hidden, s.procs = 1024, 3
	w := newWorld(t, s, 2)
	defer w.close()
	want := newWorld(t, s, 2)
	defer want.close()
	for seq := range uint64(4) {
		seq++
		for r := range w.ranks { // the same noise, so that even what is behind the last record is equal
			copy(w.mem[r].Send, want.mem[r].Send)
		}
		var all sync.WaitGroup
		for r := range w.ranks {
			all.Go(func() {
				in := &w.ins[r]
				if err := w.lanes[r].Count(0, seq, in, false); err != nil {
					t.Error(err)
				}
				h := proto.Header{View: 3, Step: seq, Source: r, Tokens: uint32(in.N)}
				if err := w.lanes[r].Pack(0, seq, in, backend.Quantize{On: true}, h); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		want.send(seq, false)
		for r := range w.ranks {
			if !bytes.Equal(w.mem[r].Send, want.mem[r].Send) {
				t.Fatalf("step %d: rank %d wrote other records than alone", seq, r)
			}
		}
	}
}

// Ids that name no expert are named by token and column, and leave the plan as it was.
func TestCountRefuses(t *testing.T) {
	w := newWorld(t, small, 3)
	defer w.close()
	w.send(1, false)
	lane := w.lanes[0]
	in := w.ins[0]
	for _, c := range []struct {
		name string
		typ  backend.DType
		id   uint64
	}{
		{"too large", backend.I32, 5},
		{"-2", backend.I32, 0xfffffffe},
		{"u32", backend.U32, 5},
		{"u32 max-1", backend.U32, 0xfffffffe},
		{"i64", backend.I64, 1 << 32},
		{"i64 -2", backend.I64, ^uint64(1)},
		{"i64 of u32's none", backend.I64, 0xffffffff},
	} {
		bad := in
		bad.N = 3
		bad.IDs = w.tensor(c.typ, 3, 2)
		clear(bad.IDs.Data)
		size := sizeOf(c.typ)
		copy(bad.IDs.Data[(2*2+1)*size:][:size], le.AppendUint64(nil, c.id))
		err := lane.Count(0, 2, &bad, false)
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "token 2, column 1") {
			t.Fatalf("%s: %v", c.name, err)
		}
		if lane.Flags().Counted.Load() != 1 {
			t.Fatalf("%s: counted", c.name)
		}
	}
	for name, change := range map[string]func(*backend.Input){
		"tokens":   func(in *backend.Input) { in.N = 7 },
		"negative": func(in *backend.Input) { in.N = -1 },
		"type":     func(in *backend.Input) { in.IDs.Type = backend.F32 },
		"none":     func(in *backend.Input) { in.IDs = backend.Tensor{} },
		"columns":  func(in *backend.Input) { in.IDs.Shape[2] = 3 },
		"rows":     func(in *backend.Input) { in.IDs.Shape[1] = in.N - 1 },
		"short":    func(in *backend.Input) { in.IDs.Data = in.IDs.Data[:len(in.IDs.Data)-1] },
		"stride":   func(in *backend.Input) { in.IDs.Stride = [3]int{0, -8, 4} },
	} {
		bad := in
		change(&bad)
		if err := lane.Count(0, 2, &bad, false); !errors.Is(err, hawser.ErrInvalid) {
			t.Fatalf("%s: %v", name, err)
		}
	}
	if err := lane.Count(0, 2, &in, true); err != nil {
		t.Fatalf("the plan is gone: %v", err)
	}
}

// All ids of 32 bits that are no expert, and the whole type's -1, have no slot.
func TestNoExpert(t *testing.T) {
	w := newWorld(t, small, 3)
	defer w.close()
	for _, typ := range []backend.DType{backend.I32, backend.U32, backend.I64} {
		in := w.ins[0]
		in.IDs = w.tensor(typ, in.N, 2)
		for i := range in.IDs.Data {
			in.IDs.Data[i] = 0xff
		}
		if err := w.lanes[0].Count(0, 1, &in, false); err != nil {
			t.Fatal(err)
		}
		if p := w.lanes[0].Plan(); len(p.Token) != 0 || slices.ContainsFunc(p.Slot, func(s uint32) bool { return s != backend.NoSlot }) {
			t.Fatalf("type %d: %+v", typ, p)
		}
	}
}

// A plan is used again for the same ids only, of the same number of tokens, and not after Rebase.
func TestReuse(t *testing.T) {
	w := newWorld(t, small, 4)
	defer w.close()
	w.send(1, false)
	before := bytes.Clone(w.mem[0].Send)
	w.send(2, true)
	if h, err := w.cfg[0].ParseHeader(w.mem[0].Send[:w.cfg[0].HeadBytes]); err != nil || h.Step != 2 {
		t.Fatal(h, err)
	}
	w.send(1, true)
	if !bytes.Equal(before, w.mem[0].Send) {
		t.Fatal("a plan that is used again packs other bytes")
	}
	lane, in := w.lanes[0], w.ins[0]
	in.IDs.Data = bytes.Clone(in.IDs.Data)
	in.IDs.Data[4] ^= 1
	if in.IDs.Data[4] > 4 {
		in.IDs.Data[4], in.IDs.Data[5], in.IDs.Data[6], in.IDs.Data[7] = 0, 0, 0, 0
	}
	if err := lane.Count(0, 3, &in, true); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("other ids: %v", err)
	}
	in = w.ins[0]
	in.N--
	if err := lane.Count(0, 3, &in, true); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("fewer tokens: %v", err)
	}
	if err := lane.Count(0, 3, &w.ins[0], true); err != nil {
		t.Fatal(err)
	}
	if err := lane.Rebase(w.mem[0], backend.Placement{}); err != nil {
		t.Fatal(err)
	}
	if err := lane.Count(0, 3, &w.ins[0], true); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("after Rebase: %v", err)
	}
	if err := lane.Reduce(0, 1, &backend.Reduction{}); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("reduce after Rebase: %v", err)
	}
	if err := lane.Pack(0, 3, &w.ins[0], backend.Quantize{}, proto.Header{}); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatalf("pack after Rebase: %v", err)
	}
}

// Tensors that do not fit are refused, before anything is written.
func TestRefuses(t *testing.T) {
	s := small
	s.scale, s.in = backend.F32x128, backend.E4M3
	w := newWorld(t, s, 9)
	defer w.close()
	w.step(1)
	lane := w.lanes[0]
	refused := func(name string, err error) {
		t.Helper()
		if !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	input := func(name string, q backend.Quantize, change func(*backend.Input)) {
		t.Helper()
		in := w.ins[0]
		change(&in)
		refused("pack, "+name, lane.Pack(0, 2, &in, q, proto.Header{}))
	}
	on := backend.Quantize{On: true}
	input("tokens", on, func(in *backend.Input) { in.N-- })
	input("type", on, func(in *backend.Input) { in.X.Type = backend.E4M3 })
	input("not quantized", backend.Quantize{}, func(*backend.Input) {})
	input("hidden", on, func(in *backend.Input) { in.X.Shape[2]-- })
	input("short", on, func(in *backend.Input) { in.X.Data = in.X.Data[:len(in.X.Data)/2] })
	input("rows", on, func(in *backend.Input) { in.X.Shape[1]-- })
	input("gaps", on, func(in *backend.Input) { in.X.Stride[2] = 4 })
	input("weights", on, func(in *backend.Input) { in.Weights = backend.Tensor{} })
	input("floor", backend.Quantize{On: true, Floor: -1}, func(*backend.Input) {})
	input("floor NaN", backend.Quantize{On: true, Floor: float32(nan)}, func(*backend.Input) {})
	input("no scales", backend.Quantize{}, func(in *backend.Input) { in.X = w.tensor(backend.E4M3, in.N, w.hidden) })

	output := func(name string, change func(*backend.Output)) {
		t.Helper()
		runs, counts, offsets := w.runs(0)
		out := w.outs[0]
		change(&out)
		refused("unpack, "+name, lane.Unpack(0, 2, runs, &out))
		refused("arrange, "+name, lane.Arrange(0, 2, nil, counts, offsets, &out))
	}
	output("type", func(o *backend.Output) { o.X.Type = backend.BF16 })
	output("none", func(o *backend.Output) { o.X = backend.Tensor{} })
	output("short", func(o *backend.Output) { o.X.Data = o.X.Data[1:] })
	output("scales", func(o *backend.Output) { o.XScale.Type = backend.E8M0 })
	output("scales short", func(o *backend.Output) { o.XScale.Shape[1]-- })
	output("ranks", func(o *backend.Output) { o.SrcRank.Type = backend.F32 })
	output("ranks short", func(o *backend.Output) { o.SrcRank.Data = o.SrcRank.Data[1:] })
	output("batched", func(o *backend.Output) { o.X.Shape[0] = 2 })
	runs, counts, offsets := w.runs(0)
	for name, change := range map[string]func(*backend.Run){
		"row": func(r *backend.Run) { r.Row = 1 << 20 }, "negative row": func(r *backend.Run) { r.Row = -1 }, "n": func(r *backend.Run) { r.N = -1 },
		"from": func(r *backend.Run) { r.From = r.From[1:] }, "local": func(r *backend.Run) { r.Local = w.cfg[0].Local },
	} {
		bad := slices.Clone(runs)
		change(&bad[len(bad)-1])
		refused("run, "+name, lane.Unpack(0, 2, bad, &w.outs[0]))
	}
	refused("move", lane.Arrange(0, 2, []backend.Move{{From: 0, To: 1, N: 1}}, counts, offsets, &w.outs[0]))
	refused("move beyond", lane.Arrange(0, 2, []backend.Move{{From: 1 << 20, N: 1}}, counts, offsets, &w.outs[0]))
	out := w.outs[0]
	out.Counts.Type = backend.F32
	refused("counts", lane.Arrange(0, 2, nil, counts, offsets, &out))
	out = w.outs[0]
	out.ZeroPadding = true
	refused("padding", lane.Arrange(0, 2, nil, counts, append(slices.Clone(offsets[:len(offsets)-1]), 1<<20), &out))

	refused("few counts", lane.Arrange(0, 2, nil, counts[1:], offsets, &out))
	refused("few offsets", lane.Arrange(0, 2, nil, counts, offsets[1:], &out))

	y := w.y[0]
	for name, b := range map[string]backend.Back{"slot": {N: 1, Slot: 1 << 20}, "row": {N: 1, Row: 1 << 20}, "local": {N: 1, Local: 9}, "n": {N: -1}} {
		refused("back, "+name, lane.PackCombine(0, 2, y, []backend.Back{b}))
	}
	y.Type = backend.E4M3
	refused("y", lane.PackCombine(0, 2, y, []backend.Back{{N: 1}}))

	sum := func(name string, change func(*backend.Reduction)) {
		t.Helper()
		r := backend.Reduction{Out: w.tensor(backend.F32, w.ins[0].N, w.hidden), Weights: w.ins[0].Weights}
		change(&r)
		refused("reduce, "+name, lane.Reduce(0, 2, &r))
	}
	sum("type", func(r *backend.Reduction) { r.Out.Type = backend.E5M2 })
	sum("rows", func(r *backend.Reduction) { r.Out.Shape[1]-- })
	sum("weights", func(r *backend.Reduction) { r.Weights.Type = backend.BF16 })
	sum("weights short", func(r *backend.Reduction) { r.Weights.Shape[1]-- })
	sum("bias", func(r *backend.Reduction) { r.Bias = []backend.Tensor{{}} })
	sum("gone", func(r *backend.Reduction) { r.Gone = []uint64{} })
	if f := lane.Flags(); f.Packed.Load() != 1 || f.Unpacked.Load() != 1 || f.Arranged.Load() != 1 || f.YPacked.Load() != 1 || f.Reduced.Load() != 1 {
		t.Fatal("something that was refused has set its flag")
	}
}

var nan = func() float64 { var z float64; return z / z }()

func TestNewLaneRefuses(t *testing.T) {
	w := newWorld(t, small, 1)
	defer w.close()
	good := backend.Spec{Layout: &w.cfg[0], In: backend.BF16, Wire: backend.BF16, Memory: w.mem[0]}
	for name, change := range map[string]func(*backend.Spec){
		"scale":     func(s *backend.Spec) { s.Scale = backend.F32x128 },
		"scaling":   func(s *backend.Spec) { s.Scale = 9 },
		"in":        func(s *backend.Spec) { s.In = backend.F32 },
		"in none":   func(s *backend.Spec) { s.In = backend.None },
		"in ids":    func(s *backend.Spec) { s.In = backend.I32 },
		"wire":      func(s *backend.Spec) { s.Wire = backend.F32 },
		"wire fp8":  func(s *backend.Spec) { s.Wire = backend.E4M3 },
		"send":      func(s *backend.Spec) { s.Memory.Send = s.Memory.Send[1:] },
		"results":   func(s *backend.Spec) { s.Memory.Results = nil },
		"y":         func(s *backend.Spec) { s.Memory.Y = s.Memory.Y[1:] },
		"placement": func(s *backend.Spec) { s.Place.Of = []uint32{0, 0} },
	} {
		s := good
		change(&s)
		if _, err := w.b.NewLane(s); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(-1); !errors.Is(err, hawser.ErrInvalid) {
		t.Fatal(err)
	}
}

// Rows move to the front with all that is said of them.
func TestMoves(t *testing.T) {
	for _, batched := range []bool{false, true} {
		s := small
		s.tokens, s.scale, s.in, s.batched, s.columns = 30, backend.UE8M0x32, backend.E4M3, batched, true
		w := newWorld(t, s, 6)
		w.send(1, false)
		w.receive(1, false)
		n := len(w.rows[0][1])
		if n < 8 {
			t.Fatalf("expert 1 has %d rows", n)
		}
		first := w.base[0][1]
		moves := []backend.Move{{Local: 1, From: first + 3, To: first, N: 2}, {Local: 1, From: first + 6, To: first + 2, N: n - 6}}
		if err := w.lanes[0].Arrange(0, 2, moves, make([]uint32, w.cfg[0].Local), make([]uint32, w.cfg[0].Local+1), &w.outs[0]); err != nil {
			t.Fatal(err)
		}
		left := append(slices.Clone(w.rows[0][1][3:5]), w.rows[0][1][6:]...)
		for i, o := range left {
			w.checkRow(0, 1, first+i, o)
		}
		w.close()
	}
}

// Where all weight is missing, what is left is not divided by it.
func TestRescaleByNothing(t *testing.T) {
	s := small
	s.gone, s.rescale = []uint64{2}, true
	w := newWorld(t, s, 2)
	defer w.close()
	ids, weights := w.ins[0].IDs.Data, w.ins[0].Weights.Data
	le.PutUint32(ids, 4) // of rank 1
	le.PutUint32(ids[4:], 0)
	le.PutUint32(weights[4:], 0)
	w.step(1)
}

// Abort ends a call that is under way, and all that follow, with its cause, until Rebase.
func TestAbort(t *testing.T) {
	s := dsv3(1, 64)
	s.procs = 2
	w := newWorld(t, s, 1)
	defer w.close()
	w.send(1, false)
	cause := errors.New("told to stop")
	begun, ended := make(chan struct{}), make(chan error)
	go func() {
		close(begun)
		for seq := uint64(2); ; seq++ {
			if err := w.lanes[0].Pack(0, seq, &w.ins[0], backend.Quantize{On: true}, proto.Header{}); err != nil {
				ended <- err
				return
			}
		}
	}()
	<-begun
	start := time.Now()
	w.lanes[0].Abort(cause)
	w.lanes[0].Abort(errors.New("too late to be the cause"))
	if err := <-ended; !errors.Is(err, cause) {
		t.Fatal(err)
	}
	if d := time.Since(start); d > 100*time.Millisecond {
		t.Fatalf("ended after %v", d)
	}
	lane := w.lanes[0]
	for name, err := range map[string]error{
		"count": lane.Count(0, 9, &w.ins[0], false), "unpack": lane.Unpack(0, 9, nil, &backend.Output{}), "arrange": lane.Arrange(0, 9, nil, nil, nil, &backend.Output{}),
		"pack results": lane.PackCombine(0, 9, backend.Tensor{}, nil), "reduce": lane.Reduce(0, 9, &backend.Reduction{}),
	} {
		if !errors.Is(err, cause) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := lane.Rebase(w.mem[0], backend.Placement{}); err != nil {
		t.Fatal(err)
	}
	w.send(9, false)
}

// stuck is work whose parts end when it is stopped, and not before.
type stuck struct {
	begun chan struct{}
	once  sync.Once
	stop  chan struct{}
}

func (s *stuck) part(int, *scratch) {
	s.once.Do(func() { close(s.begun) })
	<-s.stop
}

func (s *stuck) stopped() bool {
	select {
	case <-s.stop:
		return true
	default:
		return false
	}
}

// A job that is stopped ends when those parts do that were begun: the rest is not begun, and whoever helps is waited for.
func TestPoolStops(t *testing.T) {
	var p pool
	p.start(3)
	defer p.close()
	work := &stuck{begun: make(chan struct{}), stop: make(chan struct{})}
	j := &job{work: work}
	j.done.L = &p.mu
	ended := make(chan struct{})
	go func() {
		p.run(j, 1_000_000, 3, newScratch())
		close(ended)
	}()
	<-work.begun
	close(work.stop)
	<-ended
	if n := j.inside.Load(); n != 0 {
		t.Fatalf("%d workers are inside", n)
	}
	if n := j.next.Load(); n > 100 {
		t.Fatalf("%d parts were begun", n)
	}
}

// slow is work of two parts: the one that a worker takes ends long after the caller's.
type slow struct {
	caller *scratch
	first  chan struct{} // the worker has begun
	done   atomic.Bool
}

func (w *slow) part(_ int, s *scratch) {
	if s == w.caller {
		<-w.first
		return
	}
	close(w.first)
	for end := time.Now().Add(20 * time.Millisecond); time.Now().Before(end); runtime.Gosched() {
	}
	w.done.Store(true)
}

func (w *slow) stopped() bool { return false }

// A call does not return, nor Close, while a worker is in a part of it.
func TestPoolWaits(t *testing.T) {
	for _, closing := range []bool{false, true} {
		var p pool
		p.start(1)
		for idle := 0; idle == 0; runtime.Gosched() {
			p.mu.Lock()
			idle = p.idle
			p.mu.Unlock()
		}
		work := &slow{caller: newScratch(), first: make(chan struct{})}
		j := &job{work: work}
		j.done.L = &p.mu
		ended := make(chan struct{})
		go func() {
			p.run(j, 2, 1, work.caller)
			close(ended)
		}()
		<-work.first
		if closing {
			p.close()
		} else {
			<-ended
		}
		if !work.done.Load() {
			t.Fatalf("closing %v: returned before a worker", closing)
		}
		<-ended
		p.close()
	}
}

// Every byte of a record is written, padding too: it does not carry what was there before.
func TestRecordsAreWhole(t *testing.T) {
	s := small
	s.hidden, s.scale, s.in = 41, backend.UE8M0x32, backend.E4M3
	var before [][]byte
	for _, fill := range []byte{0, 0xff} {
		w := newWorld(t, s, 8)
		for r := range w.mem {
			for _, b := range [][]byte{w.mem[r].Send, w.mem[r].Results, w.mem[r].Y} {
				for i := range b {
					b[i] = fill
				}
			}
		}
		w.send(1, false)
		w.receive(1, false)
		w.answer(1, backend.F32)
		var after [][]byte
		for r := range w.mem {
			n, l := len(w.lanes[r].plan.Token), &w.cfg[r]
			after = append(after, w.mem[r].Send[:l.MaxRanks*l.HeadBytes+n*l.Dispatch], w.mem[r].Results[:n*l.Combine])
		}
		w.close()
		for i := range before {
			if !bytes.Equal(before[i], after[i]) {
				t.Fatalf("region %d depends on what was there", i)
			}
		}
		before = after
	}
}

// Close waits for the workers; what comes later is refused, also with a call under way.
func TestClose(t *testing.T) {
	s := dsv3(1, 64)
	s.procs = 3
	before := runtime.NumGoroutine()
	w := newWorld(t, s, 1)
	w.send(1, false)
	ended := make(chan error)
	go func() {
		for seq := uint64(2); ; seq++ {
			if err := w.lanes[0].Pack(0, seq, &w.ins[0], backend.Quantize{On: true}, proto.Header{}); err != nil {
				ended <- err
				return
			}
		}
	}()
	w.close()
	if err := <-ended; !errors.Is(err, hawser.ErrClosed) {
		t.Fatal(err)
	}
	if err := w.lanes[0].Close(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}
