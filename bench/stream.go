package bench

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// stream is a connection of the yardstick: two pipes on one host, which are twice as fast there as a unix socket, else a TCP connection. Each process of a
// run listens, and says where with a token that who dials must say first; pipes are handed over that way.
type stream interface{ io.ReadWriteCloser }

// Names of the yardsticks that are streams, in reports.
const (
	yardPipe = "pipe"
	yardTCP  = "go socket"
)

func streamName(c Config) string {
	if c.local() {
		return yardPipe
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
func (d *dock) accept(ctx context.Context, n int, numbers func(int) bool) (streams map[int]stream, err error) {
	streams = map[int]stream{}
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
		if local, ok := c.(*net.UnixConn); ok {
			streams[number], err = receivePipes(local)
		} else {
			streams[number], err = c, tune(c)
		}
		if err != nil {
			return streams, fmt.Errorf("bench: yardstick: %w", err)
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
func (e endpoint) dial(ctx context.Context, number int) (s stream, err error) {
	if e.Network != "tcp" && e.Network != "unix" || len(e.Token) != tokenSize {
		return nil, fmt.Errorf("bench: yardstick: %q %q is no endpoint", e.Network, e.Address)
	}
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, e.Network, e.Address)
	if err != nil {
		return nil, fmt.Errorf("bench: yardstick: %w", err)
	}
	s = c
	if _, err = c.Write(append(append([]byte{}, e.Token...), byte(number))); err == nil {
		if local, ok := c.(*net.UnixConn); ok {
			s, err = sendPipes(local)
		} else {
			err = tune(c)
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: yardstick: %w", err), c.Close())
	}
	return s, nil
}

// pipes is a stream over two pipes.
type pipes struct{ in, out *os.File }

func (p pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }

// sendPipes makes two pipes and hands their other ends over on c, which it closes.
func sendPipes(c *net.UnixConn) (stream, error) {
	theirIn, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	in, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), out.Close())
	}
	_, _, err = c.WriteMsgUnix([]byte{0}, unix.UnixRights(int(theirIn.Fd()), int(theirOut.Fd())), nil)
	err = errors.Join(err, theirIn.Close(), theirOut.Close(), c.Close())
	if err != nil {
		return nil, errors.Join(err, in.Close(), out.Close())
	}
	return pipes{in, out}, nil
}

// receivePipes is the other side of sendPipes.
func receivePipes(c *net.UnixConn) (s stream, err error) {
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.SetReadDeadline(time.Now().Add(closeTimeout)); err != nil {
		return nil, err
	}
	rights := make([]byte, unix.CmsgSpace(2*4)) // two descriptors of 4 bytes
	_, n, _, _, err := c.ReadMsgUnix(make([]byte, 1), rights)
	if err != nil {
		return nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		return nil, errors.Join(errors.New("no pipes came"), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	var ends []*os.File
	for _, fd := range fds {
		err = errors.Join(err, unix.SetNonblock(fd, true)) // so that the runtime polls them
		ends = append(ends, os.NewFile(uintptr(fd), "pipe"))
	}
	if err != nil || len(ends) != 2 {
		for _, f := range ends {
			_ = f.Close()
		}
		return nil, errors.Join(fmt.Errorf("%d pipes came, want 2", len(ends)), err)
	}
	return pipes{ends[0], ends[1]}, nil
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
func congestion(c stream) (name string) {
	_ = withSocket(c, func(fd int) (err error) {
		name, err = unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
		return err
	})
	return name
}

// withSocket calls f with the descriptor of a TCP stream, and not at all for another one.
func withSocket(c stream, f func(fd int) error) error {
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
func hangUp(streams ...stream) {
	for _, c := range streams {
		if c != nil {
			_ = c.Close()
		}
	}
}
