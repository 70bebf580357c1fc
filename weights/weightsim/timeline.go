package weightsim

import (
	"time"
)

// Timeline is what a simulated push took. Times are from BEGIN, durations are sums over one rank's calls.
type Timeline struct {
	Start     time.Duration // the last publisher may write
	FirstByte time.Duration // the first write is submitted
	LastByte  time.Duration // the last receiver has counted everything
	Total     time.Duration // the controller has heard DONE from every receiver

	Floor       time.Duration // what the busiest NIC needs for its bytes at line rate
	Bytes       int64         // that receivers got
	Writes      int64
	MaxIn       int64 // bytes of the receiver that gets most
	MaxOut      int64 // bytes of the publisher that sends most
	AvgOut      float64
	Stale       int           // immediates of an epoch that had ended
	Repaired    time.Duration // publishers of the repaired plan may write; 0: nothing was repaired
	Resent      int64         // bytes that a repair sent again
	Publishers  []Publisher
	Receivers   []Receiver
	Control     Traffic
	Events      uint64 // that the fabric played
	stages      []string
	publisherAt [][]marks
	receiverAt  [][]marks
}

// Publisher is what one trainer did.
type Publisher struct {
	Rank         int
	Bytes        int64 // written
	Writes       int64
	Copied       int64         // bytes from host memory
	Copies       int           // calls
	Stages       int           // calls
	Copy, Stage  time.Duration // busy
	Amax         time.Duration // busy with maxima of blocks that straddle shards
	Post         time.Duration // busy with posting, of the model of the NIC
	Start, First time.Duration // may write, and does
	End          time.Duration // nothing is in flight any more
	Peak         int64         // bytes of staging
}

// Receiver is what one inference rank got.
type Receiver struct {
	Rank  int
	Bytes int64
	Done  time.Duration // it has counted everything
}

// Tail is how much later than the floor the last byte is, beside the start.
func (t *Timeline) Tail() time.Duration { return t.LastByte - t.FirstByte - t.Floor }

// Commit is what is left after the last byte.
func (t *Timeline) Commit() time.Duration { return t.Total - t.LastByte }

// Mean is a publisher of average times.
func (t *Timeline) Mean() Publisher {
	var m Publisher
	n := len(t.Publishers)
	for i := range t.Publishers {
		p := &t.Publishers[i]
		m.Bytes += p.Bytes
		m.Writes += p.Writes
		m.Copied += p.Copied
		m.Copies += p.Copies
		m.Stages += p.Stages
		m.Copy += p.Copy
		m.Stage += p.Stage
		m.Amax += p.Amax
		m.Post += p.Post
		m.Start += p.Start
		m.First += p.First
		m.End += p.End
		m.Peak = max(m.Peak, p.Peak)
	}
	k := time.Duration(max(n, 1))
	m.Bytes, m.Writes, m.Copied = m.Bytes/int64(k), m.Writes/int64(k), m.Copied/int64(k)
	m.Copies, m.Stages = m.Copies/int(k), m.Stages/int(k)
	m.Amax /= k
	m.Copy, m.Stage, m.Post, m.Start, m.First, m.End = m.Copy/k, m.Stage/k, m.Post/k, m.Start/k, m.First/k, m.End/k
	return m
}

// Steps of a publisher in a trace.
const (
	stepCopy = iota
	stepStage
	steps
)

// marks are when one rank had to do with one stage.
type marks struct {
	step        [steps]span
	posted      time.Duration // publisher: its first write is submitted,
	wrote       time.Duration // and its last one has ended
	to          map[int]bool  // receivers of it
	first, last time.Duration // receiver: immediates
}

type span struct {
	from, to time.Duration
	busy     time.Duration
}

func (p *publisher) mark(step, stage int, d time.Duration) {
	if p.marks == nil {
		return
	}
	s, now := &p.marks[stage].step[step], p.h.w.now()
	if s.busy == 0 {
		s.from = now
	}
	s.to = now + d
	s.busy += d
}

// post notes a write.
func (m *marks) post(now time.Duration, to int) {
	if m.to == nil {
		m.posted, m.to = now, map[int]bool{}
	}
	m.to[to] = true
}
