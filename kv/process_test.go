package kv_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// childEnv makes the test binary a prefiller: it holds a childSpec.
const childEnv = "HAWSER_TEST_KV_PREFILLER"

type childSpec struct {
	Network, Listen, Revision string
	Layer                     time.Duration // a layer's time
}

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		code := m.Run()
		if left := leftOver(); code == 0 && len(left) > 0 {
			fmt.Fprintf(os.Stderr, "%d goroutines are left after all tests:\n%s\n", len(left), strings.Join(left, "\n\n"))
			code = 1
		}
		os.Exit(code)
	}
	var s childSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	t := &childTB{}
	s.serve(t)
	t.end()
}

// leftOver are the project's goroutines that do not end by themselves.
func leftOver() (left []string) {
	for range 1000 {
		if left = ours(); len(left) == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	return left
}

// childTB is what the rig needs of a testing.TB in a process that is no test.
type childTB struct {
	testing.TB // nil: nothing else is called
	cleanups   []func()
}

func (t *childTB) Helper()                  {}
func (t *childTB) Context() context.Context { return context.Background() }
func (t *childTB) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *childTB) Error(args ...any)        { t.Fatal(args...) }
func (t *childTB) Fatal(args ...any)        { t.Fatalf("%s", fmt.Sprint(args...)) }
func (t *childTB) Fatalf(f string, args ...any) {
	fmt.Fprintf(os.Stderr, "prefiller: "+f+"\n", args...)
	os.Exit(1)
}

func (t *childTB) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// serve prefills until the standard input ends. It prints its address, and host:port of its listener.
func (s childSpec) serve(t testing.TB) {
	eng := openEngine(t, hawser.Options{Name: "child", Require: s.Network, Listen: s.Listen})
	m := newSideOn(t, eng, layout.Spec{Model: revision(s.Revision), Pages: 512})
	newLLM(t, m, kv.PrefillerConfig{}, func(e *llm) {
		if s.Layer > 0 {
			e.wait = func(*kv.Job, int) bool { time.Sleep(s.Layer); return true }
		}
	})
	fmt.Println(eng.Addr(), eng.ListenAddrs()[0])
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// revision is the small model with another fingerprint.
func revision(r string) layout.Model {
	m := small
	if r != "" {
		m.Name += "@" + r
	}
	return m
}

// child is a prefiller in a process of its own.
type child struct {
	t        testing.TB
	cmd      *exec.Cmd
	stdin    io.Closer
	addr, at string // what its Addr said; where it listens
}

func startChild(t testing.TB, s childSpec) *child {
	t.Helper()
	if s.Listen == "" {
		s.Listen = "127.0.0.1:0"
	}
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0])}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.stdin = in
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	c.addr, c.at, _ = strings.Cut(strings.TrimSpace(line), " ")
	return c
}

func (c *child) signal(s syscall.Signal) {
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
}

// kill ends the process; it may have ended before.
func (c *child) kill() {
	_ = c.stdin.Close()
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
}

func (c *child) source() proto.Source { return proto.Source{Writers: []string{c.addr}} }

// deaths notes when links go down.
type deaths struct {
	mu   sync.Mutex
	last time.Time
	err  error
}

func (w *deaths) note(n proto.Note) {
	if n.Kind == proto.NoteLinkDown {
		w.mu.Lock()
		w.last, w.err = time.Now(), n.Err
		w.mu.Unlock()
	}
}

// since waits for a link that goes down after a moment.
func (w *deaths) since(t testing.TB, from time.Time) time.Duration {
	t.Helper()
	var d time.Duration
	eventually(t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if d = w.last.Sub(from); d < 0 {
			return fmt.Errorf("no link has gone down")
		}
		return nil
	})
	return d
}

// siege is a decoder that fetches without a pause while its prefillers are killed and stopped.
type siege struct {
	*testing.T
	d    *kv.Decoder
	dst  *side
	o    outcome
	down deaths
	stop chan struct{}
	wg   sync.WaitGroup
}

// Requests of a siege at once, and the most tokens and pages of one.
const (
	siegeWorkers = 8
	siegeTokens  = 200
	siegePages   = siegeTokens / 4
)

func newSiege(t *testing.T, network string, pages int, from ...proto.Source) *siege {
	s := &siege{T: t, dst: newSide(t, "d", network, layout.Spec{Model: small, Pages: pages}), stop: make(chan struct{})}
	s.d = newDecoder(t, s.dst, kv.DecoderConfig{Observer: s.down.note, Tries: 10})
	ctx := limit(t)
	t.Cleanup(s.wg.Wait) // before the memory goes; ctx has ended
	for w := range siegeWorkers {
		s.wg.Go(func() { s.fetch(ctx, w, from) })
	}
	return s
}

// fetch makes one request after the other. The next one does not wait until the last is quiet, which may take as long as a prefiller is
// stopped: what was written to when it stopped in the middle of a copy is then in quarantine.
func (s *siege) fetch(ctx context.Context, w int, from []proto.Source) {
	rng := rand.New(rand.NewPCG(2, uint64(w)))
	for i := 0; ctx.Err() == nil; i++ {
		select {
		case <-s.stop:
			return
		default:
		}
		key := fmt.Sprint(w, " ", i)
		sources := slices.Clone(from)
		rng.Shuffle(len(sources), func(i, k int) { sources[i], sources[k] = sources[k], sources[i] })
		r := kv.FetchRequest{ID: key, Prompt: prompt(key, 1+rng.IntN(siegeTokens)), From: sources, Tail: i%2 == 0}
		if p, cancelled := s.o.answer(ctx, s.d, s.dst, r, 0, time.Duration(rng.IntN(3_000_000))); p != nil {
			s.wg.Go(func() { s.o.calm(ctx, r, p, cancelled) })
		}
	}
}

