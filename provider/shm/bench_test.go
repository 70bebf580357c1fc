package shm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
)

// Each benchmark runs against a peer on another goroutine and against one in another process. Both sides spin, but for Asleep.
//
//	go test ./provider/shm -run '^$' -bench .

// coldSet is the memory that the page benchmarks move through: many times any cache.
const coldSet = 512 << 20

// bench is a side that writes to a peer that serves.
type bench struct {
	*testing.B
	s        *side
	src, dst provider.Key
	from     []byte // the memory of src
	sleep    bool   // when there is nothing, as the peer does
	cs       [64]provider.Completion
}

// withPeers runs f against both kinds of peer, whose memory and ours has size bytes.
func withPeers(b *testing.B, size int, sleep bool, f func(b *bench)) {
	b.Run("goroutine", func(b *testing.B) {
		x, y := newPair(b)
		span, src := x.memory(size)
		_, dst := y.memory(size)
		var ended atomic.Bool
		result := make(chan error, 1)
		var park *cpu.Parker
		if sleep {
			park = y.bell
		}
		go func() { result <- serve(y.d, y.peer, park, func() bool { return !ended.Load() }) }()
		f(&bench{B: b, s: x, sleep: sleep, src: src, dst: y.grant(dst), from: span.Bytes()})
		ended.Store(true)
		if err := <-result; err != nil {
			b.Fatal(err)
		}
	})
	b.Run("process", func(b *testing.B) {
		x := newSide(b)
		span, src := x.memory(size)
		role := roleServe
		if sleep {
			role = roleSleep
		}
		c := startChild(b, x, role, src, size)
		f(&bench{B: b, s: x, sleep: sleep, src: src, dst: c.key, from: span.Bytes()})
		if err := c.Stop(hangGuard); err != nil {
			b.Fatal(err)
		}
	})
}

// wr is a write of n bytes with an immediate.
func (b *bench) wr(from, to, n int, imm uint32) provider.WR {
	return provider.WR{
		Op: provider.OpWriteImm, Peer: b.s.peer, Imm: imm, Len: uint64(n),
		LocalKey: b.src.ID, LocalAddr: uint64(from), RemoteKey: b.dst.ID, RemoteAddr: b.dst.Base + uint64(to),
	}
}

// post and poll are those of the domain.
func (b *bench) post(wrs []provider.WR) int {
	n, err := b.s.d.Post(wrs)
	if err != nil {
		b.Fatal(err)
	}
	return n
}

func (b *bench) poll() []provider.Completion {
	n, err := b.s.d.Poll(b.cs[:])
	if err != nil {
		b.Fatal(err)
	}
	if n == 0 && b.sleep && !b.s.d.Arm() {
		b.s.bell.Park(parkTime)
	}
	return b.cs[:n]
}

// stream writes total times, 16 at once, and returns when the peer has all immediates: it answers the last.
func (b *bench) stream(total int, next func(i int) provider.WR) {
	var wrs [16]provider.WR
	posted, done, answered := 0, 0, false
	for done < total || !answered {
		n := min(len(wrs), total-posted)
		for i := range n {
			wrs[i] = next(posted + i)
			if posted+i == total-1 {
				wrs[i].Imm = answerImm
			}
		}
		posted += b.post(wrs[:n])
		for _, c := range b.poll() {
			if c.Kind == provider.KindImm {
				answered = true
			} else {
				done++
			}
		}
	}
}

// BenchmarkWriteImm8 is the rate of writes of 8 bytes with an immediate, posted 16 at once.
func BenchmarkWriteImm8(b *testing.B) {
	withPeers(b, 4096, false, func(b *bench) {
		b.ResetTimer()
		b.stream(b.N, func(i int) provider.WR { return b.wr(i%512*8, i%512*8, 8, 0) })
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mop/s")
	})
}

// BenchmarkPingPong8 is a round trip of writes of 8 bytes (the way back carries the immediate only).
func BenchmarkPingPong8(b *testing.B) {
	withPeers(b, 4096, false, func(b *bench) {
		for b.Loop() {
			b.stream(1, func(int) provider.WR { return b.wr(0, 64, 8, 0) })
		}
		b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/2, "ns-one-way")
	})
}

// BenchmarkPingPong8Asleep is the same when both sides sleep: each way wakes an owner.
func BenchmarkPingPong8Asleep(b *testing.B) {
	withPeers(b, 4096, true, func(b *bench) {
		for b.Loop() {
			b.stream(1, func(int) provider.WR { return b.wr(0, 64, 8, 0) })
		}
		b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/2, "ns-one-way")
	})
}

// BenchmarkPages64K writes pages of 64 KiB between random places of cold memory, each with an immediate, and in turn copies
// the same pages with copy. The metrics are the medians of both speeds, and ours divided by that of copy.
func BenchmarkPages64K(b *testing.B) {
	withPeers(b, coldSet, false, func(b *bench) { b.pages(64 << 10) })
}

// BenchmarkPages is the same for other sizes.
func BenchmarkPages(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 32 << 20} {
		b.Run(fmt.Sprintf("%dKiB", size>>10), func(b *testing.B) {
			withPeers(b, coldSet, false, func(b *bench) { b.pages(size) })
		})
	}
}

func (b *bench) pages(size int) {
	pages := coldSet / size
	from, to := rand.Perm(pages), rand.Perm(pages)
	write := func() {
		b.stream(pages, func(i int) provider.WR { return b.wr(from[i]*size, to[i]*size, size, 0) })
	}
	write() // the grant is there afterwards
	mapped := b.s.d.peer(b.s.peer).remote(b.dst.ID).bytes
	plain := func() {
		for i := range pages {
			copy(mapped[to[i]*size:][:size], b.from[from[i]*size:][:size])
		}
	}
	b.compare(write, plain)
}

// compare runs the two in turns; each moves coldSet.
func (b *bench) compare(write, plain func()) {
	write()
	plain()
	var ours, theirs []float64 // seconds
	for b.Loop() {
		start := b.Elapsed()
		write()
		middle := b.Elapsed()
		plain()
		ours, theirs = append(ours, (middle-start).Seconds()), append(theirs, (b.Elapsed()-middle).Seconds())
	}
	slices.Sort(ours)
	slices.Sort(theirs)
	o, t := ours[len(ours)/2], theirs[len(theirs)/2]
	b.ReportMetric(coldSet/o/1e9, "GB/s")
	b.ReportMetric(coldSet/t/1e9, "GB/s-copy")
	b.ReportMetric(t/o, "ratio")
}
