package weightsim

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"
)

// maxArrows is up to how many ranks a trace has arrows from every source to every destination; more would hide everything else.
const maxArrows = 64

// WriteTrace writes the timeline as Chrome trace events, for chrome://tracing or Perfetto: a process for each rank, a track for each of its
// steps, a bar for each stage of the model. It needs Options.Trace.
func (t *Timeline) WriteTrace(w io.Writer) error {
	b := &tracer{w: bufio.NewWriter(w)}
	fmt.Fprint(b.w, `{"displayTimeUnit":"ms","otherData":{"source":"simulation"},"traceEvents":[`)
	for i, stages := range t.publisherAt {
		pid := 1 + i
		b.name(pid, fmt.Sprintf("train-%d", t.Publishers[i].Rank), "copy", "stage", "write")
		for s := range stages {
			m := &stages[s]
			b.bar(pid, stepCopy, t.stages[s], m.step[stepCopy].from, m.step[stepCopy].to)
			b.bar(pid, stepStage, t.stages[s], m.step[stepStage].from, m.step[stepStage].to)
			b.bar(pid, steps, t.stages[s], m.posted, m.wrote)
			for _, to := range slices.Sorted(maps.Keys(t.arrows(m))) {
				b.event(`{"ph":"s","cat":"push","name":%q,"id":"%d-%d-%d","pid":%d,"tid":%d,"ts":%.3f}`, t.stages[s], i, to, s, pid, steps, us(m.posted))
			}
		}
	}
	for i, stages := range t.receiverAt {
		pid := 1 + len(t.publisherAt) + i
		b.name(pid, fmt.Sprintf("infer-%d", t.Receivers[i].Rank), "receive")
		for s := range stages {
			m := &stages[s]
			b.bar(pid, 0, t.stages[s], m.first, m.last)
			for k := range t.publisherAt {
				if to := t.Receivers[i].Rank; t.arrows(&t.publisherAt[k][s])[to] {
					b.event(`{"ph":"f","bp":"e","cat":"push","name":%q,"id":"%d-%d-%d","pid":%d,"tid":0,"ts":%.3f}`, t.stages[s], k, to, s, pid, us(m.last))
				}
			}
		}
	}
	fmt.Fprint(b.w, "]}\n")
	if err := b.w.Flush(); err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	return nil
}

// arrows are the receivers of a stage of a publisher, unless there are too many to be seen.
func (t *Timeline) arrows(m *marks) map[int]bool {
	if len(t.Publishers)+len(t.Receivers) > maxArrows {
		return nil
	}
	return m.to
}

// tracer writes events with commas between them. Errors come with Flush.
type tracer struct {
	w    *bufio.Writer
	some bool
}

func (b *tracer) event(format string, args ...any) {
	if b.some {
		b.w.WriteByte(',')
	}
	b.some = true
	b.w.WriteByte('\n')
	fmt.Fprintf(b.w, format, args...)
}

func (b *tracer) name(pid int, process string, threads ...string) {
	b.event(`{"ph":"M","name":"process_name","pid":%d,"args":{"name":%q}}`, pid, process)
	for i, s := range threads {
		b.event(`{"ph":"M","name":"thread_name","pid":%d,"tid":%d,"args":{"name":%q}}`, pid, i, s)
	}
}

func (b *tracer) bar(pid, tid int, name string, from, to time.Duration) {
	if to > 0 {
		b.event(`{"ph":"X","cat":"push","name":%q,"pid":%d,"tid":%d,"ts":%.3f,"dur":%.3f}`, name, pid, tid, us(from), us(to-from))
	}
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
