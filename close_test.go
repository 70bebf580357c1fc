package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
)

// mappings are the lines of /proc/self/maps.
func mappings(t testing.TB) []string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(text)), "\n")
}

// shared is how many of this process's mappings are memory that engines have made to share.
func shared(t testing.TB) (n int) {
	t.Helper()
	for _, line := range mappings(t) {
		if strings.Contains(line, "memfd:hawser") {
			n++
		}
	}
	return n
}

// mapping is the line about the mapping that holds the address, empty when there is none.
func mapping(t testing.TB, addr uintptr) string {
	t.Helper()
	for _, line := range mappings(t) {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			t.Fatal(err)
		}
		if from <= addr && addr < to {
			return line
		}
	}
	return ""
}

// Close drains until its deadline; what is in flight then ends with ErrClosed, whoever waits is told, and nothing is left: no
// goroutine, no descriptor, no mapping.
func TestCloseEndsWhatIsInFlight(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		modes(t, func(t *testing.T, m hawser.PollMode) { closeInFlight(t, w, m) })
	})
}

func closeInFlight(t *testing.T, w *world, m hawser.PollMode) {
	goroutines, fds, memory := runtime.NumGoroutine(), countFDs(t), shared(t)
	t.Run("engines", func(t *testing.T) {
		o := w.options(0, 1)
		o.Poll = m
		sp := &spy{Provider: o.Providers[0]}
		o.Providers[0] = sp
		a, err := hawser.Open(testContext(t), o) // this test closes it, and no clean-up
		if err != nil {
			t.Fatal(err)
		}
		b := w.engine(t, 1, 1)
		src, dst := w.alloc(t, a, 4096), w.alloc(t, b, 4096)
		rem, err := a.Import(testContext(t), dst.Descriptor(dst.All(), hawser.RightWrite))
		if err != nil {
			t.Fatal(err)
		}
		wt := watch(t, a, func(uint64, uint64) {})
		words := mapping(t, wt.Addr())

		sp.withhold.Store(uint32(provider.KindWrite)) // no write of a ends any more
		q := a.NewQueue(8)
		var open []*hawser.Transfer
		for range 8 {
			tr, err := a.Write(hawser.Write{Src: src.All(), Dst: rem.All()})
			if err != nil {
				t.Fatal(err)
			}
			open = append(open, tr)
			if err := q.Write(hawser.Write{Src: src.All(), Dst: rem.All()}, 1); err != nil {
				t.Fatal(err)
			}
		}
		waits := make(chan error, 2)
		go func() { waits <- a.Counter(1).Wait(context.Background(), 1) }()
		go func() {
			_, err := a.Receive(context.Background())
			waits <- err
		}()

		deadline, cancel := context.WithTimeout(testContext(t), 20*time.Millisecond)
		defer cancel()
		soon(t, "close", func() {
			if err := a.Close(deadline); err != nil {
				t.Error(err)
			}
		})
		if deadline.Err() == nil {
			t.Error("close did not wait for what was in flight")
		}
		for i, tr := range open {
			select {
			case <-tr.Done():
				if !errors.Is(tr.Err(), hawser.ErrClosed) {
					t.Errorf("transfer %d in flight: %v", i, tr.Err())
				}
			default:
				t.Errorf("transfer %d goes on after close", i)
			}
		}
		done := make([]hawser.Done, 16)
		if n := q.Poll(done); n != 8 || !errors.Is(done[0].Err, hawser.ErrClosed) || !errors.Is(done[7].Err, hawser.ErrClosed) {
			t.Errorf("%d of 8 ends: %v", n, done[:n])
		}
		for range cap(waits) {
			soon(t, "waits end", func() {
				if err := <-waits; !errors.Is(err, hawser.ErrClosed) {
					t.Errorf("a wait on a closed engine: %v", err)
				}
			})
		}
		if _, err := a.Write(hawser.Write{Src: src.All(), Dst: rem.All()}); !errors.Is(err, hawser.ErrClosed) {
			t.Errorf("write on a closed engine: %v", err)
		}
		if mapping(t, wt.Addr()) == words {
			t.Error("a closed engine's words are still there")
		}
	})
	eventually(t, "goroutines, descriptors and mappings are back", func() bool {
		return runtime.NumGoroutine() <= goroutines && countFDs(t) <= fds && shared(t) <= memory
	})
}
