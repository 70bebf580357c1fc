package moebench

import (
	"bytes"
	"hash/crc32"
	"time"

	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/proto"
)

// mode of a rank's backend.
type mode uint8

const (
	whole  mode = iota // works
	bare               // copies nothing: what is sent is what was packed before
	record             // works, and notes what the bare modes need, and what comes
	poison             // bare, and overwrites what has come
	check              // bare, and compares what comes with what was noted
)

// switched is a backend whose lane works or only says that it has, as the benchmark asks between two steps. A group has one lane of it.
type switched struct {
	backend.Backend
	lane *switchedLane
}

// NewLane makes the lane.
func (b *switched) NewLane(s backend.Spec) (backend.Lane, error) {
	l, err := b.Backend.NewLane(s)
	if err != nil {
		return nil, err
	}
	b.lane = &switchedLane{Lane: l, cfg: s.Layout, mem: s.Memory, rows: map[[2]int]uint32{}, offsets: make([]uint32, s.Layout.Local+1)}
	return b.lane, nil
}

// switchedLane is its lane. Owned by the goroutine of the rank, which calls the group's lane, too.
type switchedLane struct {
	backend.Lane
	cfg  *proto.Layout
	mem  backend.Memory
	mode mode

	// Noted: what the stages do again, and checksums of runs by source and expert.
	in    *backend.Input
	out   backend.Output
	y     backend.Tensor
	sum   backend.Reduction
	head  proto.Header
	runs  []backend.Run
	backs []backend.Back
	rows  map[[2]int]uint32
	parts map[[2]int]uint32 // of this step
	back  uint32
	bad   int64

	offsets []uint32 // of the stages
}

// Rebase notes the memory.
func (l *switchedLane) Rebase(m backend.Memory, p backend.Placement) error {
	l.mem = m
	return l.Lane.Rebase(m, p)
}

// Count keeps the plan when nothing is to be done.
func (l *switchedLane) Count(q backend.Queue, seq uint64, in *backend.Input, reuse bool) error {
	if l.mode == record || l.mode == check {
		l.parts = map[[2]int]uint32{}
	}
	if l.mode == record {
		l.runs = l.runs[:0]
	}
	if l.mode == whole || l.mode == record {
		return l.Lane.Count(q, seq, in, reuse)
	}
	l.Flags().Counted.Store(seq)
	return nil
}

// Pack writes headers, if nothing else.
func (l *switchedLane) Pack(q backend.Queue, seq uint64, in *backend.Input, z backend.Quantize, h proto.Header) error {
	if l.mode == whole || l.mode == record {
		l.in, l.head = in, h
		return l.Lane.Pack(q, seq, in, z, h)
	}
	p := l.Plan()
	for rank := range p.Records {
		h.Records, h.Base = p.Records[rank], p.Base[rank]
		at := rank*l.cfg.HeadBytes + int(h.Base)*l.cfg.Dispatch
		l.cfg.PutHeader(l.mem.Send[at:], &h, p.Counts[rank*l.cfg.Local:][:l.cfg.Local])
	}
	l.Flags().Packed.Store(seq)
	return nil
}

// Unpack copies, or looks at what it would copy.
func (l *switchedLane) Unpack(q backend.Queue, seq uint64, runs []backend.Run, out *backend.Output) error {
	if l.mode == record {
		l.out = *out
		l.runs = append(l.runs, runs...)
	}
	if l.mode == record || l.mode == check {
		for i := range runs {
			key := [2]int{runs[i].Src, runs[i].Local}
			l.parts[key] = crc32.Update(l.parts[key], crc32.IEEETable, runs[i].From[:runs[i].N*l.cfg.Dispatch])
		}
	}
	if l.mode == poison {
		for i := range runs {
			if runs[i].Src != l.cfg.Rank { // nobody sends those again
				fill(runs[i].From[:runs[i].N*l.cfg.Dispatch])
			}
		}
	}
	if l.mode == whole || l.mode == record {
		return l.Lane.Unpack(q, seq, runs, out)
	}
	l.Flags().Unpacked.Store(seq)
	return nil
}

