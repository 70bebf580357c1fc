package hawser

import (
	"bytes"
	"context"
	"crypto/rand"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// fuzzEngine is an engine on a simulated network. Its secret is always the same, so that a descriptor among the seeds is one of
// its own.
func fuzzEngine(f *testing.F) *Engine {
	f.Helper()
	e, err := Open(f.Context(), Options{Providers: []provider.Provider{sim.New(sim.Config{}).Provider("host")}})
	if err != nil {
		f.Fatal(err)
	}
	e.secret = [32]byte{1}
	f.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			f.Error(err)
		}
	})
	return e
}

// unhurt checks that the engine's worker does what it is asked for.
func unhurt(t *testing.T, e *Engine) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- e.worker.do(func(*rail.Group) error { return nil }) }()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(hang):
		t.Fatal("the worker does not answer")
	}
}

// FuzzHandshake: whatever a stranger sends on a control connection ends that connection and nothing else.
func FuzzHandshake(f *testing.F) {
	e := fuzzEngine(f)
	hello := &wire.Hello{
		Magic: wire.Magic, Min: wire.MinVersion, Max: wire.MaxVersion, ID: wire.ID{7},
		Rails: []wire.Rail{{Provider: "sim", Fabric: e.rails[0].Fabric}},
	}
	stages := wire.AppendFrame(nil, wire.TypeHello, 0, hello)
	f.Add(stages)
	stages = wire.AppendFrame(stages, wire.TypeAuth, 0, &wire.Auth{})
	f.Add(stages)
	stages = wire.AppendFrame(stages, wire.TypeLinksReply, 0, &wire.LinksReply{Links: []wire.Link{{Addr: []byte("sim1 and 16 bytes..")}}})
	f.Add(stages)
	f.Add(wire.AppendFrame(bytes.Clone(stages), wire.TypeLinksDone, 0, &wire.LinksDone{Fault: "no"}))
	f.Add(wire.AppendFrame(bytes.Clone(stages), wire.TypeLinksDone, 0, &wire.LinksDone{}))
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		here, there := net.Pipe()
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = io.Copy(io.Discard, there) }) // answers
		wg.Go(func() {
			_, _ = there.Write(data) // until the engine has had enough
			_ = there.Close()
		})
		ended := make(chan struct{})
		go func() {
			e.serve(here)
			close(ended)
		}()
		select {
		case <-ended:
		case <-time.After(hang):
			t.Fatal("a handshake does not end with its connection")
		}
		_ = here.Close() // also when a session owns it
		wg.Wait()
		unhurt(t, e)
	})
}

// FuzzSession: whatever a peer says on the control connection of a session that is up costs it the session at most.
func FuzzSession(f *testing.F) {
	e := fuzzEngine(f)
	r, err := e.Alloc(4096, MemOptions{Heap: true})
	if err != nil {
		f.Fatal(err)
	}
	own := r.Descriptor(r.All(), RightWrite).d
	f.Add(wire.AppendFrame(nil, wire.TypeBeat, 0, nil))
	f.Add(wire.AppendFrame(nil, wire.TypeBye, 0, &wire.Bye{Reason: "done"}))
	f.Add(wire.AppendFrame(nil, wire.TypeResolve, 9, &wire.Resolve{Descriptor: own}))
	f.Add(wire.AppendFrame(nil, wire.TypeResolve, 9, &wire.Resolve{}))
	f.Add(wire.AppendFrame(nil, wire.TypeResolved, 1, &wire.Resolved{Keys: []wire.Key{{ID: 1}}}))
	f.Add(wire.AppendFrame(nil, wire.TypeLink, 0, &wire.LinkNotice{Step: wire.LinkOffer, Epoch: 1, Addr: []byte("sim1 and 16 bytes.")}))
	f.Add(wire.AppendFrame(nil, wire.TypeLink, 0, &wire.LinkNotice{Step: wire.LinkReport, Imms: 1 << 63, Buckets: []uint32{1}}))
	f.Add(wire.AppendFrame(wire.AppendFrame(nil, wire.TypeBeat, 0, nil), 999, 0, &wire.Bye{}))
	f.Fuzz(func(t *testing.T, data []byte) {
		here, there := net.Pipe()
		defer there.Close()
		var id ID
		_, _ = rand.Read(id[:])
		s, err := e.peer(id).claim(here, false, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.begin("sim", "", 0); err != nil {
			t.Fatal(err)
		}
		in := bytes.NewReader(data)
		for {
			frame, err := wire.ReadFrame(in, nil)
			if err == nil {
				err = s.handle(frame)
			}
			if err != nil {
				break
			}
			for len(s.out) > 0 {
				<-s.out // the writer does not run
			}
		}
		s.fail(ErrPeerDown, errBye)
		ctx, cancel := context.WithTimeout(t.Context(), hang)
		defer cancel()
		if err := s.waitOver(ctx); err != nil {
			t.Fatalf("the session does not end: %v", err)
		}
		unhurt(t, e)
	})
}
