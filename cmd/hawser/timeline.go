package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/kv/trace"
)

// sighting is how the longest request of a decoder went. All times are Unix ns.
type sighting struct {
	Request    string     `json:"request"`
	Tokens     int        `json:"tokens"`
	Prefix     int        `json:"prefix"` // tokens that were here already
	PageTokens int        `json:"page_tokens"`
	Layers     int        `json:"layers"`
	Arrived    int64      `json:"arrived"`
	Dispatched int64      `json:"dispatched"`
	Ready      int64      `json:"ready"`
	Begun      int64      `json:"begun"` // of the first pass; 0: not known
	Computed   int64      `json:"computed"`
	Expected   uint64     `json:"expected"` // writes
	Landed     [][2]int64 `json:"landed"`   // when so many had landed
}

// timeline watches the longest request of a decoder. A nil timeline watches nothing.
type timeline struct {
	longest int // its tokens
	wg      sync.WaitGroup
	found   chan string // capacity 1

	mu   sync.Mutex // guards the rest
	id   string
	seen sighting
}

// newTimeline puts hooks into the config of a decoder that is made later; start needs it.
func newTimeline(wanted bool, cfg *simllm.DecodeConfig) *timeline {
	if !wanted {
		return nil
	}
	t := &timeline{found: make(chan string, 1)}
	for _, r := range cfg.Requests {
		t.longest = max(t.longest, r.Input)
	}
	g := cfg.Shape.Model
	t.seen = sighting{Layers: g.Layers, PageTokens: g.Groups[0].PageTokens}
	if cfg.Shape.PageTokens > 0 {
		t.seen.PageTokens = cfg.Shape.PageTokens
	}
	fetched := cfg.Fetched
	cfg.Fetched = func(n proto.Request, id string, r trace.Request) {
		if fetched != nil {
			fetched(n, id, r)
		}
		if r.Input == t.longest {
			select {
			case t.found <- id:
			default: // one is enough
			}
		}
	}
	cfg.Ready = t.ready
	return t
}

// start begins to watch; ctx ends it.
func (t *timeline) start(ctx context.Context, d *simllm.Decoder) {
	if t == nil {
		return
	}
	t.wg.Go(func() {
		select {
		case id := <-t.found:
			t.mu.Lock()
			t.id = id
			t.seen.Request, t.seen.Tokens = id, t.longest
			t.mu.Unlock()
			t.poll(ctx, d, id)
		case <-ctx.Done():
		}
	})
}

// pollGap is a fraction of the time of a layer.
const pollGap = 200 * time.Microsecond

// poll notes how many writes have landed until the request is ready or gone.
func (t *timeline) poll(ctx context.Context, d *simllm.Decoder, id string) {
	last := int64(-1)
	for ctx.Err() == nil {
		there := false
		now := time.Now().UnixNano()
		d.Requests(func(a proto.AttemptInfo) {
			if a.Request != id {
				return
			}
			there = true
			landed, expected := uint64(0), uint64(0)
			for _, w := range a.Writers {
				landed, expected = landed+w.Landed, expected+w.Expected
			}
			if int64(landed) != last && a.Seq > 0 {
				last = int64(landed)
				t.mu.Lock()
				t.seen.Expected = expected
				t.seen.Landed = append(t.seen.Landed, [2]int64{now, last})
				t.mu.Unlock()
			}
		})
		if !there {
			return
		}
		time.Sleep(pollGap)
	}
}

