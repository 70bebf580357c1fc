package bench

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// The yardstick's connections are streams: unix sockets on one host, TCP else. Each process of a run listens, and says where with a token that who
// dials must say first.

// Names of the yardsticks that are streams, in reports.
const (
	yardUnix = "go unix socket"
	yardTCP  = "go socket"
)

func streamName(c Config) string {
	if c.local() {
		return yardUnix
	}
	return yardTCP
}

// socketHeader is added to the yardstick's messages on TCP: a write or a message of Hawser carries a header of about this length there, bytes.
const socketHeader = 32

// messageSize is the length of the yardstick's messages.
func messageSize(c Config) int {
	if c.local() {
		return int(c.Size)
	}
	return int(c.Size) + socketHeader
}

const tokenSize = 16

// endpoint is where a process listens for streams.
type endpoint struct {
	Network string `json:"network"`
	Address string `json:"address"`
	Token   []byte `json:"token"`
}

// dock listens for streams.
type dock struct {
	endpoint
	l net.Listener
}

// openDock listens at an address of this host, "" for what only this host reaches; a local config's streams are unix sockets.
func openDock(c Config, host string) (*dock, error) {
	d := &dock{endpoint: endpoint{Token: make([]byte, tokenSize)}}
	_, _ = rand.Read(d.Token) // it never fails
	network, address := "tcp", net.JoinHostPort(host, "0")
	switch {
	case c.local():
		network, address = "unix", "@hawser-bench-"+rand.Text()
	case host == "":
		address = "127.0.0.1:0"
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return nil, fmt.Errorf("bench: yardstick: %w", err)
	}
	d.l, d.Network, d.Address = l, network, l.Addr().String()
	return d, nil
}

func (d *dock) close() error { return d.l.Close() }

// accept takes one stream of each of n processes: the first byte that one sends after the token is its number, below n. Who does not know the token
// is hung up on.
func (d *dock) accept(ctx context.Context, n int, numbers func(int) bool) (streams map[int]net.Conn, err error) {
	streams = map[int]net.Conn{}
	stop := context.AfterFunc(ctx, func() { _ = d.l.Close() })
	defer stop()
	for len(streams) < n {
		c, err := d.l.Accept()
		if err != nil {
			return streams, fmt.Errorf("bench: yardstick: %w", errors.Join(context.Cause(ctx), err))
		}
		number, ok := d.greeted(c)
		if _, twice := streams[number]; !ok || twice || !numbers(number) {
			_ = c.Close()
			continue
		}
		streams[number] = c
		if err := tune(c); err != nil {
			return streams, err
		}
	}
	return streams, nil
}

// greeted reads what the dialing side says first.
func (d *dock) greeted(c net.Conn) (number int, ok bool) {
	var hello [tokenSize + 1]byte
	if c.SetReadDeadline(time.Now().Add(closeTimeout)) != nil {
		return 0, false
	}
	if _, err := io.ReadFull(c, hello[:]); err != nil {
		return 0, false
	}
	ok = subtle.ConstantTimeCompare(hello[:tokenSize], d.Token) == 1
	return int(hello[tokenSize]), ok && c.SetReadDeadline(time.Time{}) == nil
}

// dial opens a stream to an endpoint as the process of a number.
func (e endpoint) dial(ctx context.Context, number int) (net.Conn, error) {
	if e.Network != "tcp" && e.Network != "unix" || len(e.Token) != tokenSize {
		return nil, fmt.Errorf("bench: yardstick: %q %q is no endpoint", e.Network, e.Address)
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, e.Network, e.Address)
	if err != nil {
		return nil, fmt.Errorf("bench: yardstick: %w", err)
	}
	if _, err = c.Write(append(append([]byte{}, e.Token...), byte(number))); err == nil {
		err = tune(c)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: yardstick: %w", err), c.Close())
	}
	return c, nil
}

// tune gives a TCP stream on loopback the congestion control that the provider gives its own there: bbr, where it is the default, paces even
// there.
func tune(c net.Conn) error {
	return withSocket(c, func(fd int) error {
		if !c.LocalAddr().(*net.TCPAddr).IP.IsLoopback() {
			return nil
		}
		var err error
		for _, name := range []string{"cubic", "reno"} { // reno is in every kernel
			if err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err == nil {
				return nil
			}
		}
		return fmt.Errorf("congestion control: %w", err)
	})
}

// congestion is the congestion control of a stream, "" for one that has none.
func congestion(c net.Conn) (name string) {
	_ = withSocket(c, func(fd int) (err error) {
		name, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		return err
	})
	return name
}

// withSocket calls f with the descriptor of a TCP stream, and not at all for another one.
func withSocket(c net.Conn, f func(fd int) error) error {
	conn, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var ferr error
	return errors.Join(raw.Control(func(fd uintptr) { ferr = f(int(fd)) }), ferr)
}

// confirmation is what a receiver answers when it has everything.
var confirmation = []byte{1}

// hangUp ends all reads and writes of streams.
func hangUp(streams ...net.Conn) {
	for _, c := range streams {
		if c != nil {
			_ = c.Close()
		}
	}
}
