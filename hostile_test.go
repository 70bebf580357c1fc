package hawser_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
)

// syncBuffer collects log lines of several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// Whatever strangers send to the control port costs them their connection, and nobody else anything.
func TestStrangersOnTheControlPortAreClosed(t *testing.T) {
	w := newWorld(t, "tcp")
	var log syncBuffer
	o := w.options(1, 1)
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	b := open(t, o)
	dst := w.alloc(t, b, 4096)
	hello := func(change func(*wire.Hello)) []byte {
		h := &wire.Hello{Magic: wire.Magic, Min: 1, Max: 1, ID: wire.ID{1}, Rails: []wire.Rail{{Provider: "tcp", Fabric: "x"}}}
		change(h)
		return wire.AppendFrame(nil, wire.TypeHello, 0, h)
	}
	rng := rand.NewChaCha8([32]byte{1})
	noise := make([]byte, 10000)
	_, _ = rng.Read(noise)
	for name, first := range map[string][]byte{
		"nothing":         nil,
		"http":            []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
		"noise":           noise,
		"huge length":     {0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"another type":    wire.AppendFrame(nil, wire.TypeBye, 0, &wire.Bye{}),
		"wrong magic":     hello(func(h *wire.Hello) { h.Magic = 1 }),
		"future version":  hello(func(h *wire.Hello) { h.Min, h.Max = 90, 99 }),
		"wants another":   hello(func(h *wire.Hello) { h.Want = wire.ID{9} }),
		"claims a key":    hello(func(h *wire.Hello) { h.Keyed = 1 }),
		"claims to be us": hello(func(h *wire.Hello) { h.ID = wire.ID(b.ID()) }),
		"noise after":     append(hello(func(*wire.Hello) {}), noise...),
		"no common rail":  append(hello(func(*wire.Hello) {}), wire.AppendFrame(nil, wire.TypeAuth, 0, &wire.Auth{})...),
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("tcp", b.ListenAddrs()[0])
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = conn.Write(first) // the other side may have closed already
			_ = conn.SetReadDeadline(time.Now().Add(hang))
			var ne net.Error
			if _, err := io.Copy(io.Discard, conn); errors.As(err, &ne) && ne.Timeout() {
				t.Fatal("the connection stays open")
			}
		})
	}
	eventually(t, "twelve refusals in the log", func() bool { return strings.Count(log.String(), "connection refused") >= 12 })
	// Slow strangers hold every place of the TCP listener; a peer on this host does not notice.
	for range 200 {
		conn, err := net.Dial("tcp", b.ListenAddrs()[0])
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	a := w.engine(t, 0, 1)
	start := time.Now()
	rem, err := a.Import(testContext(t), dst.Descriptor(dst.All(), hawser.RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("connected beside 200 silent strangers after %v", time.Since(start))
	tr, err := a.Write(hawser.Write{Src: w.alloc(t, a, 4096).All(), Dst: rem.All(), Imm: hawser.Imm(1)})
	wait(t, tr, err)
	reach(t, b.Counter(1), 1)
}

// Something that is not an engine answers: one clear error.
func TestDialingAStrangerNamesIt(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\nthis is a web server, with a body long enough for a header"))
			_ = conn.Close()
		}
	}()
	a := newWorld(t, "tcp").engine(t, 0, 1)
	_, err = a.Connect(testContext(t), l.Addr().String())
	if !errors.Is(err, hawser.ErrPeerDown) || !strings.Contains(err.Error(), "does not speak the hawser control protocol") {
		t.Fatal(err)
	}
}
