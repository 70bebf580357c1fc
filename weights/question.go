package weights

import (
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/stage"
)

// Messages that begin with questionMagic are questions of a controller to a member, those with replyMagic answers, both in JSON. Nothing of the protocol depends on
// them.
const (
	questionMagic = "hwQ1"
	replyMagic    = "hwY1"
)

// question is what a controller asks.
type question struct {
	ID   uint64
	What string // askContent, askSpans
}

const (
	askContent = "content" // receivers: hash what is served
	askSpans   = "spans"   // when what was done in the last push
	askUsage   = "usage"   // what the engine has sent, and the process has computed
)

// reply is what a member answers.
type reply struct {
	ID      uint64
	Content *Content
	Spans   []Span
	Usage   *Usage
	Err     string
}

// Content is what a receiver's memory holds, hashed when it was asked.
type Content struct {
	Rank, Instance int
	Version        Version
	Root           string // in hexadecimal, of all that the layout puts there
	Recorded       string // the root that was noted when the version came; empty: none was
	Cells          []byte // the XXH64 of each cell of 1 MiB, in the order of tensors' names, little-endian
	Err            string // why there is no root: it serves nothing, or changed meanwhile
}

// asked is a question that is under way. Guarded by the controller's mu.
type asked struct {
	waits map[proto.ID]bool
	got   map[proto.ID]reply
	more  chan struct{} // capacity 1
}

