package hawser_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
)

// importRegion is what a test asks a peer to import.
func importRegion(t testing.TB, e *hawser.Engine, r *hawser.Region) *hawser.Remote {
	t.Helper()
	rem, err := e.Import(testContext(t), r.Descriptor(r.All(), hawser.RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	return rem
}

// Revoke takes one region from one peer. Other regions, other peers and the session stay; new descriptors work.
func TestRevokeIsNarrow(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 2, 1, 4096)
		p.b.SetRevokeTime(hang)
		events := eventsOf(p.b)
		c := w.engine(t, 2, 1)
		other, srcC := w.alloc(t, p.b, 4096), w.alloc(t, c, 4096)
		remOther, remC := importRegion(t, p.a, other), importRegion(t, c, p.dst)
		expect(t, events, hawser.PeerUp)
		from, err := p.b.Connect(testContext(t), p.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		old := p.dst.Descriptor(p.dst.All(), hawser.RightWrite)
		for range 2 { // again: there is nothing left to take
			if err := p.dst.Revoke(testContext(t), from); err != nil {
				t.Fatal(err)
			}
			if _, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()}); !errors.Is(err, hawser.ErrStale) || !strings.Contains(err.Error(), "taken back") {
				t.Fatalf("write: %v", err)
			}
			if _, err := p.a.Import(testContext(t), old); !errors.Is(err, hawser.ErrStale) || !strings.Contains(err.Error(), "taken back") {
				t.Fatalf("import of an old descriptor: %v", err)
			}
		}
		tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: remOther.All()})
		wait(t, tr, err)
		tr, err = c.Write(hawser.Write{Src: srcC.All(), Dst: remC.All()})
		wait(t, tr, err)
		fill(p.src.Bytes(), 4)
		again := importRegion(t, p.a, p.dst)
		tr, err = p.a.Write(hawser.Write{Src: p.src.All(), Dst: again.All()})
		wait(t, tr, err)
		p.sync()
		same(t, "through a new descriptor", p.dst.Bytes(), p.src.Bytes())
		if _, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()}); !errors.Is(err, hawser.ErrStale) {
			t.Fatalf("the old remote is good again: %v", err)
		}
		select {
		case ev := <-events:
			t.Fatalf("event %v", ev.Kind)
		default:
		}
	})
}

// After Revoke nothing of the peer lands in the region, whatever it had under way: imports, long writes, pages, many of them.
func TestNothingLandsAfterRevoke(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 2<<20)
		p.b.SetRevokeTime(hang)
		from, err := p.b.Connect(testContext(t), p.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		for i := range p.src.Bytes() {
			p.src.Bytes()[i] = 0xff
		}
		rounds := 10
		if testing.Short() {
			rounds = 3
		}
		for range rounds {
			desc := p.dst.Descriptor(p.dst.All(), hawser.RightWrite)
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for {
						rem, err := p.a.Import(testContext(t), desc)
						var tr *hawser.Transfer
						for err == nil {
							if tr, err = p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.All(), Imm: hawser.Imm(1), Parts: 4}); err == nil {
								err = tr.Wait(testContext(t))
							}
						}
						if !errors.Is(err, hawser.ErrStale) {
							t.Errorf("ended by %v", err)
						}
						if _, err := p.a.Import(testContext(t), desc); err != nil {
							return
						}
					}
				})
			}
			count := p.b.Counter(1).Load()
			reach(t, p.b.Counter(1), count+8)
			if err := p.dst.Revoke(testContext(t), from); err != nil {
				t.Fatal(err)
			}
			p.sync()
			clear(p.dst.Bytes())
			count = p.b.Counter(1).Load()
			wg.Wait()
			p.sync()
			same(t, "memory after the revocation", p.dst.Bytes(), make([]byte, p.dst.Len()))
			if n := p.b.Counter(1).Load(); n != count {
				t.Fatalf("%d parts were counted after the revocation", n-count)
			}
		}
		if !from.Up() {
			t.Fatal("the session has ended")
		}
	})
}

// importer is a puppet that has imported a region of an engine and does not answer.
func importer(t *testing.T, e *hawser.Engine, x *puppet, r *hawser.Region) (*hawser.Peer, wire.Key) {
	t.Helper()
	peers := make(chan *hawser.Peer, 1)
	stop := e.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerUp {
			peers <- ev.Peer
		}
	})
	defer stop()
	x.up(e)
	raw, err := r.Descriptor(r.All(), hawser.RightWrite).MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var d wire.Descriptor
	if err := wire.Parse(raw, &d); err != nil {
		t.Fatal(err)
	}
	x.send(wire.TypeResolve, 1, &wire.Resolve{Descriptor: d})
	var res wire.Resolved
	x.read(wire.TypeResolved, &res)
	if len(res.Keys) != 1 {
		t.Fatalf("resolved: %+v", res)
	}
	return <-peers, res.Keys[0]
}