// progress waits until some more requests have become ready.
func (s *siege) progress(n int64) {
	s.Helper()
	want := s.o.ready.Load() + n
	eventually(s.T, func() error {
		if got := s.o.ready.Load(); got < want {
			return fmt.Errorf("%d requests are ready, want %d: %+v, pages %+v", got, want, s.d.Stats(), s.dst.pools[0].Counts())
		}
		return nil
	})
}

// serves checks that a source serves, with no other to help it.
func (s *siege) serves(key string, from proto.Source) {
	s.Helper()
	s.o.one(limit(s), s.d, s.dst, kv.FetchRequest{ID: key, Prompt: prompt(key, siegeTokens), From: []proto.Source{from}, Tail: true}, 0, 0)
}

func (s *siege) end() {
	close(s.stop)
	s.wg.Wait()
	s.o.clean(s.T)
	allFree(s.T, "decoder", s.dst.pools)
	eventually(s.T, func() error {
		if st := s.d.Stats(); st.Live+st.Waiting+st.Held+st.Fencing+st.Quarantined != 0 {
			return fmt.Errorf("not idle at the end: %+v", st)
		}
		return nil
	})
	if h := s.d.Health(); h != (proto.Health{}) {
		s.Errorf("health %+v at the end", h)
	}
}

// TestKilledPrefiller kills one prefiller after the other under load. Every request is served by another one in the end, and one that is
// started again at the same address is found by itself.
func TestKilledPrefiller(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		spec := childSpec{Network: network, Layer: time.Millisecond}
		a, b := startChild(t, spec), startChild(t, spec)
		at := proto.Source{Writers: []string{a.at}}             // whoever listens there
		s := newSiege(t, network, 4*siegePages, at, b.source()) // so few that what one gives back the next gets
		s.progress(20)
		for i := range 3 {
			killed := time.Now()
			a.signal(syscall.SIGKILL)
			t.Logf("%s: noticed after %v", network, s.down.since(t, killed))
			a.kill()
			s.progress(20)
			spec.Listen = a.at
			a = startChild(t, spec)
			s.serves(fmt.Sprint("back ", i), at)
		}
		s.end()
		st := s.d.Stats()
		t.Logf("%d requests, %d retries, %d fences", st.Requests, st.Retries, st.Fences)
	})
}

// TestStoppedPrefiller stops a prefiller under load, long enough to be thought dead, and lets it go on with what it knew: what it then
// writes hits nobody, and it serves again. Where it stops in the middle of a copy the pages that it may write into stay in quarantine until
// it goes on, all that it had: there are enough for the others beside them.
func TestStoppedPrefiller(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		t.Parallel() // it waits for silence
		spec := childSpec{Network: network, Layer: time.Millisecond}
		a, b := startChild(t, spec), startChild(t, spec)
		s := newSiege(t, network, (siegeWorkers+1)*siegePages, a.source(), b.source())
		defer a.signal(syscall.SIGCONT) // if the test fails while it is stopped, the decoder's end does not wait for it
		s.progress(20)
		for i := range 2 {
			stopped := time.Now()
			a.signal(syscall.SIGSTOP)
			t.Logf("%s: noticed after %v", network, s.down.since(t, stopped))
			s.progress(20)
			woken := time.Now()
			a.signal(syscall.SIGCONT)
			s.serves(fmt.Sprint("back ", i), a.source())
			t.Logf("%s: serves again after %v", network, time.Since(woken))
		}
		s.end()
		st := s.d.Stats()
		t.Logf("%d requests, %d retries, %d fences, %d without proof at first", st.Requests, st.Retries, st.Fences, st.Unfenced)
	})
}

// TestClosedEngine closes a prefiller's engine in the middle of a transfer, without a word of the Prefiller.
func TestClosedEngine(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 200})
		b := newSide(t, "b", network, layout.Spec{Model: small, Pages: 256})
		newLLM(t, b, kv.PrefillerConfig{})
		a := newSide(t, "a", network, layout.Spec{Model: small, Pages: 256})
		half := make(chan struct{})
		newLLM(t, a, kv.PrefillerConfig{}, func(e *llm) {
			e.wait = func(_ *kv.Job, layer int) bool {
				if layer == 1 {
					close(half)
					return false
				}
				return true
			}
		})
		down := &deaths{}
		d := newDecoder(t, dst, kv.DecoderConfig{Observer: down.note})
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 300), From: slices.Concat(from(a.eng), from(b.eng))})
		if err != nil {
			t.Fatal(err)
		}
		<-half
		closed := time.Now()
		if err := a.eng.Close(limit(t)); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: noticed after %v", network, down.since(t, closed))
		res, err := p.Wait(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, first := dst.wrong(contentOf(prompt("r", 300)), res.Spans, res.Pages); n != 0 || res.Try != 2 {
			t.Errorf("try %d: %d rows are wrong: %s", res.Try, n, first)
		}
		res.Release()
		quiet(t, p)
		allFree(t, "decoder", dst.pools)
	})
}
