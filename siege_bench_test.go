package hawser_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
)

// siegeWindow is how long the friend's rate is measured at a time.
const siegeWindow = 300 * time.Millisecond

// siegeWarm is how long an attack goes on before its cost is measured.
const siegeWarm = 500 * time.Millisecond

// BenchmarkSiege compares what an attack costs a friend of the attacked engine with what a process costs that burns as much processor
// time as the attacker uses: one iteration measures the friend's rate during both, one after the other. The metrics are medians:
//
//	ratio        the friend's rate during the attack, by that beside the burner: 1 is no difference
//	free         the friend's rate during the attack, by that without either
//	attacker-%   processor time of the attacker, of one processor
func BenchmarkSiege(b *testing.B) {
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		b.Run(strings.ReplaceAll(name, " ", "_"), func(b *testing.B) {
			s := startSiege(b)
			f := s.befriend()
			defer f.stop()
			var ratios, free, shares []float64
			cold := min(b.N-1, 1) // the first of several is not counted
			for i := range b.N + cold {
				alone, _ := f.rate(s.attacker.Pid())
				tell(b, s.attacker, "begin", attack{Name: name, Control: s.info.Control, Desc: s.info.Evil})
				next(b, s.attacker, "begun", nil)
				time.Sleep(siegeWarm) // not for synchronisation: what an attacker gets at once is over
				hit, used := f.rate(s.attacker.Pid())
				tell(b, s.attacker, "end", nil)
				next(b, s.attacker, "ended", nil)
				tell(b, s.attacker, "burn", burning{CPU: used, Within: siegeWindow})
				burnt, _ := f.rate(s.attacker.Pid())
				next(b, s.attacker, "ended", nil)
				if i < cold {
					continue
				}
				ratios, free, shares = append(ratios, hit/burnt), append(free, hit/alone), append(shares, 100*used.Seconds()/siegeWindow.Seconds())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(median(ratios), "ratio")
			b.ReportMetric(median(free), "free")
			b.ReportMetric(median(shares), "attacker-%")
		})
	}
}

// rate measures the friend's rate in bytes per second, and the processor time that a process uses meanwhile.
func (f *friend) rate(pid int) (rate float64, used time.Duration) {
	f.s.Helper()
	before, n, start := processTime(f.s, pid), f.bytes.Load(), time.Now()
	time.Sleep(siegeWindow) // the measurement itself
	took := time.Since(start)
	return float64(f.bytes.Load()-n) / took.Seconds(), processTime(f.s, pid) - before
}

// processTime is the processor time of another process (man clock_getcpuclockid).
func processTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	const cpuClockSched = 2
	var ts unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|cpuClockSched), &ts); err != nil {
		t.Fatal(err)
	}
	return time.Duration(ts.Nano())
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return xs[len(xs)/2]
}

// friend writes as fast as it can.
type friend struct {
	s     *siege
	bytes atomic.Uint64
	end   atomic.Bool
	done  chan error
}

// friendDepth is how many writes are under way.
const friendDepth = 8

func (s *siege) befriend() *friend {
	f := &friend{s: s, done: make(chan error, 1)}
	q := s.friend.NewQueue(friendDepth)
	go func() { f.done <- f.write(q) }()
	return f
}

func (f *friend) write(q *hawser.Queue) error {
	ctx := context.Background() // the engine ends every write
	w := hawser.Write{Src: f.s.src.All(), Dst: f.s.rem.All()}
	var ends [friendDepth]hawser.Done
	for open := 0; ; {
		for ; open < friendDepth && !f.end.Load(); open++ {
			if err := q.Write(w, 0); err != nil {
				return err
			}
		}
		if open == 0 {
			return nil
		}
		n, err := q.Wait(ctx, ends[:])
		for _, d := range ends[:n] {
			err = errors.Join(err, d.Err)
		}
		if err != nil {
			return err
		}
		open -= n
		f.bytes.Add(uint64(n) * w.Src.Len)
	}
}

func (f *friend) stop() {
	f.s.Helper()
	f.end.Store(true)
	if err := <-f.done; err != nil {
		f.s.Error(err)
	}
}