// A peer that says that it has stopped, and has not, is refused by networks that can.
func TestRevokeIsEnforced(t *testing.T) {
	for _, network := range []string{"sim", "tcp"} {
		t.Run(network, func(t *testing.T) {
			x, e := simPuppet(t, nil)
			if network == "tcp" {
				x, e = newPuppet(t, tcp.New()), newWorld(t, "tcp").engine(t, 0, 1)
			}
			e.SetRevokeTime(hang)
			r, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
			if err != nil {
				t.Fatal(err)
			}
			p, key := importer(t, e, x, r)
			mine := make([]byte, 4096)
			fill(mine, 9)
			local, err := x.dom.Register(provider.Memory{Bytes: mine, FD: -1}, 0)
			if err != nil {
				t.Fatal(err)
			}
			write := func() provider.Status {
				wr := provider.WR{Op: provider.OpWrite, Peer: x.link, LocalKey: local.ID, LocalAddr: local.Base, RemoteKey: key.ID, RemoteAddr: key.Base, Len: 4096}
				if n, err := x.dom.Post([]provider.WR{wr}); n != 1 || err != nil {
					t.Fatal(n, err)
				}
				return x.await(provider.KindWrite).Status
			}
			if st := write(); st != provider.StatusOK {
				t.Fatalf("write before: %v", st)
			}
			revoked := make(chan error, 1)
			go func() { revoked <- r.Revoke(testContext(t), p) }()
			f, err := wire.ReadFrame(x.conn, nil)
			for err == nil && f.Type != wire.TypeRevoke {
				f, err = wire.ReadFrame(x.conn, nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			x.send(wire.TypeRevoked, f.Request, &wire.Revoked{})
			if err := <-revoked; err != nil {
				t.Fatal(err)
			}
			clear(r.Bytes())
			if st := write(); st != provider.StatusAccess {
				t.Fatalf("write afterwards: %v", st)
			}
			e.Stats() // orders what its worker did before what we do
			same(t, "memory afterwards", r.Bytes(), make([]byte, 4096))
			if !p.Up() {
				t.Fatal("the session has ended")
			}
		})
	}
}

// A peer that does not give a region back is fenced; one that was given no keys of it is not even asked.
func TestPeerThatDoesNotGiveBackIsFenced(t *testing.T) {
	x, e := simPuppet(t, nil)
	r, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	other, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := importer(t, e, x, r)
	events := eventsOf(e)
	if err := other.Revoke(testContext(t), p); err != nil || !p.Up() {
		t.Fatalf("revoke of a region that was not imported: %v", err)
	}
	start := time.Now()
	if err := r.Revoke(testContext(t), p); err != nil {
		t.Fatal(err)
	}
	t.Logf("fenced after %v", time.Since(start))
	expect(t, events, hawser.PeerDown, hawser.PeerFenced)
	x.read(wire.TypeRevoke, nil)
	x.closed()
	x.hangUp()
	if err := r.Revoke(testContext(t), p); err != nil { // it is gone
		t.Fatal(err)
	}
}

// Revoke ends with its context, and says that the region is not quiet.
func TestRevokeEndsWithItsContext(t *testing.T) {
	x, e := simPuppet(t, nil)
	e.SetRevokeTime(hang)
	r, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := importer(t, e, x, r)
	ctx, cancel := context.WithCancelCause(testContext(t))
	enough := errors.New("enough")
	go func() {
		x.read(wire.TypeRevoke, nil)
		cancel(enough)
	}()
	if err := r.Revoke(ctx, p); !errors.Is(err, enough) || !errors.Is(err, hawser.ErrUnfenced) {
		t.Fatal(err)
	}
	if !p.Up() {
		t.Fatal("the session has ended")
	}
	go func() { // the next one asks again
		var m wire.Revoke
		f, err := wire.ReadFrame(x.conn, nil)
		for err == nil && f.Type == wire.TypeBeat {
			f, err = wire.ReadFrame(x.conn, nil)
		}
		if err != nil || f.Type != wire.TypeRevoke || wire.Parse(f.Payload, &m) != nil {
			t.Errorf("message of type %d: %v", f.Type, err)
			return
		}
		x.send(wire.TypeRevoked, f.Request, &wire.Revoked{})
	}()
	if err := r.Revoke(testContext(t), p); err != nil {
		t.Fatal(err)
	}
}

func TestRevokeArguments(t *testing.T) {
	w := newWorld(t, "sim")
	p := w.pair(t, 1, 1, 4096)
	for _, q := range []*hawser.Peer{nil, p.rem.Peer()} {
		if err := p.dst.Revoke(testContext(t), q); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("peer %v: %v", q, err)
		}
	}
	from, err := p.b.Connect(testContext(t), p.a.Addr())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.dst.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.dst.Revoke(testContext(t), from); !errors.Is(err, hawser.ErrClosed) {
		t.Errorf("closed region: %v", err)
	}
	if _, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: p.rem.All()}); !errors.Is(err, hawser.ErrStale) {
		t.Errorf("write to a region that was closed: %v", err)
	}
}

