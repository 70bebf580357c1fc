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
	"github.com/hawser-project/hawser/provider/tcp"
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
	t.Parallel()
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

// What an answerer says is checked as closely as what a dialer says.
func TestHostileAnswerers(t *testing.T) {
	propose := func(path string, rails ...uint16) func(*puppet) {
		return func(x *puppet) {
			m := &wire.Links{Path: path}
			for _, r := range rails {
				m.Links = append(m.Links, wire.Link{Dialer: r, Addr: []byte("no address")})
			}
			x.send(wire.TypeLinks, 0, m)
		}
	}
	for name, tc := range map[string]struct {
		require string
		key     string
		own     bool
		welcome func(*wire.Welcome)
		then    func(*puppet)
		want    error
	}{
		"version of the future":   {welcome: func(w *wire.Welcome) { w.Version = 9 }, want: hawser.ErrRefused},
		"our own identity":        {own: true, want: hawser.ErrRefused},
		"another cluster's proof": {key: "secret", welcome: func(w *wire.Welcome) { w.MAC[0] ^= 1 }, want: hawser.ErrRefused},
		"no proof":                {key: "secret", welcome: func(w *wire.Welcome) { w.MAC = [32]byte{} }, want: hawser.ErrRefused},
		"up without links":        {then: func(x *puppet) { x.send(wire.TypeUp, 0, nil) }, want: hawser.ErrRefused},
		"path without links":      {then: propose("sim"), want: hawser.ErrRefused},
		"rail that is not there":  {then: propose("sim", 7), want: hawser.ErrRefused},
		"rail of another network": {then: propose("sim", 1), want: hawser.ErrRefused},
		"path that is refused":    {require: "sim", then: propose("tcp", 1), want: hawser.ErrRefused},
		"question too early":      {then: func(x *puppet) { x.send(wire.TypeResolve, 1, &wire.Resolve{}) }, want: hawser.ErrRefused},
		"hang up":                 {then: func(x *puppet) { x.hangUp() }, want: hawser.ErrPeerDown},
		"unreadable":              {then: func(x *puppet) { _, _ = x.conn.Write(make([]byte, 100)) }, want: hawser.ErrRefused},
		"up after a failed path": {then: func(x *puppet) {
			propose("sim", 0)(x)
			x.read(wire.TypeLinksReply, nil)
			x.read(wire.TypeLinksDone, nil)
			x.send(wire.TypeUp, 0, nil)
		}, want: hawser.ErrRefused},
	} {
		t.Run(name, func(t *testing.T) {
			x, e := simPuppet(t, func(o *hawser.Options) {
				o.Providers = append(o.Providers, tcp.New())
				o.Rails = append(o.Rails, hawser.Rail{Provider: "tcp", Device: "127.0.0.1"})
				o.Require, o.ClusterKey = tc.require, []byte(tc.key)
			})
			if tc.key != "" {
				x.key = []byte(tc.key)
			}
			if tc.own {
				x.id = wire.ID(e.ID())
			}
			welcome := tc.welcome
			if welcome == nil {
				welcome = func(*wire.Welcome) {}
			}
			connected := x.answer(e, welcome)
			if tc.then != nil {
				x.read(wire.TypeAuth, nil)
				tc.then(x)
			}
			if err := <-connected; !errors.Is(err, tc.want) {
				t.Errorf("%v, want %v", err, tc.want)
			}
		})
	}
}

// Answers that make no sense cost the peer its session; answers to nothing are ignored.
func TestHostileAnswersToAnImport(t *testing.T) {
	for name, tc := range map[string]struct {
		answer func(x *puppet, request uint64)
		want   error // nil: the import works
	}{
		"twice, and to questions never asked": {func(x *puppet, request uint64) {
			for _, n := range []uint64{request + 1, request, request, 0} {
				x.send(wire.TypeResolved, n, &wire.Resolved{Keys: []wire.Key{{ID: 1}}})
			}
		}, nil},
		"no keys": {func(x *puppet, request uint64) {
			x.send(wire.TypeResolved, request, &wire.Resolved{})
		}, nil},
		"keys for links that do not exist": {func(x *puppet, request uint64) {
			x.send(wire.TypeResolved, request, &wire.Resolved{Keys: []wire.Key{{Link: 63, Epoch: 1}, {Link: 65535, Epoch: 1 << 31}}})
		}, nil},
		"too many keys": {func(x *puppet, request uint64) {
			x.send(wire.TypeResolved, request, &wire.Resolved{Keys: make([]wire.Key, wire.MaxRails+1)})
		}, hawser.ErrPeerDown},
		"another message": {func(x *puppet, request uint64) {
			x.send(wire.TypeResolved, request, &wire.Bye{Reason: "no"})
		}, hawser.ErrPeerDown},
		"unknown type": {func(x *puppet, _ uint64) { x.send(999, 0, nil) }, hawser.ErrPeerDown},
		"refused": {func(x *puppet, request uint64) {
			x.send(wire.TypeResolved, request, &wire.Resolved{Fault: wire.FaultAccess})
		}, hawser.ErrAccess},
		"hang up": {func(x *puppet, _ uint64) { x.hangUp() }, hawser.ErrPeerDown},
	} {
		t.Run(name, func(t *testing.T) {
			x, e := simPuppet(t, nil)
			x.up(e)
			var d hawser.Descriptor
			if err := d.UnmarshalBinary(wire.Append(nil, &wire.Descriptor{Owner: x.id, Len: 8})); err != nil {
				t.Fatal(err)
			}
			imported := make(chan error, 1)
			go func() {
				_, err := e.Import(testContext(t), d)
				imported <- err
			}()
			for {
				f, err := wire.ReadFrame(x.conn, nil)
				if err != nil {
					t.Fatal(err)
				}
				if f.Type == wire.TypeResolve {
					tc.answer(x, f.Request)
					break
				}
			}
			if err := <-imported; !errors.Is(err, tc.want) {
				t.Fatalf("%v, want %v", err, tc.want)
			}
			down := tc.want != nil && errors.Is(tc.want, hawser.ErrPeerDown)
			if down {
				x.hangUp()
			}
			eventually(t, "the session is what it should be", func() bool { return e.Stats().Peers[0].Up != down })
		})
	}
}

// What a peer may ask for is bounded by what it was given.
func TestHostileQuestions(t *testing.T) {
	x, e := simPuppet(t, nil)
	x.up(e)
	r, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := r.Descriptor(r.Slice(0, 10), hawser.RightWrite).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*wire.Descriptor){
		"given":         func(*wire.Descriptor) {},
		"longer":        func(d *wire.Descriptor) { d.Len = 4096 },
		"another owner": func(d *wire.Descriptor) { d.Owner = x.id },
		"later serial":  func(d *wire.Descriptor) { d.Gen++ },
		"more rights":   func(d *wire.Descriptor) { d.Rights = 0xff },
		"no proof":      func(d *wire.Descriptor) { d.MAC = [16]byte{} },
	} {
		var d wire.Descriptor
		if err := wire.Parse(raw, &d); err != nil {
			t.Fatal(err)
		}
		change(&d)
		want := wire.FaultAccess
		if name == "given" {
			want = wire.FaultNone
		}
		for range 100 { // and asking again and again costs nothing
			x.send(wire.TypeResolve, 1, &wire.Resolve{Descriptor: d})
			var res wire.Resolved
			x.read(wire.TypeResolved, &res)
			if res.Fault != want {
				t.Fatalf("%s: fault %d (%s), want %d", name, res.Fault, res.Text, want)
			}
		}
	}
	x.send(999, 0, nil)
	x.closed()
}
