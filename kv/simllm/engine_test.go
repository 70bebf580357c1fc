package simllm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/pool"
)

// rig is an engine in a bubble of synctest, and a transfer that writes down what it is told.
type rig struct {
	t      *testing.T
	pool   *pool.Pool
	engine *Engine
	start  time.Time

	mu     sync.Mutex
	log    []string // guarded by mu
	begin  error
	bases  uint64
	onPass func(parts []Part)
	onDone func(layer int) // after each layer
}

const (
	rigPage   = 16
	rigLayers = 2
)

// newRig makes layers of 1 ms + 10 us per token.
func newRig(t *testing.T, pages int, edit func(*Config)) *rig {
	t.Helper()
	p, err := pool.New(pages, 1)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, pool: p, start: time.Now()}
	cfg := Config{
		Pool: p, PageTokens: rigPage, Layers: rigLayers, Layer: LayerTime{A: 1, B: 0.01}, PassTokens: 64,
		Ranks: []RankLayers{{0, 0, rigLayers}}, Fingerprint: "model",
	}
	if edit != nil {
		edit(&cfg)
	}
	if r.engine, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	r.engine.pause = func(ctx context.Context, until time.Time) { sleep(ctx, time.Until(until)) }
	return r
}

// run runs the engine until stop is called, which checks that no page is lost.
func (r *rig) run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.engine.Run(ctx, r) }()
	return func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Error(err)
		}
		if c := r.pool.Counts(); c.Free+c.Cached != r.pool.Pages() || r.pool.Live() != 0 {
			r.t.Errorf("%+v, %d leases and prefixes at the end, want all free or cached", c, r.pool.Live())
		}
		if err := r.pool.Check(); err != nil {
			r.t.Error(err)
		}
	}
}

func (r *rig) note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := time.Since(r.start).Round(10 * time.Microsecond)
	r.log = append(r.log, fmt.Sprintf("%v ", at)+fmt.Sprintf(format, args...))
}

// want compares the log with lines, and empties it.
func (r *rig) want(lines ...string) {
	r.t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.log, lines) {
		r.t.Errorf("got\n\t%s\nwant\n\t%s", strings.Join(r.log, "\n\t"), strings.Join(lines, "\n\t"))
	}
	r.log = nil
}

func (r *rig) Begin(parts []Part) (Pass, error) {
	text := "pass"
	for _, p := range parts {
		text += fmt.Sprintf(" %s[%d,%d)", p.Job.ID(), p.Span.First, p.Span.N)
	}
	r.note("%s", text)
	if r.onPass != nil {
		r.onPass(parts)
	}
	r.bases += 1 << 16
	return r, r.begin
}

func (r *rig) Base() uint64 { return r.bases }

func (r *rig) LayerReady(rank, layer int, late bool) {
	r.note("rank %d layer %d", rank, layer)
	if r.onDone != nil {
		r.onDone(layer)
	}
}

func (r *rig) End()   { r.note("end") }
func (r *rig) Abort() { r.note("abort") }

// testJob is a job of a rig.
type testJob struct {
	rig      *rig
	id       string
	tokens   []uint32
	priority int
	last     bool
	preempt  func() // nil: nobody reads the pages
	source   Source
	gone     error // of Sourced
}

func (j *testJob) ID() string        { return j.id }
func (j *testJob) Tokens() []uint32  { return j.tokens }
func (j *testJob) Priority() int     { return j.priority }
func (j *testJob) NeedsLast() bool   { return j.last }
func (j *testJob) Computed(*Content) { j.rig.note("%s: computed", j.id) }

func (j *testJob) Sourced(s Source) error {
	j.rig.mu.Lock()
	j.source = s
	j.rig.mu.Unlock()
	j.rig.note("%s: %d pages, %d cached", j.id, len(s.Pages), s.Cached)
	return j.gone
}

// given is the source that the job got last.
func (j *testJob) given() Source {
	j.rig.mu.Lock()
	defer j.rig.mu.Unlock()
	return j.source
}

