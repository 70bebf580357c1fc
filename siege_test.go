package hawser_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
)

// siegeEnv makes the test binary an engine that is attacked ("engine"), or an attacker ("attacker").
const siegeEnv = "HAWSER_TEST_SIEGE"

// Memory of the besieged engine: attackers may write to the middle one of three parts of a region, and a friend to all of another one.
const (
	siegePart = 64 << 10
	calm      = 0xa5 // what nobody has written to
)

// besiegedInfo is how to reach the besieged engine.
type besiegedInfo struct {
	Control    string
	Evil, Good []byte // descriptors
}

// sight is what is to be seen in its process.
type sight struct {
	Descriptors, Routines int
	Heap                  uint64 // bytes in use
	Resident              uint64
	Refused               int64  // connections
	Spoiled               string // where somebody has written who may not
	Reached               bool   // somebody has written where he may
	Good                  []byte
	Peers, Up             int
	Inflight              int64
	Counters              int
}

// countLog counts lines and keeps nothing.
type countLog struct {
	slog.Handler
	n *atomic.Int64
}

func (h countLog) Enabled(context.Context, slog.Level) bool { return true }

func (h countLog) Handle(context.Context, slog.Record) error {
	h.n.Add(1)
	return nil
}

// besieged is an engine that tells what is to be seen when it is asked.
func besieged() error {
	p, ctx := proc.Attach(context.Background())
	var refused atomic.Int64
	e, err := hawser.Open(ctx, hawser.Options{
		Rails: []hawser.Rail{{Provider: "tcp", Device: "127.0.0.1"}}, Log: slog.New(countLog{slog.DiscardHandler, &refused}),
	})
	if err != nil {
		return err
	}
	defer e.Close(context.Background())
	var all [4]*hawser.Region // two of them nobody may write to
	for i := range all {
		if all[i], err = e.Alloc(3*siegePart, hawser.MemOptions{}); err != nil {
			return err
		}
		for k := range all[i].Bytes() {
			all[i].Bytes()[k] = calm
		}
	}
	evil, good := all[1], all[2]
	info := besiegedInfo{Control: e.ListenAddrs()[0]}
	if info.Evil, err = evil.Descriptor(evil.Slice(siegePart, siegePart), hawser.RightWrite).MarshalBinary(); err != nil {
		return err
	}
	if info.Good, err = good.Descriptor(good.All(), hawser.RightWrite).MarshalBinary(); err != nil {
		return err
	}
	if err := p.Send("info", info); err != nil {
		return err
	}
	for {
		m, err := p.Next(ctx)
		if errors.Is(err, proc.ErrParentGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Kind != "look" {
			return fmt.Errorf("message %q", m.Kind)
		}
		s := sight{Refused: refused.Load(), Good: good.Bytes()}
		forbidden := append(append([]byte(nil), evil.Bytes()[:siegePart]...), evil.Bytes()[2*siegePart:]...)
		for _, b := range [][]byte{all[0].Bytes(), forbidden, all[3].Bytes()} {
			for at := range b {
				if b[at] != calm {
					s.Spoiled = fmt.Sprintf("byte %d is %#x", at, b[at])
				}
			}
		}
		s.Reached = bytes.IndexByte(evil.Bytes(), 0xee) >= 0
		s.fill(e)
		if err := p.Send("sight", s); err != nil {
			return err
		}
	}
}

func (s *sight) fill(e *hawser.Engine) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	s.Heap, s.Routines = m.HeapAlloc, runtime.NumGoroutine()
	fds, _ := os.ReadDir("/proc/self/fd") // every process can
	s.Descriptors = len(fds)
	st := e.Stats()
	s.Peers, s.Inflight, s.Counters = len(st.Peers), st.Inflight, st.Counters
	for _, p := range st.Peers {
		if p.Up {
			s.Up++
		}
	}
}

// siege is a besieged engine, its attacker, and a friend of it, who is here.
type siege struct {
	testing.TB
	engine, attacker *proc.Child
	info             besiegedInfo
	friend           *hawser.Engine
	src              *hawser.Region
	rem              *hawser.Remote
	n                byte
}

func startRole(t testing.TB, role string) *proc.Child {
	t.Helper()
	c, err := proc.Start(proc.Spec{Name: role, Env: []string{siegeEnv + "=" + role}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Stop(hang); err != nil {
			t.Error(err)
		}
	})
	return c
}

