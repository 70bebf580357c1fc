package bench

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/hawser-project/hawser"
)

// Server is the receiving process for clients on other hosts, or on this one: what a Site calls when it has Servers.
type Server struct {
	Host Host

	// MaxPool bounds the memory, in bytes, that a client may ask for, on this side; the yardstick over TCP needs as much again. Default
	// DefaultMaxPool.
	MaxPool uint64

	// Ready is called once with the addresses where clients connect. It may be nil.
	Ready func(addrs []string)

	// Tell is told when a run begins and ends, on the goroutine of Run. It may be nil.
	Tell func(format string, args ...any)
}

// DefaultMaxPool is enough for the cold scenarios.
const DefaultMaxPool = 4 << 30

// Run serves one client after the other until ctx ends, which is no error. A run that fails ends for its client alone.
func (s Server) Run(ctx context.Context) (err error) {
	if s.MaxPool == 0 {
		s.MaxPool = DefaultMaxPool
	}
	if s.Tell == nil {
		s.Tell = func(string, ...any) {}
	}
	address := s.Host.address()
	if host, _, err := net.SplitHostPort(s.Host.Listen); address == "" && err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		return fmt.Errorf("bench: a server that listens on all addresses of its host must be told by which device it is reached: %w", hawser.ErrInvalid)
	}
	box, err := openMailbox(ctx, s.Host, address, "server", true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, box.close(ctx)) }()
	if s.Ready != nil {
		s.Ready(box.eng.ListenAddrs())
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-box.done:
			return errors.New("bench: the server's engine has closed")
		case c := <-box.fresh:
			c.served.Store(true)
			select {
			case <-c.done: // it has not waited
			default:
				s.serve(ctx, c)
			}
			box.forget(c)
		}
	}
}

// serve is the receiver of one client until that has enough.
func (s Server) serve(ctx context.Context, c *call) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		select {
		case <-c.done:
			cancel(fmt.Errorf("bench: client %s: %w", c.name, c.err))
		case <-ctx.Done():
		}
	}()
	s.Tell("client %s\n", c.name)
	r := &receiver{up: c, host: s.Host, served: true, limit: s.MaxPool}
	err := r.serve(ctx)
	if errors.Is(err, errClientEnded) {
		err = nil
	}
	switch err = errors.Join(err, r.close(ctx)); {
	case err == nil:
		_ = c.Send(msgEnded, nil) // a client that is gone need not know
	case errors.Is(err, context.Canceled):
		c.fail(errors.New("the server was interrupted"))
	default:
		s.Tell("client %s: %v\n", c.name, err)
		c.fail(err)
	}
}
