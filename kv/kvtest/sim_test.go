package kvtest

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var (
	simSeed  = flag.Uint64("kvsim.seed", 0, "run only the scenario of this seed, and tell what happens")
	simFile  = flag.String("kvsim.file", "", "run only the scenario in this file, and tell what happens")
	simTime  = flag.Duration("kvsim.time", 3*time.Second, "for how long random scenarios are tried")
	simRuns  = flag.Int("kvsim.runs", 1<<30, "how many random scenarios are tried at most")
	simBase  = flag.Uint64("kvsim.base", 0, "the first seed; 0: at random")
	simCover = flag.Bool("kvsim.cover", false, "print what was seen")
	simKeep  = flag.String("kvsim.keep", "", "folder for the scenario that failed")
)

// TestSeeds runs scenarios that have failed before.
func TestSeeds(t *testing.T) {
	files, err := filepath.Glob("testdata/seeds/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		sc := load(t, name)
		if _, f := Run(sc, nil); f != nil {
			t.Errorf("%s: %v\nrepeat with -kvsim.file %s", name, f, name)
		}
	}
}

func load(t *testing.T, name string) *Scenario {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	sc := new(Scenario)
	if err := json.Unmarshal(data, sc); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return sc
}

// TestSimulator runs random scenarios.
func TestSimulator(t *testing.T) {
	switch {
	case *simSeed != 0:
		tell(t, Random(*simSeed))
		return
	case *simFile != "":
		tell(t, load(t, *simFile))
		return
	}
	base := *simBase
	if base == 0 {
		base = rand.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(1000)) // little lives, much is made
	total, cover := totals{}, NewCoverage()
	began := time.Now()
	for time.Since(began) < *simTime && total.runs < *simRuns {
		seed := base + uint64(total.runs)
		r, f := Run(Random(seed), cover)
		if f != nil {
			t.Fatal(report(seed, f))
		}
		total.add(r)
		if total.runs%10000 == 0 {
			fmt.Printf("kvsim: %d schedules after %.0f s\n", total.runs, time.Since(began).Seconds())
		}
	}
	fmt.Printf("kvsim: %v, %.0f a second\n", total, float64(total.runs)/time.Since(began).Seconds())
	if *simCover {
		for line := range strings.Lines(cover.String()) {
			fmt.Print("kvsim: ", line)
		}
	}
	if total.runs > 100 && (total.ready < total.runs || total.ended < total.runs/4) {
		t.Errorf("too few requests came to either end: this tests nothing")
	}
}

// TestRunsRepeat runs scenarios twice: the same must happen, or no failure could be run again.
func TestRunsRepeat(t *testing.T) {
	base := rand.Uint64()
	for i := range uint64(20) {
		one, _ := Tell(Random(base + i))
		two, _ := Tell(Random(base + i))
		if one != two {
			t.Errorf("seed %d: two runs differ", base+i)
		}
	}
}

// TestShrink has a scenario made smaller of which one request is enough to fail.
func TestShrink(t *testing.T) {
	base := rand.Uint64()
	for i := range uint64(200) {
		sc := Random(base + i)
		sc.Net.Corrupt, sc.Digests = 0, false
		if len(sc.Requests) < 4 || len(sc.Faults) < 2 {
			continue
		}
		bad := func(s *Scenario) *Failure { // a condition that needs one request of many
			for _, r := range s.Requests {
				if r.Tokens > 3 {
					return &Failure{Invariant: "test"}
				}
			}
			return nil
		}
		if bad(sc) == nil {
			continue
		}
		small, f := shrink(sc, bad(sc), 2000, bad)
		if f == nil || len(small.Requests) != 1 || len(small.Faults) != 0 || small.Net != (Net{SlowFor: sc.Net.SlowFor}) {
			t.Errorf("seed %d: what is left is not small: %+v", base+i, small)
		}
		return
	}
	t.Error("no scenario is large enough")
}

type totals struct {
	runs, events, messages, landed, attempts, fences, ready, ended, refused, hits int
	time                                                                          time.Duration
}

func (n *totals) add(r Result) {
	n.runs++
	n.events += r.Events
	n.messages += r.Messages
	n.landed += r.Landed
	n.attempts += r.Attempts
	n.fences += r.Fences
	n.ready += r.Ready
	n.ended += r.Ended
	n.refused += r.Refused
	n.hits += r.Hits
	n.time += r.Time
}

func (n totals) String() string {
	return fmt.Sprintf("%d schedules, %d events, %d messages, %d writes landed, %d attempts, %d fences, %d requests ready (%d with a prefix), %d not, %d refused, %v of virtual time",
		n.runs, n.events, n.messages, n.landed, n.attempts, n.fences, n.ready, n.hits, n.ended, n.refused, n.time.Round(time.Second))
}

// report makes a failed scenario smaller.
func report(seed uint64, f *Failure) string {
	small, broken := Shrink(Random(seed), f, 1500)
	data, err := json.MarshalIndent(small, "", "\t")
	if err != nil {
		return err.Error()
	}
	folder := *simKeep
	if folder == "" {
		folder = os.TempDir()
	}
	name := filepath.Join(folder, fmt.Sprintf("kvsim-%d.json", seed))
	if err := os.WriteFile(name, append(data, '\n'), 0o644); err != nil {
		return err.Error()
	}
	story, _ := Tell(small)
	if len(story) > 20000 {
		story = "...\n" + story[len(story)-20000:]
	}
	return fmt.Sprintf("seed %d: %v\nsmaller, in %s: %v\n%s\nwhat happened:\n%s\nrepeat with -run TestSimulator -kvsim.seed %d, or -kvsim.file %s",
		seed, f, name, broken, data, story, seed, name)
}

func tell(t *testing.T, sc *Scenario) {
	story, f := Tell(sc)
	fmt.Fprintln(os.Stderr, story)
	if f != nil {
		t.Fatal(f)
	}
}
