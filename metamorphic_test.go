package hawser_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
)

var metamorphicSeed = flag.Uint64("metamorphic.seed", 0, "seed of the operations, 0 for a new one")

const (
	fieldSize  = 96 << 10 // bytes of the source, and of the destination
	fieldOps   = 60
	fieldImms  = 5 // different immediates
	maxDegrees = 3 // rails of a side
)

// step is an operation of the list, in terms of offsets.
type step struct {
	kind      string // "write", "pages", "scatter", "signal", "send"
	imm       int    // -1: none
	parts     int
	pin       int    // rail modulo those that there are, -1 for any
	src, dst  uint64 // offsets
	n         uint64 // bytes: of the write, of a page, of a target, of the message
	from, to  []uint32
	fromEvery uint64 // strides
	toEvery   uint64
}

func (s step) String() string {
	switch s.kind {
	case "pages", "scatter":
		return fmt.Sprintf("%s of %d: %d+%v*%d to %d+%v*%d, imm %d, parts %d, rail %d",
			s.kind, s.n, s.src, s.from, s.fromEvery, s.dst, s.to, s.toEvery, s.imm, s.parts, s.pin)
	case "write":
		return fmt.Sprintf("write %d: %d to %d, imm %d, parts %d, rail %d", s.n, s.src, s.dst, s.imm, s.parts, s.pin)
	}
	return fmt.Sprintf("%s %d, imm %d, rail %d", s.kind, s.n, s.imm, s.pin)
}

// touches calls f for each range of the destination.
func (s step) touches(f func(src, dst, n uint64)) {
	switch s.kind {
	case "write":
		f(s.src, s.dst, s.n)
	case "pages", "scatter":
		for i := range s.to {
			f(s.src+uint64(s.from[i])*s.fromEvery, s.dst+uint64(s.to[i])*s.toEvery, s.n)
		}
	}
}

// outcome is what a list of steps leaves behind.
type outcome struct {
	memory   []byte
	counts   [fieldImms]uint64
	messages map[uint64]int // how many of a length
}

// naive is the outcome by the contract, in the simplest way.
func naive(steps []step, src []byte) outcome {
	o := outcome{memory: make([]byte, fieldSize), messages: map[uint64]int{}}
	for _, s := range steps {
		s.touches(func(from, to, n uint64) { copy(o.memory[to:to+n], src[from:from+n]) })
		count := uint64(0)
		switch s.kind {
		case "write":
			count = uint64(max(s.parts, 1))
		case "pages":
			count = uint64(len(s.to))
		case "scatter":
			count = uint64(len(s.to) * max(s.parts, 1))
		case "signal":
			count = 1
		case "send":
			o.messages[s.n]++
		}
		if s.imm >= 0 {
			o.counts[s.imm] += count
		}
	}
	return o
}

// draw makes a list of operations.
func draw(rng *rand.Rand) []step {
	steps := make([]step, fieldOps)
	for i := range steps {
		kinds := []string{"write", "write", "pages", "pages", "scatter", "signal", "send"}
		s := step{kind: kinds[rng.IntN(len(kinds))], imm: rng.IntN(fieldImms+1) - 1, pin: rng.IntN(2*maxDegrees) - maxDegrees}
		s.pin = max(s.pin, -1)
		switch s.kind {
		case "write":
			s.n = rng.Uint64N([]uint64{2, 100, 5000, fieldSize / 2}[rng.IntN(4)])
			s.src, s.dst = rng.Uint64N(fieldSize-s.n), rng.Uint64N(fieldSize-s.n)
			if s.imm >= 0 || rng.IntN(3) == 0 {
				s.parts = rng.IntN(6)
			}
		case "pages", "scatter":
			s.n = rng.Uint64N([]uint64{2, 70, 2000}[rng.IntN(3)])
			if s.kind == "scatter" {
				s.parts = rng.IntN(4)
			}
			s.fromEvery, s.toEvery = rng.Uint64N(s.n+3), s.n+rng.Uint64N(3)
			s.src, s.dst = rng.Uint64N(1000), rng.Uint64N(1000)
			last := int((fieldSize - 1000 - s.n) / (s.n + 3))
			places := rng.Perm(min(last+1, 300)) // pages of one operation must not overlap
			s.to = make([]uint32, rng.IntN(min(len(places), 40)+1))
			s.from = make([]uint32, len(s.to))
			for k := range s.to {
				s.to[k], s.from[k] = uint32(places[k]), uint32(rng.IntN(last+1))
			}
		case "signal":
			s.imm = max(s.imm, 0)
		case "send":
			s.imm, s.n = -1, rng.Uint64N(3000)
		}
		steps[i] = s
	}
	return steps
}

