//go:build soak

package soak

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

var (
	soakTime  = flag.Duration("soak.time", time.Minute, "how long")
	soakRound = flag.Duration("soak.round", 8*time.Second, "time between two quiet times")
	soakSeed  = flag.Uint64("soak.seed", 0, "seed of the choices, 0 for a new one; timing is not repeated")
)

func TestMain(m *testing.M) {
	if text := os.Getenv(configEnv); text != "" {
		memberMain(text)
		return
	}
	os.Exit(m.Run())
}

// progressInterval is how often a line says how far it is.
const progressInterval = 10 * time.Second

func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	say(t, "seed: -soak.seed %d", seed)
	before := sharedFiles()
	c := &cluster{t: t, seed: seed, roster: map[string]place{}}
	var reason string
	if c.net, reason = newNetwork(t); c.net == nil {
		t.Run("TwoHosts", func(t *testing.T) { t.Skip(reason) })
	}
	for i := range c.seats {
		c.seats[i] = &seat{index: i}
	}
	for _, s := range c.seats {
		c.start(s)
	}
	defer func() {
		for _, s := range c.seats {
			s.p.killed.Store(true)
			_ = s.p.child.Stop(0) // those that are left when the test fails
		}
	}()
	start := time.Now()
	f := &faults{c: c, rng: rand.New(rand.NewPCG(seed, 0)), broken: map[string]repair{}}
	c.quiet() // what it looks like before anything has happened
	next := start
	rounds := 0
	quiet := func() bool {
		if !c.bad.Load() {
			c.quiet()
		}
		return !c.bad.Load()
	}
	for time.Since(start) < *soakTime && !c.bad.Load() {
		c.all(order{What: orderRun})
		f.chaos(time.Now().Add(*soakRound))
		if quiet() && c.net != nil {
			c.all(order{What: orderRun, Strict: true})
			f.railCuts(time.Now().Add(*soakRound / 4))
			quiet()
		}
		rounds++
		if time.Now().After(next) {
			next = time.Now().Add(progressInterval)
			say(t, "%.0fs of %v: %s", time.Since(start).Seconds(), *soakTime, c.brief())
		}
	}
	if !c.bad.Load() && c.step(orderClose) {
		for _, s := range c.seats {
			if err := s.p.child.Stop(hang); err != nil {
				c.wrong("%v", err)
			}
			<-s.p.ended
		}
		if left := processesLeft(); len(left) > 0 {
			c.wrong("processes %v are left", left)
		}
		for _, x := range sharedFiles() {
			if !slices.Contains(before, x) {
				c.wrong("%s is left", x)
			}
		}
	}
	c.summary(rounds, time.Since(start))
}

// say prints a line of progress, at once when the test runs under testsum.
func say(t *testing.T, format string, args ...any) {
	t.Helper()
	fmt.Printf("soak: "+format+"\n", args...)
}

func (c *cluster) brief() string {
	n := c.total.copy()
	return fmt.Sprintf("%d writes verified (%.1f GB), %d dirty cells cleaned, %d kills, %d stops, %d cuts",
		n["verified"], float64(n["verified bytes"])/1e9, n["dirty cells cleaned"], n["kills"], n["stops"], n["cuts"])
}

func (c *cluster) summary(rounds int, took time.Duration) {
	n := c.total.copy()
	var all []string
	for _, name := range slices.Sorted(maps.Keys(n)) {
		all = append(all, fmt.Sprintf("%s %d", name, n[name]))
	}
	say(c.t, "%.0fs, %d rounds, seed %d: %s", took.Seconds(), rounds, c.seed, strings.Join(all, ", "))
	needed := []string{"verified", "dirty cells cleaned", "kills", "stops"}
	if c.net != nil {
		needed = append(needed, "cuts", "cuts of one rail", "verified while rails were cut")
	}
	const enough = 30 * time.Second // to have seen all kinds of faults
	for _, name := range needed {
		if took > enough && n[name] == 0 && !c.t.Failed() {
			c.t.Errorf("%s: none", name)
		}
	}
}

// sharedFiles are what engines could leave in /dev/shm. Namespaces are looked after by whoever made them.
func sharedFiles() []string {
	found, _ := filepath.Glob("/dev/shm/*hawser*") // the pattern is well formed
	return found
}
