package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/simllm"
	"github.com/hawser-project/hawser/kv/trace"
)

// traceEvent is one line of a trace file, in the JSON array format of Chrome's trace viewer, which Perfetto reads, too. Times are of the
// wall clock, which all processes of a host share.
type traceEvent struct {
	Name  string     `json:"name"`
	Phase string     `json:"ph"` // b, n, e: begin, instant and end of an attempt; X: a layer; i: an instant; M: metadata
	Cat   string     `json:"cat,omitempty"`
	TS    traceTime  `json:"ts"`
	Dur   traceTime  `json:"dur,omitempty"`
	PID   int        `json:"pid"`
	TID   int        `json:"tid"`
	ID    string     `json:"id,omitempty"`
	Scope string     `json:"s,omitempty"`
	Args  *traceArgs `json:"args,omitempty"`
	at    time.Time  // becomes TS
}

type traceArgs struct {
	Name    string      `json:"name,omitempty"` // of a process
	Request string      `json:"request,omitempty"`
	Seq     uint64      `json:"seq,omitempty"`
	Layer   *int        `json:"layer,omitempty"`
	Why     string      `json:"why,omitempty"`
	Late    bool        `json:"late,omitempty"`
	Parts   []tracePart `json:"parts,omitempty"`
}

// tracePart is what a pass computes of a prompt.
type tracePart struct {
	Request string `json:"request"`
	First   int    `json:"first"`
	End     int    `json:"end"`
}

// traceTime is nanoseconds that are written as microseconds with three decimals: a float64 has not enough digits.
type traceTime int64

func (m traceTime) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%d.%03d", m/1000, m%1000), nil
}

func (m *traceTime) UnmarshalJSON(b []byte) error {
	var whole, part int64
	if n, err := fmt.Sscanf(string(b), "%d.%03d", &whole, &part); n < 1 {
		return fmt.Errorf("time %q: %w", b, err)
	}
	*m = traceTime(whole*1000 + part)
	return nil
}

// recorder writes the events of one process. A nil recorder records nothing. Its hooks are called with locks held, so they only
// append to memory; a goroutine, which close joins, writes.
type recorder struct {
	f    *os.File
	pid  int
	stop chan struct{}
	wg   sync.WaitGroup

	mu    sync.Mutex // guards the rest
	buf   bytes.Buffer
	enc   *json.Encoder
	ids   map[proto.Request]string
	early map[proto.Request][]traceEvent // of requests whose id is not known yet
	err   error
}

// recorderGap is how much of the trace is lost when the process is killed.
const recorderGap = 100 * time.Millisecond

func newRecorder(path, name string) (*recorder, error) {
	if path == "" {
		return nil, nil // a nil recorder records nothing
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, usage("--trace-out: %w", err)
	}
	r := &recorder{f: f, pid: os.Getpid(), stop: make(chan struct{}), ids: map[proto.Request]string{}, early: map[proto.Request][]traceEvent{}}
	r.enc = json.NewEncoder(&r.buf)
	r.enc.SetEscapeHTML(false)
	r.buf.WriteString("[\n")
	r.mu.Lock()
	r.add(traceEvent{Name: "process_name", Phase: "M", Args: &traceArgs{Name: name}})
	r.mu.Unlock()
	r.wg.Go(r.write)
	return r, nil
}

func (r *recorder) write() {
	tick := time.NewTicker(recorderGap)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.flush()
		case <-r.stop:
			return
		}
	}
}

func (r *recorder) flush() {
	r.mu.Lock()
	data := bytes.Clone(r.buf.Bytes())
	r.buf.Reset()
	r.mu.Unlock()
	if _, err := r.f.Write(data); err != nil {
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
	}
}

func (r *recorder) close() error {
	if r == nil {
		return nil
	}
	close(r.stop)
	r.wg.Wait()
	r.mu.Lock()
	r.add(traceEvent{Name: "end of trace", Phase: "i", Scope: "p"}) // the line before may be written, with its comma
	data := bytes.TrimSuffix(r.buf.Bytes(), []byte(",\n"))
	r.buf.Truncate(len(data))
	r.buf.WriteString("\n]\n")
	r.mu.Unlock()
	r.flush()
	if err := errors.Join(r.err, r.f.Close()); err != nil {
		return fmt.Errorf("--trace-out: %w", err)
	}
	return nil
}

// add needs mu.
func (r *recorder) add(e traceEvent) {
	if e.at.IsZero() {
		e.at = time.Now()
	}
	e.TS, e.PID = traceTime(e.at.UnixNano()), r.pid
	if err := r.enc.Encode(e); err != nil {
		r.err = err
		return
	}
	r.buf.Truncate(r.buf.Len() - 1) // the end of the line
	r.buf.WriteString(",\n")
}

// Threads of the trace.
const (
	attemptTrack = 1
	layerTrack   = 2
)

// watchPrefill puts the recorder's hooks into a config.
func (r *recorder) watchPrefill(c *simllm.PrefillConfig) {
	if r == nil {
		return
	}
	c.Observe = r.serveNote
	c.Layers = r.layerDone
}

