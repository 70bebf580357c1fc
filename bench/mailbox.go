package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
)

// mailbox has the conversations of a process with those on other hosts: messages of an engine of its own, which authenticates the other side and
// notices its end.
type mailbox struct {
	eng   *engine
	fresh chan *call // begun by others, nil for who takes none
	done  chan struct{}
	stop  context.CancelFunc

	mu    sync.Mutex
	calls map[*hawser.Peer]*call // guarded by mu
}

const (
	maxWaiting = 16 // clients in front of a server
	inboxSize  = 8  // messages of a call that were not taken yet; the conversation has one, or two

	// joinTimeout bounds how long the processes of a run take to connect to each other.
	joinTimeout = 30 * time.Second
	// sendTimeout bounds how long a message may be under way.
	sendTimeout = 10 * time.Second
)

// Messages between client and server in addition to those of a line.
const (
	msgError = "error" // text: why the server has ended the run
	msgEnd   = "end"   // null -> ended
	msgEnded = "ended" // null
)

// openMailbox opens a mailbox at an address of this host, "" for one that only this host reaches; one that serves listens where the host
// says.
func openMailbox(ctx context.Context, h Host, address, name string, serve bool) (*mailbox, error) {
	o, err := h.options(name, tcpName, []string{address}, 1)
	if err != nil {
		return nil, err
	}
	if serve {
		o.Listen = h.Listen
	}
	b := &mailbox{done: make(chan struct{}), calls: map[*hawser.Peer]*call{}}
	if serve {
		b.fresh = make(chan *call, maxWaiting)
	}
	if b.eng, err = h.start(ctx, o); err != nil {
		return nil, err
	}
	b.eng.OnPeer(func(e hawser.PeerEvent) {
		if e.Kind == hawser.PeerDown {
			b.find(e.Peer).end(e.Cause)
		}
	})
	var reading context.Context
	reading, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	go b.read(reading)
	return b, nil
}

// close ends all calls.
func (b *mailbox) close(ctx context.Context) error {
	if b == nil {
		return nil
	}
	b.stop()
	<-b.done
	return b.eng.close(ctx)
}

// read hands messages over until ctx ends, or the engine does.
func (b *mailbox) read(ctx context.Context) {
	defer close(b.done)
	for {
		m, err := b.eng.Receive(ctx)
		if err != nil {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, c := range b.calls {
				c.end(err)
			}
			return
		}
		b.deliver(m)
	}
}

func (b *mailbox) deliver(letter hawser.Message) {
	var m proc.Message
	err := json.Unmarshal(letter.Data, &m)
	c := b.find(letter.From)
	if c == nil && err == nil && m.Kind == msgOpen && b.fresh != nil {
		c = b.add(letter.From, letter.From.String())
		select {
		case b.fresh <- c:
		default:
			c.end(fmt.Errorf("%d clients wait already", maxWaiting))
			c.fail(c.Err())
			b.forget(c)
		}
	}
	switch {
	case c == nil: // of a call that has ended
	case err != nil:
		c.end(fmt.Errorf("what %s sent is no message: %w", c.name, err))
	case m.Kind == msgEnd && b.fresh != nil:
		c.end(errClientEnded)
		if !c.served.Load() { // it has waited in vain; who serves it answers else
			_ = c.Send(msgEnded, nil) // a client that is gone need not know
		}
	case m.Kind == msgEnded && b.fresh == nil:
		c.end(nil)
	case m.Kind == msgError && b.fresh == nil:
		var text string
		_ = m.Decode(&text) // an empty text says no less
		c.end(&proc.ExitError{Name: c.name, Text: text})
	default:
		select {
		case c.in <- m:
		default:
			c.end(fmt.Errorf("%s does not wait for answers", c.name))
		}
	}
}

// dial calls a server.
func (b *mailbox) dial(ctx context.Context, addr string) (*call, error) {
	p, err := b.eng.Connect(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("bench: server %s: %w", addr, err)
	}
	if b.find(p) != nil {
		return nil, fmt.Errorf("bench: server %s is named twice: each one is a receiving process", addr)
	}
	return b.add(p, "server "+addr), nil
}

func (b *mailbox) add(p *hawser.Peer, name string) *call {
	c := &call{box: b, peer: p, name: name, in: make(chan proc.Message, inboxSize), done: make(chan struct{})}
	b.mu.Lock()
	b.calls[p] = c
	b.mu.Unlock()
	if !p.Up() { // the event may have come before
		c.end(hawser.ErrPeerDown)
	}
	return c
}

func (b *mailbox) find(p *hawser.Peer) *call {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.calls[p]
}

func (b *mailbox) forget(c *call) {
	b.mu.Lock()
	delete(b.calls, c.peer)
	b.mu.Unlock()
}

// call is one conversation.
type call struct {
	box  *mailbox
	peer *hawser.Peer
	name string
	in   chan proc.Message

	begun  bool        // the client has sent something; of the goroutine that calls Send
	served atomic.Bool // its turn at the server has come

	once sync.Once
	done chan struct{} // closed when the conversation is over
	err  error         // why; valid once done is closed
}

// errClientEnded ends a call as the client has asked for.
var errClientEnded = errors.New("the client has ended the run")

// end ends a call; only the first reason counts. It does nothing for nil.
func (c *call) end(err error) {
	if c != nil {
		c.once.Do(func() { c.err = err; close(c.done) })
	}
}

// Send sends a message and waits until it is there.
func (c *call) Send(kind string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("bench: send %q: %w", kind, err)
	}
	letter, err := json.Marshal(proc.Message{Kind: kind, Data: data})
	if err != nil {
		return fmt.Errorf("bench: send %q: %w", kind, err)
	}
	c.begun = true
	t, err := c.box.eng.Send(c.peer, letter)
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), sendTimeout)
	defer cancel()
	if err := t.Wait(ctx); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// Next returns the next message.
func (c *call) Next(ctx context.Context) (proc.Message, error) {
	select {
	case m := <-c.in: // what came before the end
		return m, nil
	default:
	}
	select {
	case m := <-c.in:
		return m, nil
	case <-c.done:
		if c.err == nil {
			return proc.Message{}, fmt.Errorf("%s has ended the run", c.name)
		}
		return proc.Message{}, c.err
	case <-ctx.Done():
		return proc.Message{}, context.Cause(ctx)
	}
}

func (c *call) Done() <-chan struct{} { return c.done }

// Err is nil after the end that was asked for.
func (c *call) Err() error {
	if c.err == nil {
		return nil
	}
	if exit := new(proc.ExitError); errors.As(c.err, &exit) {
		return c.err
	}
	return &proc.ExitError{Name: c.name, Text: c.err.Error(), Err: nil}
}

// Stop ends the run at the server. The server goes on serving others.
func (c *call) Stop(grace time.Duration) error {
	defer c.box.forget(c)
	select {
	case <-c.done:
		return c.Err()
	default:
	}
	if !c.begun {
		return nil
	}
	if err := c.Send(msgEnd, nil); err != nil {
		return err
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.done:
		return c.Err()
	case <-timer.C:
		return fmt.Errorf("%s does not answer", c.name)
	}
}

// fail tells the client why the run has ended.
func (c *call) fail(err error) { _ = c.Send(msgError, err.Error()) } // a client that is gone need not know
