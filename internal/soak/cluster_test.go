//go:build soak

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
)

const memberCount = 4

// cluster is the members, and the bus between them.
type cluster struct {
	t     *testing.T
	seed  uint64
	net   *network // nil when all members are on one host
	seats [memberCount]*seat
	total tally
	bad   atomic.Bool // a check has failed

	rounds uint32 // of barriers

	mu     sync.Mutex
	roster map[string]place // guarded by mu: engines, by identity
}

type place struct {
	addr string
	p    *process
}

// seat is a place for a member; its process is replaced when it has been killed.
type seat struct {
	index, generation int
	p                 *process
	fresh             *usage // what a process in this place held before anything had happened to it
}

// process is the process of a member.
type process struct {
	c      *cluster
	name   string
	child  *proc.Child
	out    outbox
	killed atomic.Bool   // by us
	ended  chan struct{} // closed when all that it said has been heard

	mu      sync.Mutex
	replies map[uint64]chan reply // guarded by mu
	last    uint64                // guarded by mu
}

// wrong notes that a check has failed; the run ends soon after.
func (c *cluster) wrong(format string, args ...any) {
	c.bad.Store(true)
	c.t.Errorf(format, args...)
}

// start starts a process on a seat.
func (c *cluster) start(s *seat) {
	s.generation++
	cfg := config{Parent: os.Getpid(), Place: s.index, Generation: s.generation, Seed: c.seed, Rails: []string{"127.0.0.1", "127.0.0.2"}}
	spec := proc.Spec{Name: fmt.Sprintf("member %d.%d", s.index, s.generation)}
	if c.net != nil {
		host := s.index / 2
		exe, err := os.Executable()
		must(c.t, err)
		spec.Path, spec.Args = "ip", []string{"netns", "exec", c.net.hosts[host], exe}
		cfg.Far = true
		cfg.Rails = []string{address(host, 0), address(host, 1)}
	}
	spec.Env = []string{configEnv + "=" + string(encode(cfg))}
	p := &process{c: c, name: spec.Name, ended: make(chan struct{}), replies: map[uint64]chan reply{}}
	p.out.change = sync.NewCond(&p.out.mu)
	var err error
	p.child, err = proc.Start(spec)
	must(c.t, err)
	c.mu.Lock()
	s.p = p // under mu: whoever speaks to all members finds it
	for id, e := range c.roster {
		p.out.push(kindOpen, entry{id, e.addr})
	}
	c.mu.Unlock()
	go p.send()
	go p.hear()
}

// hear listens to a member until it ends.
func (p *process) hear() {
	defer close(p.ended)
	for {
		m, err := p.child.Next(context.Background())
		if err != nil {
			if !errors.Is(err, io.EOF) && !p.killed.Load() {
				p.c.wrong("%v", err)
			}
			break
		}
		if err := p.handle(m); err != nil {
			p.c.wrong("%s: %v", p.name, err)
		}
	}
	p.out.end()
	p.c.shut(func(e place) bool { return e.p == p })
	p.mu.Lock()
	defer p.mu.Unlock()
	for n, ch := range p.replies {
		delete(p.replies, n)
		ch <- reply{Err: "it ended"}
	}
}

func (p *process) handle(m proc.Message) error {
	switch m.Kind {
	case kindOpen:
		var e entry
		if err := m.Decode(&e); err != nil {
			return err
		}
		p.c.open(e, p)
	case kindShut:
		var id string
		if err := m.Decode(&id); err != nil {
			return err
		}
		p.c.mu.Lock()
		gone := p.c.roster[id]
		p.c.mu.Unlock()
		p.c.shut(func(e place) bool { return e == gone })
	case kindRoute:
		var to struct{ To string }
		if err := m.Decode(&to); err != nil {
			return err
		}
		p.c.mu.Lock()
		defer p.c.mu.Unlock()
		if e, ok := p.c.roster[to.To]; ok {
			e.p.out.push(kindRoute, m.Data)
		}
	case kindWrong:
		var text string
		if err := m.Decode(&text); err != nil {
			return err
		}
		p.c.wrong("%s: %s", p.name, text)
	case kindTally:
		var counts map[string]uint64
		if err := m.Decode(&counts); err != nil {
			return err
		}
		for name, n := range counts {
			p.c.total.add(name, n)
		}
	case kindReply:
		var r reply
		if err := m.Decode(&r); err != nil {
			return err
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if ch := p.replies[r.N]; ch != nil {
			delete(p.replies, r.N)
			ch <- r
		}
	default:
		return fmt.Errorf("message of kind %q", m.Kind)
	}
	return nil
}

// open tells everybody else about an engine.
func (c *cluster) open(e entry, p *process) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.roster[e.ID] = place{e.Addr, p}
	for _, s := range c.seats {
		if s.p != nil && s.p != p {
			s.p.out.push(kindOpen, e)
		}
	}
}