// Closing a region asks those that imported it, and does not wait for who does not answer: its writes are refused.
func TestRegionCloseDoesNotWaitForASilentPeer(t *testing.T) {
	x, e := simPuppet(t, nil)
	r, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	p, _ := importer(t, e, x, r)
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	x.read(wire.TypeRevoke, nil)
	if !p.Up() {
		t.Fatal("the peer was fenced")
	}
}

// An owner that takes back a region while a write to it is under way is not answered before the write has ended, and can ask only so
// often; for regions of which we know nothing it is answered at once.
func TestHostileRevocations(t *testing.T) {
	o := newWorld(t, "tcp").options(0, 1)
	o.PeerTimeout = hang // the puppet sends no beats
	x, e := newPuppet(t, tcp.New()), open(t, o)
	mem := make([]byte, 4096)
	key, err := x.dom.Register(provider.Memory{Bytes: mem, FD: -1}, provider.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	x.up(e)
	for n := range uint64(1000) {
		x.send(wire.TypeRevoke, n, &wire.Revoke{Region: n})
		x.read(wire.TypeRevoked, &wire.Revoked{})
	}
	grant, err := x.dom.Grant(key, x.link, 0, 4096)
	if err != nil {
		t.Fatal(err)
	}
	var d hawser.Descriptor
	if err := d.UnmarshalBinary(wire.Append(nil, &wire.Descriptor{Owner: x.id, Region: 5, Len: 4096})); err != nil {
		t.Fatal(err)
	}
	got := make(chan *hawser.Remote, 1)
	go func() {
		rem, err := e.Import(testContext(t), d)
		if err != nil {
			t.Error(err)
		}
		got <- rem
	}()
	for f := (wire.Frame{}); f.Type != wire.TypeResolve; {
		if f, err = wire.ReadFrame(x.conn, nil); err != nil {
			t.Fatal(err)
		}
		if f.Type == wire.TypeResolve {
			x.send(wire.TypeResolved, f.Request, &wire.Resolved{Keys: []wire.Key{{Epoch: 1, ID: grant.ID, Base: grant.Base}}})
		}
	}
	rem := <-got
	src, err := e.Alloc(4096, hawser.MemOptions{Heap: true})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := e.Write(hawser.Write{Src: src.All(), Dst: rem.All()}) // nobody polls the domain of the puppet: it stays under way
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the network has the write", func() bool { return e.Stats().Rails[0].Outstanding > 0 }) // else a revocation withdraws it
	for n := range uint64(wire.MaxRevokes) {
		x.send(wire.TypeRevoke, n, &wire.Revoke{Region: 5})
	}
	if _, err := e.Write(hawser.Write{Src: src.All(), Dst: rem.All()}); err != nil && !errors.Is(err, hawser.ErrStale) {
		t.Fatal(err)
	}
	x.send(wire.TypeRevoke, 999, &wire.Revoke{Region: 5})
	x.closed()
	eventually(t, "the session has ended", func() bool { return !e.Stats().Peers[0].Up })
	if why := e.Stats().Peers[0].Down; !strings.Contains(why.Error(), "taken back at once") {
		t.Fatal(why)
	}
	if err := tr.Wait(testContext(t)); err == nil {
		t.Fatal("the write has landed")
	}
}

// A region that is taken back while its keys are on their way is not used with them: the import asks again.
func TestRevokedWhileImported(t *testing.T) {
	x, e := simPuppet(t, nil)
	x.up(e)
	var d hawser.Descriptor
	if err := d.UnmarshalBinary(wire.Append(nil, &wire.Descriptor{Owner: x.id, Region: 5, Len: 4096})); err != nil {
		t.Fatal(err)
	}
	for _, taken := range []int{1, 2, 3} {
		ended := make(chan error, 1)
		go func() {
			_, err := e.Import(testContext(t), d)
			ended <- err
		}()
		for n := range min(taken+1, 3) {
			f, err := wire.ReadFrame(x.conn, nil)
			for err == nil && f.Type == wire.TypeBeat {
				f, err = wire.ReadFrame(x.conn, nil)
			}
			if err != nil || f.Type != wire.TypeResolve {
				t.Fatalf("message of type %d: %v", f.Type, err)
			}
			if n < taken {
				x.send(wire.TypeRevoke, 1, &wire.Revoke{Region: 5})
				x.read(wire.TypeRevoked, &wire.Revoked{})
			}
			x.send(wire.TypeResolved, f.Request, &wire.Resolved{Keys: make([]wire.Key, 1)})
		}
		var want error
		if taken == 3 {
			want = hawser.ErrStale
		}
		if err := <-ended; !errors.Is(err, want) {
			t.Fatalf("taken back %d times: %v", taken, err)
		}
	}
}

// A peer that was fenced and imports before it has noticed does not fail for that: it connects again.
func TestImportOutlivesASessionThatEnds(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		p := w.pair(t, 1, 1, 4096)
		for range 20 {
			from, err := p.b.Connect(testContext(t), p.a.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if err := p.b.Fence(testContext(t), from); err != nil {
				t.Fatal(err)
			}
			rem := importRegion(t, p.a, p.dst)
			tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.All()})
			wait(t, tr, err)
		}
	})
}