// Arrange compares checksums of what has come.
func (l *switchedLane) Arrange(q backend.Queue, seq uint64, moves []backend.Move, counts, offsets []uint32, out *backend.Output) error {
	switch l.mode {
	case record:
		for k, sum := range l.parts {
			l.rows[k] = sum
		}
	case check:
		for k, sum := range l.rows {
			if l.parts[k] != sum {
				l.bad += int64(l.cfg.Dispatch) // of a record at least
			}
		}
	case whole, bare, poison:
	}
	if l.mode == whole || l.mode == record {
		return l.Lane.Arrange(q, seq, moves, counts, offsets, out)
	}
	l.Flags().Arranged.Store(seq)
	return nil
}

// PackCombine copies, or does not.
func (l *switchedLane) PackCombine(q backend.Queue, seq uint64, y backend.Tensor, runs []backend.Back) error {
	if l.mode == record {
		l.y, l.backs = y, append(l.backs[:0], runs...)
	}
	if l.mode == whole || l.mode == record {
		return l.Lane.PackCombine(q, seq, y, runs)
	}
	l.Flags().YPacked.Store(seq)
	return nil
}

// Reduce sums, or looks at what it would sum.
func (l *switchedLane) Reduce(q backend.Queue, seq uint64, r *backend.Reduction) error {
	switch l.mode {
	case record:
		l.sum, l.back = *r, l.results()
	case check:
		if l.results() != l.back {
			l.bad += int64(l.cfg.Combine)
		}
	case poison:
		l.eachResult(fill)
	case whole, bare:
	}
	if l.mode == whole || l.mode == record {
		return l.Lane.Reduce(q, seq, r)
	}
	l.Flags().Reduced.Store(seq)
	return nil
}

// results is the checksum of what other ranks have sent back.
func (l *switchedLane) results() (sum uint32) {
	l.eachResult(func(b []byte) { sum = crc32.Update(sum, crc32.IEEETable, b) })
	return sum
}

func (l *switchedLane) eachResult(f func([]byte)) {
	p := l.Plan()
	for rank, n := range p.Records {
		if rank != l.cfg.Rank {
			f(l.mem.Results[int(p.Base[rank])*l.cfg.Combine:][:int(n)*l.cfg.Combine])
		}
	}
}

// fill poisons.
func fill(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, poisonBytes):]
	}
}

var poisonBytes = bytes.Repeat([]byte{0xa5}, 4096)

// stages does again what was noted, and nothing else, and says how long that took: for dispatch, and for combine. No step is in progress.
func (l *switchedLane) stages() (dispatch, combine time.Duration, err error) {
	f := l.Flags() // numbers stay where they are: the executor goes on from there
	counts := l.Plan().Counts[l.cfg.Rank*l.cfg.Local:][:l.cfg.Local]
	began := time.Now()
	if err = l.Lane.Count(0, f.Counted.Load(), l.in, false); err != nil {
		return 0, 0, err
	}
	if err = l.Lane.Pack(0, f.Packed.Load(), l.in, backend.Quantize{}, l.head); err != nil {
		return 0, 0, err
	}
	if err = l.Lane.Unpack(0, f.Unpacked.Load(), l.runs, &l.out); err != nil {
		return 0, 0, err
	}
	if err = l.Lane.Arrange(0, f.Arranged.Load(), nil, counts, l.offsets, &l.out); err != nil {
		return 0, 0, err
	}
	between := time.Now()
	if err = l.Lane.PackCombine(0, f.YPacked.Load(), l.y, l.backs); err != nil {
		return 0, 0, err
	}
	err = l.Lane.Reduce(0, f.Reduced.Load(), &l.sum)
	return between.Sub(began), time.Since(between), err
}