// course is one way to carry out a list.
type course struct {
	network        string
	railsA, railsB int
	batch          int    // operations in flight at most; 1: each is waited for
	maxMsg         uint64 // bytes that the network takes at once, 0 for its own limit
	prepared       bool   // as templates with other arguments
}

func (c course) String() string {
	return fmt.Sprintf("%s, %d x %d rails, batches of %d, network takes %d bytes, prepared %v", c.network, c.railsA, c.railsB, c.batch, c.maxMsg, c.prepared)
}

// short is a network that takes no long writes.
type short struct {
	provider.Domain
	maxMsg uint64
}

func (s short) Caps() provider.Caps {
	c := s.Domain.Caps()
	c.MaxMsg = min(c.MaxMsg, s.maxMsg)
	return c
}

// run carries out a list and returns what it left. An operation that would write where one in flight may still write waits for
// that one: the contract orders nothing.
func (c course) run(t *testing.T, steps []step, src []byte) (o outcome, err error) {
	w := newWorld(t, c.network)
	if c.maxMsg > 0 {
		w = w.wrapped(func(d provider.Domain) provider.Domain { return short{d, c.maxMsg} })
	}
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	var engines [2]*hawser.Engine
	for i, rails := range []int{c.railsA, c.railsB} {
		e, err := hawser.Open(ctx, w.options(i, rails))
		if err != nil {
			return o, err
		}
		defer func() { err = errors.Join(err, e.Close(ctx)) }()
		engines[i] = e
	}
	r := &runner{course: c, a: engines[0], b: engines[1], steps: steps}
	if r.src, err = r.a.Alloc(fieldSize, hawser.MemOptions{Heap: w.heap}); err != nil {
		return o, err
	}
	copy(r.src.Bytes(), src)
	if r.dst, err = r.b.Alloc(fieldSize, hawser.MemOptions{Heap: w.heap}); err != nil {
		return o, err
	}
	if r.rem, err = r.a.Import(ctx, r.dst.Descriptor(r.dst.All(), hawser.RightWrite)); err != nil {
		return o, err
	}
	r.q = r.a.NewQueue(c.batch)
	if err := r.all(ctx); err != nil {
		return o, err
	}
	return r.outcome(ctx)
}

// runner carries out one course.
type runner struct {
	course
	a, b     *hawser.Engine
	src, dst *hawser.Region
	rem      *hawser.Remote
	q        *hawser.Queue
	steps    []step
	flying   []int // steps in flight
}

func (r *runner) all(ctx context.Context) error {
	for i, s := range r.steps {
		for len(r.flying) == r.batch || r.collides(s) {
			if err := r.land(ctx); err != nil {
				return err
			}
		}
		if err := r.submit(s, uint64(i)); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		r.flying = append(r.flying, i)
	}
	for len(r.flying) > 0 {
		if err := r.land(ctx); err != nil {
			return err
		}
	}
	return nil
}

// collides reports whether a step in flight writes where s writes.
func (r *runner) collides(s step) (yes bool) {
	for _, i := range r.flying {
		r.steps[i].touches(func(_, at, n uint64) {
			s.touches(func(_, to, m uint64) { yes = yes || at < to+m && to < at+n })
		})
	}
	return yes
}