func (j *testJob) Preempt() {
	j.rig.note("%s: preempted", j.id)
	if j.preempt != nil {
		j.preempt()
	} else {
		j.rig.engine.Unpin(j)
	}
}

// end stops a job whose writes are done.
func (r *rig) end(jobs ...*testJob) {
	for _, j := range jobs {
		r.engine.Stop(j)
		r.engine.Unpin(j)
	}
}

// submit admits and starts a job of so many tokens, which depend on seed.
func (r *rig) submit(id string, n int, seed uint64, edit ...func(*testJob)) *testJob {
	r.t.Helper()
	j := &testJob{rig: r, id: id, tokens: someTokens(n, seed)}
	for _, f := range edit {
		f(j)
	}
	s, err := r.engine.Admit(j)
	if err != nil {
		r.t.Fatal(err)
	}
	j.source = s
	r.engine.Start(j)
	return j
}

func priority(n int) func(*testJob) { return func(j *testJob) { j.priority = n } }

// bubble runs a test with a rig in synctest.
func bubble(t *testing.T, pages int, edit func(*Config), f func(r *rig)) {
	synctest.Test(t, func(t *testing.T) { f(newRig(t, pages, edit)) })
}

// TestPassTakesItsTime: two layers of 1 ms + 40 * 10 us.
func TestPassTakesItsTime(t *testing.T) {
	bubble(t, 10, nil, func(r *rig) {
		stop := r.run()
		a := r.submit("a", 40, 1)
		if len(a.source.Pages) != 3 || a.source.Cached != 0 {
			t.Errorf("got %+v, want 3 pages at once", a.source)
		}
		time.Sleep(time.Second)
		r.want("0s pass a[0,40)", "1.4ms rank 0 layer 0", "2.8ms rank 0 layer 1", "2.8ms end", "2.8ms a: computed")
		s := r.engine.Stats()
		if s.Tokens != 40 || s.Passes != 1 || s.Layers != 2 || s.FillBound != 0 || s.Queued != 0 {
			t.Errorf("got %+v", s)
		}
		r.end(a)
		stop()
	})
}

// TestLongPromptIsCutShortOnesShare: passes of at most 64 tokens; chunks end with pages.
func TestLongPromptIsCutShortOnesShare(t *testing.T) {
	bubble(t, 40, nil, func(r *rig) {
		a, b, c := r.submit("a", 100, 1), r.submit("b", 10, 2), r.submit("c", 30, 3)
		stop := r.run()
		time.Sleep(time.Second)
		r.want("0s pass a[0,64)", "1.64ms rank 0 layer 0", "3.28ms rank 0 layer 1", "3.28ms end",
			"3.28ms pass a[64,100) b[0,10) c[0,16)", "4.9ms rank 0 layer 0", "6.52ms rank 0 layer 1", "6.52ms end", "6.52ms a: computed", "6.52ms b: computed",
			"6.52ms pass c[16,30)", "7.66ms rank 0 layer 0", "8.8ms rank 0 layer 1", "8.8ms end", "8.8ms c: computed")
		r.end(a, b, c)
		stop()
	})
}

