package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/weights"
)

// trace writes what each rank did when, if it is wanted.
func (p *pushing) trace(ctx context.Context) error {
	if p.cmd.Trace == "" {
		return nil
	}
	list, err := p.client.Spans(ctx)
	if err != nil {
		return err
	}
	f, err := os.Create(p.cmd.Trace)
	if err != nil {
		return usage("--trace: %w", err)
	}
	return errors.Join(writeSpans(f, list), f.Close())
}

// spanEvent is a Chrome trace event. Times are microseconds.
type spanEvent struct {
	Name  string            `json:"name"`
	Phase string            `json:"ph"` // M: metadata, X: a bar, s and f: the ends of an arrow
	Cat   string            `json:"cat,omitempty"`
	ID    string            `json:"id,omitempty"`
	Bind  string            `json:"bp,omitempty"`
	PID   int               `json:"pid"`
	TID   int               `json:"tid"`
	TS    float64           `json:"ts"`
	Dur   float64           `json:"dur,omitempty"`
	Args  map[string]string `json:"args,omitempty"`
}

// spanWriter writes a process for each rank, a track for each of its steps, and arrows from writes to what receivers wait for.
type spanWriter struct {
	w     *bufio.Writer
	n     int
	pids  map[string]int
	tids  map[string]int
	first int64
	ends  map[string]weights.Span // of receiving: by rank and stage
}

// writeSpans writes spans as Chrome trace events, for chrome://tracing or Perfetto. Spans are in the order of their begins.
func writeSpans(to io.Writer, list []weights.Span) error {
	w := &spanWriter{w: bufio.NewWriter(to), pids: map[string]int{}, tids: map[string]int{}, ends: map[string]weights.Span{}}
	if len(list) > 0 {
		w.first = list[0].Start
	}
	for _, s := range list {
		if s.Step == "receive" {
			w.ends[fmt.Sprintf("%d %s", s.Rank, s.Name)] = s
		}
	}
	fmt.Fprint(w.w, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[")
	for _, s := range list {
		if err := w.span(s); err != nil {
			return err
		}
	}
	fmt.Fprint(w.w, "]}\n")
	if err := w.w.Flush(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

func (w *spanWriter) span(s weights.Span) error {
	pid, tid, err := w.track(s)
	if err != nil {
		return err
	}
	name := s.Name
	if name == "" {
		name = s.Step
	}
	if err := w.event(spanEvent{Name: name, Phase: "X", PID: pid, TID: tid, TS: w.micros(s.Start), Dur: float64(s.Nanos) / 1e3}); err != nil {
		return err
	}
	stage, to, ok := strings.Cut(s.Name, " to ")
	end, there := w.ends[to+" "+stage]
	if s.Step != "write" || !ok || !there {
		return nil
	}
	id := fmt.Sprintf("%d-%s-%s", s.Rank, to, stage)
	end.Role = "receiver"
	epid, etid, err := w.track(end)
	if err != nil {
		return err
	}
	return errors.Join(
		w.event(spanEvent{Name: stage, Phase: "s", Cat: "push", ID: id, PID: pid, TID: tid, TS: w.micros(s.Start)}),
		w.event(spanEvent{Name: stage, Phase: "f", Cat: "push", ID: id, Bind: "e", PID: epid, TID: etid, TS: w.micros(end.Start + end.Nanos)}),
	)
}

func (w *spanWriter) micros(t int64) float64 { return float64(t-w.first) / 1e3 }

// spanSteps are the tracks of a rank, in their order.
var spanSteps = []string{"stage", "write", "pause", "receive", "digest", "post-load", "flip", "resume"}

// track finds the numbers of a rank and of one of its steps, and names them the first time.
func (w *spanWriter) track(s weights.Span) (pid, tid int, err error) {
	process := fmt.Sprintf("%s %d", s.Role, s.Rank)
	if w.pids[process] == 0 {
		w.pids[process] = len(w.pids) + 1
		err = w.event(spanEvent{Name: "process_name", Phase: "M", PID: w.pids[process], Args: map[string]string{"name": process}})
	}
	pid, tid = w.pids[process], slices.Index(spanSteps, s.Step)+1
	if key := fmt.Sprint(process, s.Step); w.tids[key] == 0 {
		w.tids[key] = 1
		err = errors.Join(err, w.event(spanEvent{Name: "thread_name", Phase: "M", PID: pid, TID: tid, Args: map[string]string{"name": s.Step}}))
	}
	return pid, tid, err
}

func (w *spanWriter) event(e spanEvent) error {
	data, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	if w.n++; w.n > 1 {
		w.w.WriteByte(',')
	}
	w.w.WriteByte('\n')
	w.w.Write(data)
	return nil
}