// land waits for some ends.
func (r *runner) land(ctx context.Context) error {
	var done [16]hawser.Done
	n, err := r.q.Wait(ctx, done[:])
	for _, d := range done[:n] {
		if d.Err != nil {
			err = errors.Join(err, fmt.Errorf("step %d: %w", d.Cookie, d.Err))
		}
		i := slices.Index(r.flying, int(d.Cookie))
		if i < 0 {
			return fmt.Errorf("step %d ended twice", d.Cookie)
		}
		r.flying = slices.Delete(r.flying, i, i+1)
	}
	return err
}

func (r *runner) submit(s step, cookie uint64) error {
	var imm hawser.OptImm
	if s.imm >= 0 {
		imm = hawser.Imm(uint32(s.imm))
	}
	var pin hawser.OptRail
	if s.pin >= 0 {
		pin = hawser.OnRail(s.pin % r.railsA)
	}
	switch s.kind {
	case "write":
		w := hawser.Write{Src: r.src.Slice(s.src, s.n), Dst: r.rem.Slice(s.dst, s.n), Imm: imm, Parts: s.parts, Pin: pin}
		if !r.prepared {
			return r.q.Write(w, cookie)
		}
		w.Src, w.Dst, w.Imm = r.src.All(), r.rem.All(), hawser.OptImm{}
		return r.submitPrepared(w, cookie, func(a *hawser.Args) { a.SrcOff, a.DstOff, a.Len, a.Imm = s.src, s.dst, s.n, imm })
	case "pages":
		w := hawser.WritePages{
			PageLen: s.n, Imm: imm, Pin: pin,
			Src: hawser.Pages{Region: r.src, Indices: s.from, Stride: s.fromEvery, Offset: s.src},
			Dst: hawser.RemotePages{Remote: r.rem, Indices: s.to, Stride: s.toEvery, Offset: s.dst},
		}
		if !r.prepared {
			return r.q.WritePages(w, cookie)
		}
		w.PageLen, w.Src.Indices, w.Dst.Indices, w.Src.Offset, w.Dst.Offset = 0, nil, nil, 0, 0
		return r.submitPrepared(w, cookie, func(a *hawser.Args) {
			a.SrcOff, a.DstOff, a.Len, a.Imm, a.SrcIndices, a.DstIndices = s.src, s.dst, s.n, imm, s.from, s.to
		})
	case "scatter":
		w := hawser.Scatter{Src: r.src.All(), Imm: imm, Pin: pin}
		var args []hawser.TargetArgs
		s.touches(func(src, dst, n uint64) {
			t := hawser.Target{Dst: r.rem.Slice(dst, n), SrcOff: src, Len: n, Parts: s.parts}
			if r.prepared {
				args = append(args, hawser.TargetArgs{SrcOff: src, DstOff: dst, Len: n})
				t.Dst, t.SrcOff, t.Len = r.rem.All(), 0, 0
			}
			w.Targets = append(w.Targets, t)
		})
		if !r.prepared {
			return r.q.Scatter(w, cookie)
		}
		return r.submitPrepared(w, cookie, func(a *hawser.Args) { a.Targets = args })
	case "signal":
		w := hawser.Signal{To: r.rem.Peer(), Imm: uint32(s.imm), Pin: pin}
		if !r.prepared {
			return r.q.Signal(w, cookie)
		}
		w.Imm++
		return r.submitPrepared(w, cookie, func(a *hawser.Args) { a.Imm = imm })
	}
	return r.q.Send(r.rem.Peer(), make([]byte, s.n), cookie)
}

func (r *runner) submitPrepared(w hawser.Request, cookie uint64, change func(*hawser.Args)) error {
	t, err := r.a.Prepare(w)
	if err != nil {
		return err
	}
	args := t.Args()
	change(&args)
	return r.q.Submit(t, args, cookie)
}