// TestPrefixIsNotComputedAgain, but for the last token where it is wanted; a prompt that is there from end to end needs no pass.
func TestPrefixIsNotComputedAgain(t *testing.T) {
	bubble(t, 40, nil, func(r *rig) {
		stop := r.run()
		long := someTokens(48, 1)
		same := func(n int, last bool) func(*testJob) {
			return func(j *testJob) { j.tokens, j.last = long[:n], last }
		}
		a := r.submit("a", 0, 0, same(40, false))
		time.Sleep(time.Second)
		r.end(a)
		r.log, r.start = nil, time.Now()
		var jobs []*testJob
		for i, c := range []struct {
			n, cached int
			last      bool
		}{{48, 32, false}, {40, 32, true}, {32, 32, false}, {32, 16, true}} {
			j := r.submit(string(rune('b'+i)), 0, 0, same(c.n, c.last))
			if j.source.Cached != c.cached || len(j.source.Pages) != (c.n+15)/16 || !slices.Equal(j.source.Pages[:c.cached/16], a.source.Pages[:c.cached/16]) {
				t.Errorf("job %s: got %+v, want %d tokens of %v", j.id, j.source, c.cached, a.source)
			}
			jobs = append(jobs, j)
			time.Sleep(time.Second)
		}
		r.want("0s pass b[32,48)", "1.16ms rank 0 layer 0", "2.32ms rank 0 layer 1", "2.32ms end", "2.32ms b: computed",
			"1s pass c[32,40)", "1.00108s rank 0 layer 0", "1.00216s rank 0 layer 1", "1.00216s end", "1.00216s c: computed",
			"2s d: computed",
			"3s pass e[16,32)", "3.00116s rank 0 layer 0", "3.00232s rank 0 layer 1", "3.00232s end", "3.00232s e: computed")
		r.end(jobs...)
		stop()
	})
}

func TestJobWaitsForPages(t *testing.T) {
	bubble(t, 4, nil, func(r *rig) {
		if _, err := r.engine.Admit(&testJob{rig: r, id: "huge", tokens: someTokens(65, 1)}); !errors.Is(err, hawser.ErrLimit) ||
			!strings.Contains(err.Error(), "request huge: prompt needs 5 pages, pool has 4") {
			t.Errorf("got %v, want ErrLimit with both numbers", err)
		}
		a := r.submit("a", 40, 1)
		b := r.submit("b", 40, 2)
		c := r.submit("c", 10, 3) // there is a page, but it is not its turn
		if b.source.Pages != nil || c.source.Pages != nil {
			t.Errorf("got %+v and %+v, want both to wait", b.source, c.source)
		}
		stop := r.run()
		time.Sleep(time.Second)
		if s := r.engine.Stats(); s.Waiting != 2 || s.Queued != 2 || s.Jobs != 3 {
			t.Errorf("got %+v, want 2 of 3 jobs waiting", s)
		}
		r.want("0s pass a[0,40)", "1.4ms rank 0 layer 0", "2.8ms rank 0 layer 1", "2.8ms end", "2.8ms a: computed")
		r.end(a)
		time.Sleep(time.Second)
		r.want("1s b: 3 pages, 0 cached", "1s c: 1 pages, 0 cached",
			"1s pass b[0,40) c[0,10)", "1.0015s rank 0 layer 0", "1.003s rank 0 layer 1", "1.003s end", "1.003s b: computed", "1.003s c: computed")
		r.end(b, c)
		stop()
	})
}

// TestShortageTakesPagesOfLessImportantJob: it goes on later, with what the cache has kept.
func TestShortageTakesPagesOfLessImportantJob(t *testing.T) {
	bubble(t, 10, nil, func(r *rig) {
		var low, high *testJob
		passes := 0
		r.onPass = func([]Part) {
			if passes++; passes == 1 {
				high = r.submit("high", 60, 2, priority(1))
			}
		}
		low = r.submit("low", 130, 1)
		low.preempt = func() { // the writes that read its pages take a while
			time.AfterFunc(time.Millisecond, func() { r.engine.Unpin(low) })
		}
		stop := r.run()
		time.Sleep(time.Second)
		r.want("0s pass low[0,64)", "1.64ms rank 0 layer 0", "3.28ms rank 0 layer 1", "3.28ms end",
			"3.28ms low: preempted",
			"4.28ms high: 4 pages, 0 cached", "4.28ms pass high[0,60)", "5.88ms rank 0 layer 0", "7.48ms rank 0 layer 1", "7.48ms end", "7.48ms high: computed")
		r.end(high)
		time.Sleep(time.Second)
		r.want("1s low: 9 pages, 64 cached",
			"1s pass low[64,128)", "1.00164s rank 0 layer 0", "1.00328s rank 0 layer 1", "1.00328s end",
			"1.00328s pass low[128,130)", "1.0043s rank 0 layer 0", "1.00532s rank 0 layer 1", "1.00532s end", "1.00532s low: computed")
		if s := r.engine.Stats(); s.Preempted != 1 || s.Cached != 64 {
			t.Errorf("got %+v, want one preemption", s)
		}
		r.end(low)
		stop()
	})
}

