package weights

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// hang bounds every wait of a test: it guards against hangs and asserts nothing.
const hang = time.Minute

// limit guards a test against hanging.
func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until f returns nil.
func eventually(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.Now().Add(hang)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond) // between two looks
	}
}

// testLog shows what happens when HAWSER_TEST_LOG is set to a level.
func testLog() *slog.Logger {
	var level slog.Level
	if level.UnmarshalText([]byte(os.Getenv("HAWSER_TEST_LOG"))) != nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// network opens engines that reach each other.
type network func(t testing.TB, name string) *hawser.Engine

// networks are shared memory, TCP, and a simulated network that keeps no order and loses what it carries.
var networks = map[string]func() network{
	"shm": func() network { return required("shm") },
	"tcp": func() network { return required("tcp") },
	"sim": func() network {
		f := sim.New(sim.Config{Seed: 1, NICs: 2, Loss: 0.001})
		return func(t testing.TB, name string) *hawser.Engine {
			return openEngine(t, hawser.Options{
				Name: name, Providers: []provider.Provider{f.Provider(name)}, Rails: []hawser.Rail{{Provider: "sim", Device: hawser.AllDevices}},
			})
		}
	},
}

func required(name string) network {
	return func(t testing.TB, engine string) *hawser.Engine {
		return openEngine(t, hawser.Options{Name: engine, Require: name})
	}
}

func onNetworks(t *testing.T, f func(t *testing.T, open network)) {
	for _, name := range []string{"shm", "tcp", "sim"} {
		t.Run(name, func(t *testing.T) { f(t, networks[name]()) })
	}
}

func openEngine(t testing.TB, o hawser.Options) *hawser.Engine {
	t.Helper()
	o.Log = testLog().With("engine", o.Name)
	eng, err := hawser.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), hang)
		defer cancel()
		if err := eng.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return eng
}

func alloc(t testing.TB, eng *hawser.Engine, sizes ...int64) (all []*hawser.Region) {
	t.Helper()
	for _, n := range sizes {
		r, err := eng.Alloc(uint64(max(n, 1)), hawser.MemOptions{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// noise fills memory with bytes that depend on their place and on a seed.
func noise(b []byte, seed uint64) {
	for i := range b {
		b[i] = byte(mix(seed ^ uint64(i)))
	}
}

func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// firstWrong says where two memories differ.
func firstWrong(got, want []byte) error {
	n, first := 0, 0
	for i := range want {
		if got[i] != want[i] {
			if n == 0 {
				first = i
			}
			n++
		}
	}
	if n > 0 {
		return fmt.Errorf("%d bytes are wrong, the first at %d: %#x, want %#x", n, first, got[first], want[first])
	}
	return nil
}