// outcome waits until everything that was counted and said is here.
func (r *runner) outcome(ctx context.Context) (o outcome, err error) {
	want := naive(r.steps, make([]byte, fieldSize))
	o.messages = map[uint64]int{}
	for range r.steps {
		if sum(o.messages) == sum(want.messages) {
			break
		}
		m, err := r.b.Receive(ctx)
		if err != nil {
			return o, err
		}
		o.messages[uint64(len(m.Data))]++
	}
	for i := range o.counts {
		if err := r.b.Counter(uint32(i)).Wait(ctx, want.counts[i]); err != nil {
			return o, err
		}
	}
	// After a fence nothing can come any more.
	from, err := r.b.Connect(ctx, r.a.Addr())
	if err != nil {
		return o, err
	}
	if err := r.b.Fence(ctx, from); err != nil {
		return o, err
	}
	for i := range o.counts {
		o.counts[i] = r.b.Counter(uint32(i)).Load()
	}
	o.memory = bytes.Clone(r.dst.Bytes())
	return o, nil
}

func sum(m map[uint64]int) (n int) {
	for v := range maps.Values(m) {
		n += v
	}
	return n
}

// differs says what differs between two outcomes.
func (o outcome) differs(want outcome) error {
	for i := range want.memory {
		if o.memory[i] != want.memory[i] {
			return fmt.Errorf("byte %d is %#x, want %#x", i, o.memory[i], want.memory[i])
		}
	}
	if o.counts != want.counts {
		return fmt.Errorf("counts %v, want %v", o.counts, want.counts)
	}
	if !maps.Equal(o.messages, want.messages) {
		return fmt.Errorf("messages by length %v, want %v", o.messages, want.messages)
	}
	return nil
}

// shrink drops steps, many at a time at first, as long as what is left still fails.
func shrink(steps []step, fails func([]step) bool) []step {
	for chunk := len(steps) / 2; chunk > 0; {
		dropped := false
		for at := 0; at < len(steps); {
			less := slices.Delete(slices.Clone(steps), at, min(at+chunk, len(steps)))
			if fails(less) {
				steps, dropped = less, true
			} else {
				at += chunk
			}
		}
		if !dropped || chunk > 1 {
			chunk /= 2
		}
	}
	return steps
}

// One list of operations leaves the same memory, counts and messages over every network, whatever the rails of either side, however
// many operations are in flight and however long the writes are that the network takes: those of the simplest model.
func TestSameOperationsSameOutcomeEverywhere(t *testing.T) {
	seed := *metamorphicSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	rng := rand.New(rand.NewPCG(seed, 11))
	steps, src := draw(rng), make([]byte, fieldSize)
	fill(src, rng.Uint64())
	want := naive(steps, src)
	batches, limits := []int{1, 7, fieldOps}, []uint64{0, 1000, 4096}
	for i, network := range hawser.WorldNames() {
		for rails := range maxDegrees * maxDegrees {
			c := course{
				network: network, railsA: rails%maxDegrees + 1, railsB: rails/maxDegrees + 1,
				batch: batches[(i+rails)%3], maxMsg: limits[(i+rails/3+rails)%3],
				prepared: (i+rails)%2 == 1,
			}
			try := func(steps []step, want outcome) error {
				got, err := c.run(t, steps, src)
				if err == nil {
					err = got.differs(want)
				}
				return err
			}
			err := try(steps, want)
			if err == nil {
				continue
			}
			small := shrink(steps, func(s []step) bool { return try(s, naive(s, src)) != nil })
			var list strings.Builder
			for _, s := range small {
				fmt.Fprintf(&list, "\n\t%v", s)
			}
			t.Fatalf("-metamorphic.seed %d: %v: %v; %d of %d operations fail as well (%v):%s",
				seed, c, err, len(small), len(steps), try(small, naive(small, src)), list.String())
		}
	}
}

// The smallest list that fails is found, also when several steps are needed for it.
func TestShrinkFindsTheStepsThatFail(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100 {
		steps := make([]step, fieldOps)
		for i := range steps {
			steps[i].n = uint64(i)
		}
		need := map[uint64]bool{}
		for range 1 + rng.IntN(4) {
			need[rng.Uint64N(fieldOps)] = true
		}
		got := shrink(steps, func(s []step) bool {
			have := 0
			for _, x := range s {
				if need[x.n] {
					have++
				}
			}
			return have == len(need)
		})
		if len(got) != len(need) {
			t.Fatalf("%d steps are left, want %d", len(got), len(need))
		}
	}
}
