package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
)

const testKey = "a secret of tests"

// hang ends a test that does not.
const hang = 60 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

// startServer serves until the test ends, or stop is called.
func startServer(t *testing.T, s Server) (addr string, stop func()) {
	t.Helper()
	s.Host.Listen, s.Host.ClusterKey = "127.0.0.1:0", []byte(testKey)
	ready, done := make(chan string, 1), make(chan error, 1)
	s.Ready = func(addrs []string) { ready <- addrs[0] }
	ctx, cancel := context.WithCancel(context.Background())
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	t.Cleanup(stop)
	select {
	case addr = <-ready:
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return addr, stop
}

func calling(addrs ...string) Site {
	return Site{Servers: addrs, Host: Host{ClusterKey: []byte(testKey)}}
}

func TestServersAreReceivers(t *testing.T) {
	one, _ := startServer(t, Server{})
	two, _ := startServer(t, Server{})
	for kind, k := range scenarios {
		for _, network := range []string{"shm", "tcp"} {
			t.Run(fmt.Sprintf("%s %s", kind, network), func(t *testing.T) {
				site := calling(one)
				if k.group {
					site = calling(one, two)
				}
				row, err := site.Run(within(t), small(kind, network), nil)
				if err != nil {
					t.Fatal(err)
				}
				checkRow(t, row)
				if n := len(site.Servers); row.Config.Peers != n || len(row.Path.Receivers) != n || row.Path.Receivers[0].Kernel == "" {
					t.Errorf("%d receiving processes on %+v, want %d", row.Config.Peers, row.Path.Receivers, n)
				}
			})
		}
	}
}

func TestClientsTakeTurns(t *testing.T) {
	addr, _ := startServer(t, Server{})
	ctx := within(t)
	var clients sync.WaitGroup
	for range 3 {
		clients.Go(func() {
			if _, err := calling(addr).Run(ctx, small(Pages, "tcp"), nil); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
}

// TestClientMayGiveUpWaiting leaves while another one is served.
func TestClientMayGiveUpWaiting(t *testing.T) {
	addr, _ := startServer(t, Server{})
	s, err := calling(addr).Open(within(t), small(Write, "tcp"))
	if err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	ctx, cancel := context.WithTimeoutCause(within(t), 100*time.Millisecond, enough) // whether it waits already or not
	defer cancel()
	if _, err := calling(addr).Run(ctx, small(Write, "tcp"), nil); !errors.Is(err, enough) { // its turn would never come
		t.Errorf("got %v, want the cause of the context", err)
	}
	if err := errors.Join(s.Round(within(t)), s.Close(t.Context())); err != nil {
		t.Error(err)
	}
}

// TestServerOutlivesItsClients has clients that end in every way but the right one.
func TestServerOutlivesItsClients(t *testing.T) {
	addr, _ := startServer(t, Server{MaxPool: 64 << 20})
	for _, tc := range []struct {
		name string
		run  func(t *testing.T) error
		want string
	}{
		{"too much memory", func(t *testing.T) error {
			c := small(Pages, "tcp")
			c.Pool = 65 << 20
			_, err := calling(addr).Run(within(t), c, nil)
			return err
		}, "--max-pool"},
		{"another version", func(t *testing.T) error {
			return converse(t, addr, msgOpen, map[string]any{"version": protocolVersion + 1, "config": "of tomorrow"})
		}, fmt.Sprintf("the client speaks version %d of this protocol, the server %d", protocolVersion+1, protocolVersion)},
		{"a bad config", func(t *testing.T) error {
			return converse(t, addr, msgOpen, openRequest{Version: protocolVersion, Config: Config{Kind: "read"}})
		}, "scenario is"},
		{"a bad index", func(t *testing.T) error {
			return converse(t, addr, msgOpen, openRequest{Version: protocolVersion, Config: small(Pages, "tcp"), Index: 1})
		}, "receiver 1 of 1"},
		{"no config", func(t *testing.T) error { return converse(t, addr, msgOpen, 7) }, "cannot unmarshal"},
		{"another key", func(t *testing.T) error {
			w := calling(addr)
			w.Host.ClusterKey = []byte("another")
			_, err := w.Run(within(t), small(Pages, "tcp"), nil)
			return err
		}, "key"},
		{"the same server twice", func(t *testing.T) error {
			_, err := calling(addr, addr).Run(within(t), small(Barrier, "tcp"), nil)
			return err
		}, "is named twice"},
		{"a client that leaves", func(t *testing.T) error {
			ctx, cancel := context.WithCancelCause(within(t))
			_, err := calling(addr).Run(ctx, small(Pages, "tcp"), func(round, _ int) {
				if round == 1 {
					cancel(errors.New("enough"))
				}
			})
			return err
		}, "enough"},
		{"a client that dies", func(t *testing.T) error {
			s, err := calling(addr).Open(within(t), small(Pages, "tcp"))
			if err != nil {
				return err
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // it does not say that it goes
			err = errors.Join(s.box.close(ctx), s.Round(within(t)))
			_ = s.Close(ctx)
			return err
		}, "closed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.run(t); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			if _, err := calling(addr).Run(within(t), small(Write, "tcp"), nil); err != nil {
				t.Errorf("the next client: %v", err)
			}
		})
	}
}

// converse sends a server one message and returns the error that it answers.
func converse(t *testing.T, addr, kind string, v any) error {
	t.Helper()
	b, err := openMailbox(t.Context(), Host{ClusterKey: []byte(testKey)}, "", "client", false)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.close(t.Context()) }()
	c, err := b.dial(within(t), addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Send(kind, v); err != nil {
		t.Fatal(err)
	}
	_, err = c.Next(within(t))
	return err
}

// TestClientDoesNotChooseTheServersFiles: only a process that was started by the sender takes its word for where to log.
func TestClientDoesNotChooseTheServersFiles(t *testing.T) {
	addr, _ := startServer(t, Server{})
	log := filepath.Join(t.TempDir(), "log")
	q := openRequest{Version: protocolVersion, Config: small(Pages, "tcp"), Host: &Host{Log: log}}
	if err := converse(t, addr, msgOpen, q); err != nil { // the server is ready: its engine is open
		t.Fatal(err)
	}
	if _, err := os.Stat(log); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the server's file: got %v, want that there is none", err)
	}
}

func TestInterruptedServerSaysSo(t *testing.T) {
	addr, stop := startServer(t, Server{})
	c := small(Write, "tcp")
	c.Rounds = maxRounds
	_, err := calling(addr).Run(within(t), c, func(round, _ int) {
		if round == 1 {
			go stop()
		}
	})
	var exit *proc.ExitError
	if !errors.As(err, &exit) || !strings.Contains(err.Error(), "the server was interrupted") || strings.Count(err.Error(), addr) != 1 {
		t.Errorf("got %v, want that the server was interrupted, once", err)
	}
}

// TestLastWordExplainsTheEnd: what a receiver said at its end is told instead of the call that met it.
func TestLastWordExplainsTheEnd(t *testing.T) {
	down := fmt.Errorf("send: %w", hawser.ErrPeerDown)
	said := &proc.ExitError{Name: "server a", Text: "the server was interrupted"}
	for _, c := range []struct {
		err, end error
		want     string
	}{
		{down, said, said.Error()},
		{said, said, said.Error()},
		{down, nil, down.Error()},
		{errReceiverEnded, said, errReceiverEnded.Error() + "\n" + said.Error()},
	} {
		if got := joinEnd(c.err, c.end); got.Error() != c.want {
			t.Errorf("%v, then %v: %v", c.err, c.end, got)
		}
	}
}

func TestServerOfAllAddressesNeedsADevice(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0"} {
		err := Server{Host: Host{Listen: listen, ClusterKey: []byte(testKey)}}.Run(within(t))
		if err == nil || !strings.Contains(err.Error(), "by which device") {
			t.Errorf("%s: got %v", listen, err)
		}
	}
}

// TestStreamsAreOfTheRun: whoever finds the yardstick's port is hung up on.
func TestStreamsAreOfTheRun(t *testing.T) {
	for _, network := range []string{"shm", "tcp"} {
		d, err := openDock(Config{Provider: network}, "")
		if err != nil {
			t.Fatal(err)
		}
		stranger := d.endpoint
		stranger.Token = make([]byte, tokenSize)
		const right = 2
		for i, as := range []struct {
			endpoint
			number int
		}{{stranger, 0}, {d.endpoint, 9}, {d.endpoint, 0}} {
			c, err := as.dial(within(t), as.number)
			if err != nil {
				t.Fatal(err)
			}
			defer hangUp(c)
			if _, err := c.Write([]byte{byte(i)}); err != nil {
				t.Fatal(err)
			}
		}
		streams, err := d.accept(within(t), 1, func(n int) bool { return n == 0 })
		if err != nil || len(streams) != 1 || streams[0] == nil {
			t.Fatalf("%s: streams %v, %v, want one", network, streams, err)
		}
		var who [1]byte
		if _, err := io.ReadFull(streams[0], who[:]); err != nil || who[0] != right {
			t.Errorf("%s: the stream is that of %d, %v, want that of the run", network, who[0], err)
		}
		hangUp(streams[0])
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := (endpoint{Network: "udp", Address: "127.0.0.1:1"}).dial(within(t), 0); err == nil {
		t.Error("an endpoint of another network was dialed")
	}
}