// ready is told of every request that is.
func (t *timeline) ready(id string, r kv.Result) {
	t.mu.Lock()
	mine := id == t.id && t.seen.Ready == 0
	if mine {
		s := &t.seen
		s.Prefix, s.Arrived, s.Dispatched, s.Ready = r.Prefix, r.Arrived.UnixNano(), r.Dispatched.UnixNano(), r.Ready.UnixNano()
		s.Landed = append(s.Landed, [2]int64{s.Ready, int64(s.Expected)})
	}
	t.mu.Unlock()
	if !mine {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if timing, err := r.Timing(ctx); err == nil && timing.SameHost && timing.Layers > 0 {
		t.mu.Lock()
		t.seen.Begun, t.seen.Computed = timing.Begun.UnixNano(), timing.Computed.UnixNano()
		t.mu.Unlock()
	}
}

// result joins the watching, whose context has ended. It is nil when the request did not become ready.
func (t *timeline) result() *sighting {
	if t == nil {
		return nil
	}
	t.wg.Wait()
	if t.seen.Ready == 0 {
		return nil
	}
	return &t.seen
}

// computedLayer is one layer of a part of the prompt on P.
type computedLayer struct {
	layer      int
	first, end int // tokens
	begun, at  int64
	landed     int64 // 0: never
}

// layersOf reads what prefillers have computed for a request.
func layersOf(request string, traces []string) ([]computedLayer, error) {
	var all []computedLayer
	for _, path := range traces {
		err := readTrace(path, func(_ []byte, e *traceEvent) {
			if e.Phase != "X" || e.Args == nil || e.Args.Layer == nil {
				return
			}
			for _, p := range e.Args.Parts {
				if p.Request == request {
					all = append(all, computedLayer{layer: *e.Args.Layer, first: p.First, end: p.End, begun: int64(e.TS), at: int64(e.TS + e.Dur)})
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// land works out when each layer had landed: writes are posted in the order in which layers are computed, and D has counted them.
func (s *sighting) land(all []computedLayer) {
	pages := func(tokens int) int { return (tokens + s.PageTokens - 1) / s.PageTokens }
	total := (pages(s.Tokens) - pages(s.Prefix)) * s.Layers
	sum := total
	need := make([]int, len(all))
	for i, c := range all {
		need[i] = max(0, pages(c.end)-max(pages(c.first), pages(s.Prefix)))
		sum -= need[i]
	}
	// What is left in sum was in the prefix cache of P and goes first.
	next := 0
	for i := range all {
		sum += need[i]
		want := int64(s.Expected) * int64(sum) / int64(max(1, total))
		for next < len(s.Landed) && s.Landed[next][1] < want {
			next++
		}
		if next < len(s.Landed) {
			all[i].landed = max(s.Landed[next][0], all[i].at)
		}
	}
}

// Sizes of the drawing, in pixels.
const (
	svgWidth, svgLeft, svgTop, svgBottom = 1000, 70, 50, 60
	svgRow                               = 14
)

// draw writes the timeline as SVG.
func (s *sighting) draw(w io.Writer, all []computedLayer) error {
	s.land(all)
	from := s.Arrived
	width := float64(max(1, s.Ready-from))
	x := func(at int64) float64 { return svgLeft + float64(at-from)/width*(svgWidth-svgLeft-20) }
	y := func(layer int) int { return svgTop + layer*svgRow }
	bottom := y(s.Layers)
	p := func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
	p(`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`, svgWidth, bottom+svgBottom)
	p(`<rect width="100%%" height="100%%" fill="white"/>`)
	p(`<text x="%d" y="20" font-size="14">request %s: %d tokens, %d of them here before, %d writes</text>`, svgLeft, s.Request, s.Tokens, s.Prefix, s.Expected)
	p(`<text x="%d" y="38"><tspan fill="#3b6fb6">■ computed</tspan> <tspan fill="#d98032">■ on its way until it has landed</tspan></text>`, svgLeft)
	for l := range s.Layers {
		p(`<text x="%d" y="%d" text-anchor="end">layer %d</text>`, svgLeft-6, y(l)+svgRow-4, l)
	}
	for _, c := range all {
		bar(w, x(c.begun), x(c.at), y(c.layer), "#3b6fb6")
		if c.landed > 0 {
			bar(w, x(c.at), x(c.landed), y(c.layer), "#d98032")
		}
	}
	if len(all) == 0 && s.Begun > 0 {
		p(`<text x="%d" y="%d">computed from %.2f to %.2f ms; layer by layer only the prefiller knows</text>`, svgLeft, svgTop+svgRow, float64(s.Begun-from)/1e6, float64(s.Computed-from)/1e6)
	}
	s.curve(w, x, bottom)
	for _, m := range []struct {
		name string
		at   int64
	}{{"dispatched", s.Dispatched}, {"ready", s.Ready}} {
		p(`<line x1="%.1f" y1="%d" x2="%[1]f" y2="%d" stroke="#444" stroke-dasharray="3 3"/>`, x(m.at), svgTop, bottom)
		p(`<text x="%.1f" y="%d" text-anchor="middle">%s, %.2f ms</text>`, min(x(m.at), svgWidth-60), bottom+16+16*btoi(m.name == "ready"), m.name, float64(m.at-from)/1e6)
	}
	_, err := fmt.Fprintln(w, "</svg>")
	return err
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func bar(w io.Writer, from, to float64, y int, color string) {
	fmt.Fprintf(w, `<rect x="%.2f" y="%d" width="%.2f" height="%d" fill="%s"/>`+"\n", from, y+2, max(0.5, to-from), svgRow-4, color)
}

// curve is the share of the writes that have landed.
func (s *sighting) curve(w io.Writer, x func(int64) float64, bottom int) {
	fmt.Fprint(w, `<polyline fill="none" stroke="#2a8a4a" stroke-width="1.5" points="`)
	for _, l := range s.Landed {
		fmt.Fprintf(w, "%.1f,%.1f ", x(l[0]), float64(bottom)-float64(l[1])/float64(max(1, s.Expected))*float64(bottom-svgTop))
	}
	fmt.Fprintln(w, `"/>`)
}

// drawTimeline writes the file of --timeline.
func drawTimeline(path string, s *sighting, traces []string) error {
	if s == nil {
		return fmt.Errorf("--timeline: the longest request did not become ready: there is nothing to draw")
	}
	all, err := layersOf(s.Request, traces)
	if err != nil {
		return fmt.Errorf("--timeline: %w", err)
	}
	f, err := os.Create(path)
	if err != nil {
		return usage("--timeline: %w", err)
	}
	err = s.draw(f, all)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}
