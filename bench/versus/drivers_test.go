package versus

import (
	"os/exec"
	"testing"
)

// small cases: the drivers must work; the numbers mean nothing.
func tiny(t *testing.T) []Case {
	t.Helper()
	all, err := Plan(Choice{Sizes: []uint64{64 << 10}, Pool: 1 << 20, Bytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		all[i].Pings = 100
		all[i].Count = min(all[i].Count, 5000)
	}
	return all
}

// TestOursAndMemcpy runs all cases with the drivers that need nothing but a C compiler.
func TestOursAndMemcpy(t *testing.T) {
	if _, err := exec.LookPath("gcc"); err != nil {
		t.Skip("gcc is not installed: drivers in C cannot be built")
	}
	c, env, _ := world(t, "hawser")
	c.Cases = tiny(t)
	c.Peers, _ = Choose([]string{"memcpy"})
	var rows int
	err := Run(t.Context(), c, env, func(r Result) error {
		for _, row := range r.Rows {
			rows++
			if row.Why != "" || len(row.Samples) != c.Rounds || !(row.Value.Min > 0) || row.CorruptBytes != 0 {
				t.Errorf("%s over %s: %+v", r.Case.Name(), r.Case.Path, row)
			}
			if row.Peer == "memcpy" && !(row.Ratio > 0) {
				t.Errorf("%s over %s: no ratio to memcpy", r.Case.Name(), r.Case.Path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if rows <= len(c.Cases) {
		t.Errorf("%d rows of %d cases, want those of memcpy, too", rows, len(c.Cases))
	}
}

// TestDriversFindMissingContent asks for blocks that were never moved.
func TestDriversFindMissingContent(t *testing.T) {
	peers, _ := Choose([]string{"memcpy"})
	for _, name := range []string{"hawser", "memcpy"} {
		t.Run(name, func(t *testing.T) {
			_, env, _ := world(t, "hawser")
			cmd := env.self(Ours)
			if name == "memcpy" {
				if _, err := exec.LookPath("gcc"); err != nil {
					t.Skip("gcc is not installed: drivers in C cannot be built")
				}
				var err error
				if cmd, err = env.command(t.Context(), peers[0], Case{Path: "shm"}, DefaultCongestion); err != nil {
					t.Fatal(err)
				}
			}
			const size, slots, count = 4096, 16, 10
			order := t.TempDir() + "/order"
			if err := writeOrder(order, slots, 1); err != nil {
				t.Fatal(err)
			}
			p, err := start(name, cmd)
			if err != nil {
				t.Fatal(err)
			}
			defer p.end(false)
			ask := func(q request) reply {
				t.Helper()
				a, err := p.ask(t.Context(), q, openLimit)
				if err != nil {
					t.Fatal(err)
				}
				return a
			}
			var first uint64
			ask(request{Op: opOpen, Opening: &Opening{
				Scenario: Pages, Transport: "shm", Size: size, Pool: size * slots, Count: count, Depth: 2, Batch: 3, Pings: 1, Order: order, Seed: 7,
			}})
			ask(request{Op: opRun, First: &first})
			for _, tc := range []struct{ moved, corrupt uint64 }{{count, 0}, {count + 2, 2 * size}, {1 << 40, (slots - count) * size}} {
				if got := ask(request{Op: opVerify, Moved: &tc.moved}).Corrupt; got != tc.corrupt {
					t.Errorf("after %d blocks, %d bytes of %d blocks are wrong, want %d", count, got, tc.moved, tc.corrupt)
				}
			}
		})
	}
}