// TestStopInPass: the pages of a stopped job are not given away while the pass may still fill them. What was computed can be used
// by a second try.
func TestStopInPass(t *testing.T) {
	for _, c := range []struct{ tokens, pages, cached int }{{120, 8, 4}, {64, 4, 4}, {60, 4, 3}} {
		bubble(t, 8, nil, func(r *rig) {
			var a *testJob
			r.onDone = func(layer int) {
				if layer == 0 {
					r.end(a)
					r.end(a) // does nothing
					if n := r.pool.Counts().Leased; n != c.pages {
						t.Errorf("%d pages leased while the pass runs, want %d", n, c.pages)
					}
				}
			}
			a = r.submit("a", c.tokens, 1)
			stop := r.run()
			time.Sleep(time.Second)
			r.mu.Lock()
			if last := r.log[len(r.log)-1]; len(r.log) != 4 || !strings.HasSuffix(last, "ms end") {
				t.Errorf("%d tokens: got %v, want one pass, and no end of the job", c.tokens, r.log)
			}
			r.mu.Unlock()
			if n := r.pool.Counts(); n != (pool.Counts{Free: 8 - c.cached, Cached: c.cached}) {
				t.Errorf("%d tokens: %+v after the pass, want %d cached and nothing leased", c.tokens, n, c.cached)
			}
			stop()
		})
	}
}

func TestStopBeforeStart(t *testing.T) {
	bubble(t, 8, nil, func(r *rig) {
		j := &testJob{rig: r, id: "a", tokens: someTokens(20, 1)}
		if _, err := r.engine.Admit(j); err != nil {
			t.Fatal(err)
		}
		if _, err := r.engine.Admit(j); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("admitted twice: got %v, want ErrInvalid", err)
		}
		r.end(j)
		r.engine.Start(j)
		stop := r.run()
		time.Sleep(time.Second)
		r.want()
		if err := r.engine.Compute(r.t.Context(), j.tokens[:16]); err != nil {
			t.Error(err)
		}
		j.tokens = j.tokens[:16] // it is in the cache from end to end
		if s, err := r.engine.Admit(j); err != nil || s.Cached != 16 {
			t.Errorf("got %+v, %v, want all cached", s, err)
		}
		r.end(j)
		stop()
	})
}

// TestReadersHoldPages: a job that has been stopped or preempted keeps its pages until nobody reads them.
func TestReadersHoldPages(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(r *rig, a *testJob)
	}{
		{"stopped", func(r *rig, a *testJob) { r.engine.Stop(a) }},
		{"preempted", func(*rig, *testJob) {}},
		{"preempted, then stopped", func(r *rig, a *testJob) { time.Sleep(time.Second); r.engine.Stop(a) }},
	} {
		edit := func(cfg *Config) {
			if c.name != "stopped" {
				cfg.PreemptEvery = 1
			}
		}
		bubble(t, 10, edit, func(r *rig) {
			a := r.submit("a", 130, 1)
			a.preempt = func() {}
			if c.name == "stopped" {
				r.onPass = func([]Part) { c.end(r, a) }
			} else {
				go c.end(r, a)
			}
			stop := r.run()
			time.Sleep(time.Minute)
			if c := r.pool.Counts(); c.Leased != 9 {
				t.Errorf("%+v before Unpin, want 9 leased", c)
			}
			r.noPreemption()
			r.engine.Unpin(a)
			time.Sleep(time.Minute)
			if c.name == "preempted" {
				if a.given().Cached != 64 || r.engine.Stats().Tokens != 130 {
					t.Errorf("got %+v, %+v: want the job to go on where it was", a.given(), r.engine.Stats())
				}
				r.end(a)
			} else if c := r.pool.Counts(); c.Leased != 0 || c.Cached != 4 {
				t.Errorf("%+v after Unpin, want 4 cached", c)
			}
			stop()
		})
	}
}