// ask asks members, and returns the answers of those who did before ctx ended, or their session.
func (c *Controller) ask(ctx context.Context, what string, who func(m *proto.Member) bool) (map[proto.ID]reply, []proto.Join) {
	c.mu.Lock()
	c.asks++
	q := question{c.asks, what}
	a := &asked{waits: map[proto.ID]bool{}, got: map[proto.ID]reply{}, more: make(chan struct{}, 1)}
	data, err := json.Marshal(q)
	var members []proto.Join
	for _, j := range c.m.Status().Members {
		if err == nil && who(&j.Member) {
			members = append(members, j)
			a.waits[j.Member.ID] = true
			c.Send(j.Member.ID, append([]byte(questionMagic), data...))
		}
	}
	c.asking[q.ID] = a
	c.mu.Unlock()
	for tick := time.NewTicker(alivePause); ; {
		defer tick.Stop()
		c.mu.Lock()
		for id := range a.waits {
			if x := c.peers[id]; x == nil || x.p == nil || !x.p.Up() {
				delete(a.waits, id)
			}
		}
		over := len(a.waits) == 0 || ctx.Err() != nil || c.ctx.Err() != nil
		if over {
			delete(c.asking, q.ID)
		}
		c.mu.Unlock()
		if over {
			return a.got, members
		}
		select {
		case <-a.more:
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

// replied takes an answer.
func (c *Controller) replied(from *hawser.Peer, data []byte) {
	var r reply
	if json.Unmarshal(data, &r) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.asking[r.ID]; a != nil && a.waits[from.ID()] {
		delete(a.waits, from.ID())
		a.got[from.ID()] = r
		signal(a.more)
	}
}

// Contents makes every receiver hash the memory that it serves, again: what was noted when a version came says nothing of what has happened to it since. One that
// cannot has an Err.
func (c *Controller) Contents(ctx context.Context) ([]Content, error) {
	got, members := c.ask(ctx, askContent, func(m *proto.Member) bool { return m.Role == proto.RoleReceiver })
	all := []Content{}
	for _, j := range members {
		x := Content{Rank: j.Member.Rank, Instance: j.Member.Instance, Err: "no answer"}
		if r, ok := got[j.Member.ID]; ok && r.Content != nil {
			x = *r.Content
			x.Rank, x.Instance = j.Member.Rank, j.Member.Instance
		}
		all = append(all, x)
	}
	slices.SortFunc(all, func(a, b Content) int { return a.Rank - b.Rank })
	if err := context.Cause(ctx); err != nil {
		return all, fmt.Errorf("weights: contents: %w", err)
	}
	return all, nil
}

// Usage is what a member's engine and process have done since they were started: the difference of two is what lies between.
type Usage struct {
	Engine  string // its id
	Role    string
	Rank    int
	Process string // members of one process have the same CPU
	CPU     time.Duration
	Imports uint64 // of descriptors
	Resent  uint64 // writes that went down with a connection and were sent again
	Stale   uint64 // immediates that nobody waited for
	Rails   []RailUsage
}

// RailUsage is what went over a rail.
type RailUsage struct {
	Provider, Device          string
	LinkBits                  uint64 // bits per second, 0 when unknown
	TxBytes, TxWrites, RxImms uint64
	RxBytes                   uint64 // of writes with immediates
}

// Usage is what members have done so far.
func (c *Controller) Usage(ctx context.Context) ([]Usage, error) {
	got, members := c.ask(ctx, askUsage, func(*proto.Member) bool { return true })
	all := []Usage{}
	for _, j := range members {
		if u := got[j.Member.ID].Usage; u != nil {
			u.Engine, u.Role, u.Rank = j.Member.ID.String(), j.Member.Role.String(), j.Member.Rank
			all = append(all, *u)
		}
	}
	if err := context.Cause(ctx); err != nil {
		return all, fmt.Errorf("weights: usage: %w", err)
	}
	return all, nil
}

func (m *member) usage() *Usage {
	host, _ := os.Hostname() // without a name processes of several hosts may be taken for one
	u := &Usage{Process: fmt.Sprintf("%s/%d", host, os.Getpid())}
	var r syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &r) == nil {
		u.CPU = time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	st := m.eng.Stats()
	u.Stale = st.StaleImms
	for i := range st.Rails {
		x := &st.Rails[i]
		u.Resent += x.Resent
		u.Rails = append(u.Rails, RailUsage{x.Provider, x.Device, x.LinkBits, x.TxBytes, x.TxWrites, x.RxImms, x.RxImmBytes})
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	u.Imports = m.imports
	return u
}

// Span is a step of a member's part of a push.
type Span struct {
	Role  string
	Rank  int
	Step  string // "stage", "write", "receive", "verify", "post-load", "pause", ...
	Name  string // of the stage; empty where there is none
	Start int64  // nanoseconds of the member's wall clock since 1970
	Nanos int64
}

// Spans are what members did when in their last push, as they have noted: at most maxSpans each.
func (c *Controller) Spans(ctx context.Context) ([]Span, error) {
	got, members := c.ask(ctx, askSpans, func(*proto.Member) bool { return true })
	all := []Span{}
	for _, j := range members {
		for _, s := range got[j.Member.ID].Spans {
			s.Role, s.Rank = j.Member.Role.String(), j.Member.Rank
			all = append(all, s)
		}
	}
	slices.SortStableFunc(all, func(a, b Span) int { return cmp.Compare(a.Start, b.Start) })
	if err := context.Cause(ctx); err != nil {
		return all, fmt.Errorf("weights: spans: %w", err)
	}
	return all, nil
}

// questioned takes a question of the controller.
func (m *member) questioned(from *hawser.Peer, data []byte) bool {
	if !has(data, questionMagic) {
		return false
	}
	var q question
	m.mu.Lock()
	defer m.mu.Unlock()
	if json.Unmarshal(data[len(questionMagic):], &q) != nil || from != m.office {
		return true
	}
	m.do(func(context.Context) func(proto.Time) {
		a := m.answers(q)
		return func(proto.Time) {
			if data, err := json.Marshal(a); err == nil {
				m.Send(from.ID(), append([]byte(replyMagic), data...))
			}
		}
	})
	return true
}

func (m *member) answers(q question) reply {
	a := reply{ID: q.ID}
	switch {
	case q.What == askSpans:
		a.Spans = m.spans.all()
	case q.What == askUsage:
		a.Usage = m.usage()
	case q.What == askContent && m.content != nil:
		a.Content = m.content()
	default:
		a.Err = fmt.Sprintf("question %q is not known here", q.What)
	}
	return a
}

// hashed is what the memory that is served holds.
func (r *Receiver) hashed() *Content {
	r.reading.Lock() // Suspend waits for it: then memory may go
	defer r.reading.Unlock()
	r.mu.Lock()
	before, active, memory := r.m.Status(), r.active, slices.Clone(r.served())
	r.mu.Unlock()
	if !r.serves(&before) {
		return &Content{Err: fmt.Sprintf("it serves no version: it is %v", before.State)}
	}
	x := &Content{Version: before.Version}
	if before.Root != (proto.Hash{}) {
		x.Recorded = hex.EncodeToString(before.Root[:])
	}
	root := stage.NewRoot()
	root.Cell = func(sum uint64, _ int) { x.Cells = le.AppendUint64(x.Cells, sum) }
	if err := r.addTo(r.ctx, root, memory); err != nil {
		return &Content{Err: err.Error()}
	}
	sum := root.Sum()
	x.Root = hex.EncodeToString(sum[:])
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.m.Status(); !r.serves(&now) || now.Version != before.Version || r.active != active || r.o.Shadow == nil && now.Epoch != before.Epoch {
		return &Content{Err: fmt.Sprintf("it changed while it was hashed: it served v%d and is %v", before.Version, now.State)}
	}
	return x
}

// serves reports whether the memory that is served is whole: with a shadow also while another version comes.
func (r *Receiver) serves(s *proto.ReceiverStatus) bool {
	return s.Active == proto.StateCommitted && (r.o.Shadow != nil || s.State == proto.StateCommitted)
}
