//go:build soak

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
)

// config is what a member is told at its start.
type config struct {
	Parent            int // its process id; the first field, so that members can be found
	Place, Generation int
	Seed              uint64
	Rails             []string // addresses of its tcp rails
	Far               bool     // there are members on another host
}

// configEnv holds the config of a member; a process without it is the parent.
const configEnv = "HAWSER_SOAK_MEMBER"

// hang bounds every wait: it guards against hanging and asserts nothing else.
const hang = time.Minute

// patience is a context that ends after hang, of the time in which this process ran: it may be stopped for longer.
func patience() (context.Context, context.CancelFunc) {
	const slice = time.Second // all that counts of the time in which it is stopped
	ctx, cancel := context.WithCancelCause(context.Background())
	left := int(hang / slice)
	var tick func()
	tick = func() {
		if left--; left == 0 {
			cancel(context.DeadlineExceeded)
		} else if ctx.Err() == nil {
			time.AfterFunc(slice, tick)
		}
	}
	time.AfterFunc(slice, tick)
	return ctx, func() { cancel(nil) }
}

// member is a member process. It has one engine at a time.
type member struct {
	config
	parent *proc.Parent
	before usage // without an engine
	serial atomic.Uint64
	strict atomic.Bool
	counts tally

	mu     sync.Mutex
	roster map[string]string // guarded by mu: addresses of other members' engines, by identity
	n      *node             // guarded by mu
}

func runMember(text string) error {
	m := &member{roster: map[string]string{}}
	if err := json.Unmarshal([]byte(text), &m.config); err != nil {
		return err
	}
	var ctx context.Context
	m.parent, ctx = proc.Attach(context.Background())
	go m.tell(ctx)
	var err error
	if m.before, err = measure(); err != nil {
		return err
	}
	if err := m.open(); err != nil {
		return err
	}
	for {
		msg, err := m.parent.Next(ctx)
		if errors.Is(err, proc.ErrParentGone) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := m.handle(msg); err != nil {
			return err
		}
	}
}

// tellInterval is how much of its tally a killed member loses at most.
const tellInterval = 500 * time.Millisecond

func (m *member) tell(ctx context.Context) {
	tick := time.NewTicker(tellInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			m.say(kindTally, m.counts.take())
		case <-ctx.Done():
			return
		}
	}
}

// say tells the parent something. When that fails the parent is gone, and this process about to be.
func (m *member) say(kind string, v any) { _ = m.parent.Send(kind, v) }

func (m *member) wrong(format string, args ...any) {
	m.say(kindWrong, fmt.Sprintf(format, args...))
}

func (m *member) handle(msg proc.Message) error {
	switch msg.Kind {
	case kindOpen:
		var e entry
		if err := msg.Decode(&e); err != nil {
			return err
		}
		m.mu.Lock()
		m.roster[e.ID] = e.Addr
		m.mu.Unlock()
	case kindShut:
		var id string
		if err := msg.Decode(&id); err != nil {
			return err
		}
		m.mu.Lock()
		delete(m.roster, id)
		n := m.n
		m.mu.Unlock()
		n.gone(id)
	case kindRoute:
		var p packet
		if err := msg.Decode(&p); err != nil {
			return err
		}
		if n := m.node(); n.id == p.To {
			n.receive(&p)
		}
	case kindOrder:
		var o order
		if err := msg.Decode(&o); err != nil {
			return err
		}
		go func() { // the bus goes on
			r := m.obey(o)
			r.N = o.N
			m.say(kindReply, r)
		}()
	}
	return nil
}

func (m *member) node() *node {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.n
}

// others are the engines of other members.
func (m *member) others() (out []entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, addr := range m.roster {
		out = append(out, entry{id, addr})
	}
	return out
}

func (m *member) knows(id string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.roster[id] != ""
}

func (m *member) obey(o order) (r reply) {
	n := m.node()
	var err error
	switch o.What {
	case orderRun:
		m.strict.Store(o.Strict)
		n.forgetAll()
		n.gate.open()
	case orderPause:
		n.gate.close()
		m.say(kindTally, m.counts.take())
	case orderSettle:
		err = n.settle()
	case orderConnect:
		err = n.connectAll()
	case orderBarrier:
		err = n.barrier(o.Round)
	case orderMail:
		r.Mail = n.mailbox()
	case orderMeasure:
		var u usage
		u, err = measure()
		r.Usage = &u
	case orderReopen:
		n.close(o.Rude)
		if err = m.open(); err == nil {
			m.node().gate.open()
		}
	case orderClose:
		n.close(false)
		err = m.clean()
		m.say(kindTally, m.counts.take())
	}
	if err != nil {
		r.Err = err.Error()
	}
	return r
}

// clean checks that nothing is left of the engines.
func (m *member) clean() error {
	for end := time.Now().Add(hang); ; time.Sleep(10 * time.Millisecond) {
		u, err := measure()
		if err != nil {
			return err
		}
		u.Routines-- // this one, which carries out an order
		more := u.more(m.before)
		if more == "" {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("after the last engine has closed there are %s\n%s", more, stacks())
		}
	}
}

// open opens an engine and announces it.
func (m *member) open() error {
	o := hawser.Options{
		Name: fmt.Sprintf("member %d", m.Place), ClusterKey: []byte("soak"),
	}
	if m.Far {
		o.Listen = "0.0.0.0:0"
	}
	if m.near() {
		o.Rails = append(o.Rails, hawser.Rail{Provider: "shm"})
	} else {
		o.Providers = []provider.Provider{tcp.New()}
	}
	for _, ip := range m.Rails {
		o.Rails = append(o.Rails, hawser.Rail{Provider: "tcp", Device: ip})
	}
	serial := m.serial.Add(1)
	n, err := newNode(m, o, rand.NewPCG(m.Seed^serial<<32, uint64(m.Place)<<32|uint64(m.Generation)))
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.n = n
	m.mu.Unlock()
	m.say(kindOpen, entry{n.id, n.e.Addr()})
	return nil
}

// near reports whether the member has shared memory: all have but one.
func (m *member) near() bool { return m.Place != memberCount-1 }

// tcpRail is the number of its first tcp rail.
func (m *member) tcpRail() int {
	if m.near() {
		return 1
	}
	return 0
}

func memberMain(text string) {
	if err := runMember(text); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