// noPreemption ends what Config.PreemptEvery does.
func (r *rig) noPreemption() {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	r.engine.cfg.PreemptEvery = 0
}

// TestSourceOfEndedJobComesBack: the job ends while the engine gives it its pages, and Unpin will not come.
func TestSourceOfEndedJobComesBack(t *testing.T) {
	bubble(t, 4, nil, func(r *rig) {
		a := r.submit("a", 60, 1)
		b := r.submit("b", 60, 2, func(j *testJob) { j.gone = errors.New("ended") })
		stop := r.run()
		time.Sleep(time.Second)
		r.end(a)
		time.Sleep(time.Second)
		r.engine.Stop(b)
		stop()
	})
}

func TestEndOfRunAbortsThePass(t *testing.T) {
	bubble(t, 8, nil, func(r *rig) {
		a := r.submit("a", 60, 1)
		ctx, cancel := context.WithTimeout(r.t.Context(), 2*time.Millisecond)
		defer cancel()
		if err := r.engine.Run(ctx, r); err != nil {
			t.Error(err)
		}
		r.want("0s pass a[0,60)", "1.6ms rank 0 layer 0", "2ms abort")
		stop := r.run() // goes on where it was
		time.Sleep(time.Second)
		r.want("2ms pass a[0,60)", "3.6ms rank 0 layer 0", "5.2ms rank 0 layer 1", "5.2ms end", "5.2ms a: computed")
		r.end(a)
		stop()
	})
}

func TestRefusedPassEndsRun(t *testing.T) {
	bubble(t, 8, nil, func(r *rig) {
		a := r.submit("a", 60, 1)
		r.begin = hawser.ErrClosed
		if err := r.engine.Run(r.t.Context(), r); !errors.Is(err, hawser.ErrClosed) {
			t.Errorf("got %v, want ErrClosed", err)
		}
		r.end(a)
		if c := r.pool.Counts(); c.Free != 8 {
			t.Errorf("%+v, want all free", c)
		}
	})
}

// TestComputeFillsTheCache before anybody asks for the prompt.
func TestComputeFillsTheCache(t *testing.T) {
	bubble(t, 8, nil, func(r *rig) {
		stop := r.run()
		if err := r.engine.Compute(r.t.Context(), someTokens(60, 1)); err != nil {
			t.Error(err)
		}
		r.want("0s pass", "1.6ms rank 0 layer 0", "3.2ms rank 0 layer 1", "3.2ms end")
		a := r.submit("a", 60, 1)
		if a.source.Cached != 48 {
			t.Errorf("got %+v, want 48 tokens cached", a.source)
		}
		ctx, cancel := context.WithCancel(r.t.Context())
		cancel()
		if err := r.engine.Compute(ctx, someTokens(60, 2)); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the end of the context", err)
		}
		if err := r.engine.Compute(r.t.Context(), someTokens(200, 2)); !errors.Is(err, hawser.ErrLimit) {
			t.Errorf("got %v, want ErrLimit", err)
		}
		time.Sleep(time.Second)
		r.end(a)
		stop()
	})
}

// TestProgressWords are absolute, and count the layers of a rank.
func TestProgressWords(t *testing.T) {
	var words []string
	edit := func(c *Config) {
		c.Ranks = []RankLayers{{4, 0, 1}, {5, 0, 2}, {6, 1, 2}}
		c.Word = func(rank int, value uint64) { words = append(words, fmt.Sprintf("%d=%#x", rank, value)) }
	}
	bubble(t, 8, edit, func(r *rig) {
		stop := r.run()
		a := r.submit("a", 70, 1)
		time.Sleep(time.Second)
		r.end(a)
		stop()
		want := []string{"4=0x10001", "5=0x10001", "5=0x10002", "6=0x10001", "4=0x20001", "5=0x20001", "5=0x20002", "6=0x20001"}
		if !slices.Equal(words, want) {
			t.Errorf("got %v, want %v", words, want)
		}
	})
}