func next(t testing.TB, c *proc.Child, kind string, v any) {
	t.Helper()
	m, err := c.Next(testContext(t))
	if err == nil && m.Kind != kind {
		err = fmt.Errorf("message %q, want %q", m.Kind, kind)
	}
	if err == nil && v != nil {
		err = m.Decode(v)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func tell(t testing.TB, c *proc.Child, kind string, v any) {
	t.Helper()
	if err := c.Send(kind, v); err != nil {
		t.Fatal(err)
	}
}

func startSiege(t testing.TB) *siege {
	t.Helper()
	s := &siege{TB: t, engine: startRole(t, "engine"), attacker: startRole(t, "attacker")}
	next(t, s.engine, "info", &s.info)
	s.friend = open(t, hawser.Options{Rails: []hawser.Rail{{Provider: "tcp", Device: "127.0.0.1"}}})
	var d hawser.Descriptor
	if err := d.UnmarshalBinary(s.info.Good); err != nil {
		t.Fatal(err)
	}
	var err error
	if s.rem, err = s.friend.Import(testContext(t), d); err != nil {
		t.Fatal(err)
	}
	if s.src, err = s.friend.Alloc(d.Len(), hawser.MemOptions{}); err != nil {
		t.Fatal(err)
	}
	return s
}

// works checks that the friend can write.
func (s *siege) works() {
	s.Helper()
	s.n++
	for i := range s.src.Bytes() {
		s.src.Bytes()[i] = s.n
	}
	tr, err := s.friend.Write(hawser.Write{Src: s.src.All(), Dst: s.rem.All(), Imm: hawser.Imm(1)})
	wait(s, tr, err)
}

func (s *siege) look() (v sight) {
	s.Helper()
	tell(s, s.engine, "look", nil)
	next(s, s.engine, "sight", &v)
	if v.Spoiled != "" {
		s.Fatalf("somebody wrote where nobody may: %s", v.Spoiled)
	}
	return v
}

// What attacks may cost the engine: the places of strangers at its two listeners, 64 each, and two connections for each of the
// peers that were let in, of which attackers of this test have 40 at most at a time; a goroutine or two for each of them.
const (
	siegeDescriptors = 64 + 64 + 2*40 + 8
	siegeRoutines    = 2*(64+40) + 40
	siegeHeap        = 32 << 20
)

// Whatever a hostile client does, the engine lives, nobody writes outside of what was granted, what it costs is bounded and comes
// back, and a friend of the engine goes on working.
func TestSiege(t *testing.T) {
	t.Parallel()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(attacks)) {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			if name == "10,000 connections" && limit.Max < crowdSize+1000 {
				t.Skipf("only %d descriptors are allowed: ulimit -n", limit.Max)
			}
			s := startSiege(t)
			s.works()
			before := s.look()
			tell(t, s.attacker, "begin", attack{Name: name, Control: s.info.Control, Desc: s.info.Evil})
			next(t, s.attacker, "begun", nil)
			s.resist(before)
			tell(t, s.attacker, "end", nil)
			var d damage
			next(t, s.attacker, "ended", &d)
			if d.Rounds == 0 {
				t.Error("nothing was attempted")
			}
			s.works()
			after := s.look()
			if !bytes.Equal(after.Good, s.src.Bytes()) {
				t.Error("what the friend wrote is not there")
			}
			if name == "writes beyond the grant" && !after.Reached {
				t.Error("the attacker did not even reach what it may write to")
			}
			t.Logf("%d attempts, %v of processor time; %d refusals", d.Rounds, d.CPU, after.Refused)
			eventually(t, "everything is given back", func() bool {
				after = s.look()
				return after.Descriptors <= before.Descriptors && after.Routines <= before.Routines && after.Up <= before.Up
			})
			if after.Heap > before.Heap+siegeHeap {
				t.Errorf("%d MiB of heap after it, %d before", after.Heap>>20, before.Heap>>20)
			}
		})
	}
}

// siegeLooks is how often the engine is looked at during an attack, and siegeTime how long that takes at least.
const (
	siegeLooks = 10
	siegeTime  = 300 * time.Millisecond
)

// resist works while it is attacked and checks what that costs the engine.
func (s *siege) resist(before sight) {
	s.Helper()
	worst := before
	start := time.Now()
	for looks := 0; looks < siegeLooks || time.Since(start) < siegeTime; looks++ {
		s.works()
		v := s.look()
		worst.Descriptors, worst.Routines = max(worst.Descriptors, v.Descriptors), max(worst.Routines, v.Routines)
		worst.Heap, worst.Counters = max(worst.Heap, v.Heap), max(worst.Counters, v.Counters)
	}
	s.Logf("at worst %d descriptors, %d goroutines, %d MiB of heap, %d counters more",
		worst.Descriptors-before.Descriptors, worst.Routines-before.Routines, (worst.Heap-before.Heap)>>20, worst.Counters-before.Counters)
	if n := worst.Descriptors - before.Descriptors; n > siegeDescriptors {
		s.Errorf("%d descriptors more, at most %d", n, siegeDescriptors)
	}
	if n := worst.Routines - before.Routines; n > siegeRoutines {
		s.Errorf("%d goroutines more, at most %d", n, siegeRoutines)
	}
	if worst.Heap > before.Heap+siegeHeap {
		s.Errorf("%d MiB of heap more", (worst.Heap-before.Heap)>>20)
	}
}

func siegeRole(role string) error {
	switch role {
	case "engine":
		return besieged()
	case "attacker":
		return attacker()
	}
	return fmt.Errorf("no role %q", role)
}
