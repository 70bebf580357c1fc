package hawser_test

import (
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// load is the machine's load when a benchmark ran: figures of a busy machine say little.
func load(b *testing.B) string {
	b.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		b.Fatal(err)
	}
	return strings.Fields(string(text))[0]
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// report prints quantiles of times that each belong to n operations.
func report(b *testing.B, times []time.Duration, n int) {
	b.Helper()
	slices.Sort(times)
	b.ReportMetric(float64(quantile(times, 0.5))/float64(n), "p50-ns")
	b.ReportMetric(float64(quantile(times, 0.99))/float64(n), "p99-ns")
	b.Logf("load %s", load(b))
}

// nothing is an operation that ends at the worker: the way there and back, and no network.
func nothing(p *pair) hawser.WritePages {
	return hawser.WritePages{Src: hawser.Pages{Region: p.src}, Dst: hawser.RemotePages{Remote: p.rem}}
}

// What a submit costs its caller, by batches of 64 with the worker at work beside it. Goal: 150 ns.
func BenchmarkSubmit(b *testing.B) {
	const batch = 64
	p := newWorld(b, "shm").pair(b, 1, 1, 4096)
	q, done := p.a.NewQueue(batch), make([]hawser.Done, batch)
	write := hawser.Write{Src: p.src.Slice(0, 8), Dst: p.rem.Slice(0, 8), Imm: hawser.Imm(1)}
	none := nothing(p)
	for _, tc := range []struct {
		name   string
		submit func() error
	}{
		{"write", func() error { return q.Write(write, 0) }},
		{"signal", func() error { return q.Signal(hawser.Signal{To: p.rem.Peer(), Imm: 1}, 0) }},
		{"nothing", func() error { return q.WritePages(none, 0) }},
	} {
		b.Run(tc.name, func(b *testing.B) {
			var times []time.Duration
			for b.Loop() {
				start := time.Now()
				for range batch {
					if err := tc.submit(); err != nil {
						b.Fatal(err)
					}
				}
				times = append(times, time.Since(start))
				for open := batch; open > 0; {
					n, err := q.Wait(b.Context(), done)
					if err != nil {
						b.Fatal(err)
					}
					open -= n
				}
			}
			report(b, times, batch)
		})
	}
}

// From submit to the worker and back to a caller that looks for it. Goal: 1 us.
func BenchmarkWorkerRoundTrip(b *testing.B) {
	p := newWorld(b, "shm").pair(b, 1, 1, 4096)
	q, done := p.a.NewQueue(1), make([]hawser.Done, 1)
	none := nothing(p)
	var times []time.Duration
	for b.Loop() {
		start := time.Now()
		if err := q.WritePages(none, 0); err != nil {
			b.Fatal(err)
		}
		for q.Poll(done) == 0 {
		}
		times = append(times, time.Since(start))
	}
	report(b, times, 1)
}

// How the rate of submission changes with the number of goroutines, and what they wait for mutexes meanwhile. Goals: 8
// goroutines reach 0.7 of the rate of one, mutex delay is below 1 % of the time.
func BenchmarkSubmitters(b *testing.B) {
	p := newWorld(b, "shm").pair(b, 1, 1, 4096)
	none := nothing(p)
	queues := make([]*hawser.Queue, 8)
	for i := range queues {
		queues[i] = p.a.NewQueue(256)
	}
	const everyEvent = 1
	before := runtime.SetMutexProfileFraction(everyEvent)
	defer runtime.SetMutexProfileFraction(before)
	var one, eight []float64
	var delay, wall time.Duration
	for b.Loop() {
		one = append(one, rate(b, queues[:1], &none))
		waited, start := mutexDelay(b), time.Now()
		eight = append(eight, rate(b, queues, &none))
		wall += time.Since(start)
		delay += mutexDelay(b) - waited
	}
	slices.Sort(one)
	slices.Sort(eight)
	r1, r8 := one[len(one)/2], eight[len(eight)/2]
	b.ReportMetric(r1/1e6, "one-Mops")
	b.ReportMetric(r8/1e6, "eight-Mops")
	b.ReportMetric(r8/r1, "ratio")
	b.ReportMetric(100*float64(delay)/float64(wall), "mutex-%")
	b.Logf("load %s", load(b))
}

// rate is how many operations a second one goroutine per queue gets through.
func rate(b *testing.B, queues []*hawser.Queue, w *hawser.WritePages) float64 {
	const each = 20000
	var wg sync.WaitGroup
	start := time.Now()
	for _, q := range queues {
		wg.Go(func() {
			done, open := make([]hawser.Done, 64), 0
			for n := 0; n < each; {
				for ; open < 256 && n < each; open, n = open+1, n+1 {
					if err := q.WritePages(*w, 0); err != nil {
						b.Error(err)
						return
					}
				}
				for open > 128 || n == each && open > 0 {
					k, err := q.Wait(b.Context(), done)
					if err != nil {
						b.Error(err)
						return
					}
					open -= k
				}
			}
		})
	}
	wg.Wait()
	return float64(each*len(queues)) / time.Since(start).Seconds()
}

// mutexDelay is how long goroutines of this process have waited for mutexes: the sum over the runtime's mutex profile.
func mutexDelay(b *testing.B) time.Duration {
	b.Helper()
	var text strings.Builder
	if err := pprof.Lookup("mutex").WriteTo(&text, 1); err != nil {
		b.Fatal(err)
	}
	var perSecond, cycles, sum, count float64
	for line := range strings.Lines(text.String()) {
		if _, err := fmt.Sscanf(line, "cycles/second=%g", &perSecond); err == nil {
			continue
		}
		if n, _ := fmt.Sscanf(line, "%g %g @", &cycles, &count); n == 2 {
			sum += cycles
		}
	}
	if perSecond == 0 {
		b.Fatalf("a mutex profile without its unit:\n%s", text.String())
	}
	return time.Duration(sum / perSecond * float64(time.Second))
}