// TestContentIsThereWhenTheLayerIs: of both ranks, for a chunked prompt with a cached beginning.
func TestContentIsThereWhenTheLayerIs(t *testing.T) {
	var rows []Rows
	for layer := range rigLayers {
		for rank := range 2 {
			r := layRows("pht", 12, rigPage, 1, 32, 0)
			r.Rank, r.Layer, r.HeadFirst = rank, layer, rank
			rows = append(rows, r)
		}
	}
	var late, layers int
	edit := func(c *Config) {
		c.Rows, c.Ranks = rows, []RankLayers{{0, 0, rigLayers}, {1, 0, rigLayers}}
		c.Observe = func(parts []Part, layer int, at time.Time, isLate bool) {
			layers++
			if isLate {
				late++
			}
		}
	}
	bubble(t, 12, edit, func(r *rig) {
		var job *testJob
		var span Span
		check := func(layer int, s Span) {
			for _, rows := range rows[2*layer : 2*layer+2] {
				v := NewContent("model", job.tokens).Check(rows, job.source.Pages, s, 1)
				if v.Wrong != 0 || v.Bytes != uint64((s.N-s.First)*32) {
					t.Errorf("layer %d: %+v", layer, v)
				}
			}
		}
		r.onPass = func(parts []Part) { span = parts[0].Span }
		r.onDone = func(layer int) { check(layer, Span{0, span.N}) }
		stop := r.run()
		long := someTokens(150, 1)
		for _, n := range []int{40, 150} {
			job = &testJob{rig: r, id: "a", tokens: long[:n]}
			s, err := r.engine.Admit(job)
			if err != nil {
				t.Fatal(err)
			}
			job.source = s
			r.engine.Start(job)
			time.Sleep(time.Second)
			r.end(job)
		}
		stop()
		if s := r.engine.Stats(); s.Cached != 32 || s.Tokens != 40+118 || late != 0 || layers != 6 {
			t.Errorf("got %+v, %d layers, %d late", s, layers, late)
		}
	})
}

// TestFillBoundLayersAreCounted: the time of a layer is shorter than its content takes.
func TestFillBoundLayersAreCounted(t *testing.T) {
	r := newRig(t, 64, func(c *Config) {
		c.Layer, c.PassTokens = LayerTime{A: 1e-6}, 1024
		for layer := range rigLayers {
			rows := layRows("pht", 64, rigPage, 8, 256, 0)
			rows.Layer = layer
			c.Rows = append(c.Rows, rows)
		}
	})
	stop := r.run()
	if err := r.engine.Compute(t.Context(), someTokens(1000, 1)); err != nil {
		t.Error(err)
	}
	if s := r.engine.Stats(); s.FillBound != s.Layers || s.Layers != rigLayers {
		t.Errorf("got %+v, want all layers late", s)
	}
	stop()
}

func TestNewNamesBadSettings(t *testing.T) {
	p, _ := pool.New(4, 1)
	for _, c := range []struct {
		cfg  Config
		want string
	}{
		{Config{PageTokens: 16, Layers: 2, Layer: LayerTime{A: 1}}, "want a pool"},
		{Config{Pool: p, PageTokens: 16, Layers: 2, PassTokens: 15, Layer: LayerTime{A: 1}}, "passes of at least a page"},
		{Config{Pool: p, PageTokens: 16, Layers: 2}, "layer time is 0"},
		{Config{Pool: p, PageTokens: 16, Layers: 2, Layer: LayerTime{A: 1}, Rows: []Rows{{Layer: 2, PageTokens: 16}}}, "rows of layer 2"},
		{Config{Pool: p, PageTokens: 16, Layers: 2, Layer: LayerTime{A: 1}, Rows: []Rows{{PageTokens: 8}}}, "pages of 8 tokens"},
	} {
		if _, err := New(c.cfg); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want it to contain %q", err, c.want)
		}
	}
}