// shut tells everybody that engines are gone, after all that they have said.
func (c *cluster) shut(which func(place) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, e := range c.roster {
		if !which(e) {
			continue
		}
		delete(c.roster, id)
		for _, s := range c.seats {
			if s.p != nil && s.p != e.p {
				s.p.out.push(kindShut, id)
			}
		}
	}
}

// order gives an order; the answer comes over the channel.
func (p *process) order(o order) <-chan reply {
	ch := make(chan reply, 1)
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.ended:
		ch <- reply{Err: "it has ended"}
		return ch
	default:
	}
	p.last++
	o.N = p.last
	p.replies[o.N] = ch
	p.out.push(kindOrder, o)
	return ch
}

// all gives an order to all members and waits until they have carried it out. ok is false when one has not.
func (c *cluster) all(o order) (replies [memberCount]reply, ok bool) {
	var chans [memberCount]<-chan reply
	for i, s := range c.seats {
		chans[i] = s.p.order(o)
	}
	ok = true
	for i, ch := range chans {
		replies[i] = c.seats[i].p.await(o, ch)
		ok = ok && replies[i].Err == ""
	}
	return replies, ok
}

// carry gives an order to one member and waits until it has been carried out.
func (p *process) carry(o order) bool { return p.await(o, p.order(o)).Err == "" }

// await waits for a reply. When there is none, all members tell where they hang, and end.
func (p *process) await(o order, ch <-chan reply) (r reply) {
	limit := time.NewTimer(2 * hang) // members have limits of their own
	defer limit.Stop()
	select {
	case r = <-ch:
		if r.Err != "" {
			p.c.wrong("%s, %s: %s", p.name, o.What, r.Err)
		}
	case <-limit.C:
		p.c.wrong("%s does not carry out %q", p.name, o.What)
		for _, s := range p.c.seats {
			s.p.killed.Store(true)
			_ = s.p.child.Signal(syscall.SIGCONT) // each of them may come too late
			_ = s.p.child.Signal(syscall.SIGQUIT)
			<-s.p.ended
		}
		r.Err = "it hangs"
	}
	return r
}

// kill ends a process the hard way and waits until the others have been told.
func (p *process) kill() {
	p.killed.Store(true)
	_ = p.child.Signal(syscall.SIGKILL) // it may have ended by itself, which was noticed
	<-p.ended
}

// send sends a member what is for it, however long it does not read.
func (p *process) send() {
	for {
		m, ok := p.out.pop()
		if !ok {
			return
		}
		if p.child.Send(m.Kind, m.Data) != nil {
			return // it ended; hear knows
		}
	}
}

// outbox is a queue without bounds: a stopped member must not stop the others.
type outbox struct {
	mu     sync.Mutex
	change *sync.Cond
	q      []proc.Message // guarded by mu
	ended  bool           // guarded by mu
}

func (o *outbox) push(kind string, v any) {
	data, ok := v.(json.RawMessage)
	if !ok {
		data = encode(v)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.q = append(o.q, proc.Message{Kind: kind, Data: data})
	o.change.Signal()
}

func (o *outbox) pop() (m proc.Message, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.q) == 0 && !o.ended {
		o.change.Wait()
	}
	if o.ended {
		return m, false
	}
	m = o.q[0]
	o.q = o.q[1:]
	return m, true
}

func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.change.Signal()
}

// processesLeft are the members that have not ended, by id.
func processesLeft() (left []string) {
	all, _ := os.ReadDir("/proc") // every process can read it
	for _, d := range all {
		env, err := os.ReadFile("/proc/" + d.Name() + "/environ")
		if err == nil && strings.Contains(string(env), fmt.Sprintf(`%s={"Parent":%d,`, configEnv, os.Getpid())) {
			left = append(left, d.Name())
		}
	}
	return left
}
