package kvbench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
)

// childEnv makes this program the prefilling process.
const childEnv = "HAWSER_TEST_PREFILLER"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		if err := Serve(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func short(network string) Config {
	return Config{Network: network, Rounds: 1, Short: true, Child: proc.Spec{Name: "prefiller", Env: []string{childEnv + "=1"}}}
}

// maybeNothing are differences and counts, which may be 0 or less.
var maybeNothing = map[string]bool{
	"hidden share": true, "notified p50 - yardstick": true, "requests hit": true, "decoder, resident": true, "prefiller, resident": true,
	"decoder, processor": true, "prefiller, processor": true,
}

// TestRuns runs what belongs to this program, all but the replay, and looks whether there are numbers. All check the bytes themselves.
func TestRuns(t *testing.T) {
	for _, network := range []string{"shm", "tcp"} {
		for _, b := range Benchmarks() {
			if b.ID == "B3" || network == "tcp" && strings.Contains("B4 B5 B6", b.ID) { // which the network does not change
				continue
			}
			t.Run(network+"/"+b.ID, func(t *testing.T) {
				if raced && (network == "tcp" || !strings.Contains("B1 B4 B7", b.ID)) {
					t.Skip("not under the race detector: it has no goroutines that others do not have")
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				rows, err := Run(ctx, b.ID, short(network))
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range rows {
					for _, v := range r.Values {
						if v.Spread.Max <= 0 && !maybeNothing[v.Name] {
							t.Errorf("%s: %s is %v", r.Name, v.Name, v.Spread)
						}
					}
				}
				if len(rows) == 0 {
					t.Error("no rows")
				}
			})
		}
	}
}

// TestCheckSees changes one word of what has arrived.
func TestCheckSees(t *testing.T) {
	s, err := loadShape()
	if err != nil {
		t.Fatal(err)
	}
	p, err := newPair(t.Context(), short("shm"), setup{Shape: s, Tokens: loadTokens}, s, options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	}()
	m, err := p.move(t.Context(), loadTokens, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.check(m.pages, loadTokens, 1); err != nil {
		t.Fatal(err)
	}
	v := p.g.Ranks[0].Views[3][1]
	p.regions[v.Region].Bytes()[v.Base+int64(m.pages[5])*v.Page+8]++
	if p.check(m.pages, loadTokens, 1) == nil {
		t.Error("a wrong byte was not seen")
	}
	if n := len(m.computed); n != p.g.Layers+1 {
		t.Errorf("%d times of %d layers", n, p.g.Layers)
	}
}

// TestUnknown names what there is.
func TestUnknown(t *testing.T) {
	if _, err := Run(t.Context(), "B9", short("shm")); err == nil {
		t.Error("B9 ran")
	}
	c := short("shm")
	c.Rounds = 0
	if _, err := Run(t.Context(), "B1", c); err == nil {
		t.Error("0 rounds ran")
	}
}