// serveSteps are what the changes of an attempt's state on P mean.
var serveSteps = map[string]string{"queued": "accept", "running": "begun", "draining": "last post", "pausing": "preempted", "stopping": "stop", "tomb": "quiet"}

func (r *recorder) serveNote(n proto.ServeNote) {
	if n.Kind != proto.ServeAttempt && n.Kind != proto.ServePost {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := traceEvent{
		Name: "attempt", Cat: "attempt", TID: attemptTrack, ID: fmt.Sprintf("p%d-%d-%d", r.pid, n.Peer, n.Seq),
		Args: &traceArgs{Request: n.Request, Seq: n.Seq},
	}
	step := func(phase, name string) {
		e.Phase, e.Name = phase, name
		r.add(e)
	}
	switch {
	case n.Kind == proto.ServePost:
		step("n", "first post")
		return
	case n.From == "new":
		step("b", "attempt")
	}
	e.Args.Why = n.Text
	step("n", serveSteps[n.To])
	if n.To == "tomb" {
		step("e", "attempt")
	}
}

func (r *recorder) layerDone(parts []simllm.Part, layer int, begun, at time.Time, late bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := traceEvent{
		Name: fmt.Sprintf("layer %d", layer), Phase: "X", Cat: "layer", TID: layerTrack, at: begun, Dur: traceTime(at.Sub(begun)), Args: &traceArgs{Layer: &layer, Late: late},
	}
	for _, p := range parts {
		e.Args.Parts = append(e.Args.Parts, tracePart{p.Job.ID(), p.Span.First, p.Span.N})
	}
	r.add(e)
}

// watchDecode puts the recorder's hooks into a config.
func (r *recorder) watchDecode(c *simllm.DecodeConfig) {
	if r == nil {
		return
	}
	c.Observe = r.fetchNote
	c.Fetched = func(n proto.Request, id string, _ trace.Request) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.ids[n] = id
		for _, e := range r.early[n] {
			e.Args.Request = id
			r.add(e)
		}
		delete(r.early, n)
	}
}

func (r *recorder) fetchNote(n proto.Note) {
	var phase, name string
	switch n.Kind {
	case proto.NoteReserve:
		phase, name = "b", "attempt"
	case proto.NoteAccept:
		phase, name = "n", "accept"
	case proto.NoteAttempt:
		phase, name = "n", fetchSteps[n.To]
	case proto.NoteWriter:
		phase, name = "n", writerSteps[n.To]
	case proto.NoteEnd:
		phase, name = "e", "attempt"
	case proto.NoteFence:
		phase, name = "i", "fence"
	case proto.NoteFenced:
		phase, name = "i", "fence proved"
	case proto.NoteUnfenced:
		phase, name = "i", "fence not proved"
	}
	if name == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	e := traceEvent{Name: name, Phase: phase, TID: attemptTrack, at: time.Now(), Args: &traceArgs{Seq: n.Seq}}
	if n.Err != nil {
		e.Args.Why = n.Err.Error()
	}
	if phase == "i" {
		e.Scope = "p"
		r.add(e)
		return
	}
	e.Cat, e.ID = "attempt", fmt.Sprintf("d%d-%d", r.pid, n.Seq)
	r.known(n.Request, e)
	if n.Kind == proto.NoteReserve { // it is dispatched at once
		e.Phase, e.Name, e.Args = "n", "dispatch", &traceArgs{Seq: n.Seq}
		r.known(n.Request, e)
	}
}

var (
	fetchSteps  = map[string]string{"ready": "ready", "stopping": "cancel", "quarantined": "quarantined"}
	writerSteps = map[string]string{"settling": "ack", "complete": "all landed", "fencing": "fencing", "stuck": "stuck"}
)

// known adds an event of a request, at the latest when its id is known. Needs mu.
func (r *recorder) known(n proto.Request, e traceEvent) {
	id, ok := r.ids[n]
	if !ok {
		r.early[n] = append(r.early[n], e)
		return
	}
	e.Args.Request = id
	r.add(e)
}

// readTrace calls f for each event of a file that a recorder has written, perhaps not to its end.
func readTrace(path string, f func(line []byte, e *traceEvent)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		var e traceEvent
		if text := bytes.TrimRight(line, ",\n"); len(text) > 1 && json.Unmarshal(text, &e) == nil {
			f(text, &e)
		}
		if err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
	}
}

// joinTraces writes the events of several files into one.
func joinTraces(path string, parts []string) error {
	out, err := os.Create(path)
	if err != nil {
		return usage("--trace-out: %w", err)
	}
	w := bufio.NewWriter(out)
	sep := "[\n"
	for _, p := range parts {
		err = errors.Join(err, readTrace(p, func(line []byte, _ *traceEvent) {
			_, _ = w.WriteString(sep)
			_, _ = w.Write(line) // Flush tells
			sep = ",\n"
		}))
	}
	_, _ = w.WriteString("\n]\n")
	return errors.Join(err, w.Flush(), out.Close())
}
