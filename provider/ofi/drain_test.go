//go:build cgo

package ofi

import (
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// What is in libfabric's queue when something ends counts. Each of these tests fails when the drain that it names is not there.

// flow is a connection of two Domains and memory of each; many writes are more than one look at the queue reads.
type flow struct {
	a, b   *end
	ha, hb provider.Peer
	from   provider.Key
	to     provider.Key // registered by b
	grant  provider.Key // of it, for a
}

const (
	many  = entriesPerPoll + 72
	block = 2 * ackMax // longer than what the receiver counts
)

func openFlow(t *testing.T, name string) *flow {
	t.Helper()
	f := &flow{a: openEnd(t, New(Options{Provider: name})), b: openEnd(t, New(Options{Provider: name}))}
	f.ha, f.hb = connected(t, f.a, f.b)
	register := func(e *end, access provider.Access) provider.Key {
		b, err := arena(block)
		if err != nil {
			t.Fatal(err)
		}
		k, err := e.Register(provider.Memory{Bytes: b, FD: -1}, access)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	f.from, f.to = register(f.a, 0), register(f.b, provider.AccessRemoteWrite)
	var err error
	if f.grant, err = f.b.Grant(f.to, f.hb, 0, block); err != nil {
		t.Fatal(err)
	}
	f.post(t, 1, 8) // a learns the key
	until(t, f.a, f.b, "the first write", func() bool { return f.ended(provider.StatusOK) == 1 && f.delivered() == 1 })
	f.a.got, f.b.got = nil, nil
	return f
}

// post has a write n blocks with immediates and gives them to libfabric; b is not polled.
func (f *flow) post(t *testing.T, n, size int) {
	t.Helper()
	p := f.a.peer(f.ha)
	for range n {
		wr := provider.WR{
			Op: provider.OpWriteImm, Peer: f.ha, LocalKey: f.from.ID, LocalAddr: f.from.Base, RemoteKey: f.grant.ID, RemoteAddr: f.grant.Base, Len: uint64(size),
		}
		if k, err := f.a.Post([]provider.WR{wr}); k != 1 || err != nil {
			t.Fatalf("post: %d, %v", k, err)
		}
	}
	for range 10 * n {
		if p.nqueue == 0 {
			return
		}
		f.a.poll(t)
	}
}

// ended are a's writes with a status.
func (f *flow) ended(s provider.Status) (n int) {
	for _, c := range f.a.got {
		if c.Kind == provider.KindWrite && c.Status == s {
			n++
		}
	}
	return n
}

// delivered are b's immediates.
func (f *flow) delivered() (n int) {
	for _, c := range f.b.got {
		if c.Kind == provider.KindImm {
			n++
		}
	}
	return n
}

// Deregister: what has arrived was in time.
func TestDrainBeforeAKeyEnds(t *testing.T) {
	for _, name := range []string{"tcp", "shm"} {
		t.Run(name, func(t *testing.T) {
			f := openFlow(t, name)
			f.post(t, 1, 8)
			if err := f.b.Deregister(f.to); err != nil {
				t.Fatal(err)
			}
			until(t, f.a, f.b, "the write under the key", func() bool { return f.ended(provider.StatusOK) == 1 && f.delivered() == 1 })
		})
	}
}

// settle, before it ends a connection: what ended well at the writer is delivered.
func TestDrainBeforeAConnectionEnds(t *testing.T) {
	f := openFlow(t, "shm")
	f.post(t, many, block)
	f.b.turn() // copies all and reads the first of them
	if err := f.b.Disconnect(f.hb); err != nil {
		t.Fatal(err)
	}
	until(t, f.a, f.b, "the end", func() bool {
		_, down := f.b.has(f.hb, provider.KindPeerDown)
		_, knows := f.a.has(f.ha, provider.KindPeerDown)
		return down && knows
	})
	if well := f.ended(provider.StatusOK); well != many || f.delivered() != well {
		t.Errorf("%d of %d ended well, %d were delivered", well, many, f.delivered())
	}
}

// settle, after it has closed an endpoint: nothing is left that would be taken for what uses the operations next.
func TestDrainAfterAnEndpointIsClosed(t *testing.T) {
	f := openFlow(t, "tcp")
	f.post(t, 20, block) // of which b takes none
	if err := f.a.Disconnect(f.ha); err != nil {
		t.Fatal(err)
	}
	f.a.settle()
	f.a.rail.step(nil, 0, f.a.entries, nil, entriesPerPoll)
	if r := f.a.rail.out; r.entries != 0 || r.has_error != 0 {
		t.Errorf("%d completions are left, an error: %d", r.entries, r.has_error)
	}
}

// endQuiet: writes that have been placed end well, and give their operations back.
func TestDrainBeforeAQuietEnd(t *testing.T) {
	f := openFlow(t, "shm")
	f.post(t, many, block)
	if err := f.a.Disconnect(f.ha); err != nil {
		t.Fatal(err)
	}
	f.a.turn()
	if p := f.a.peer(f.ha); p.phase != ending {
		t.Fatalf("phase %d, want that the writes are waited for", p.phase)
	}
	until(t, f.b, f.b, "b's end", func() bool { _, down := f.b.has(f.hb, provider.KindPeerDown); return down })
	until(t, f.a, f.a, "a's end", func() bool { _, down := f.a.has(f.ha, provider.KindPeerDown); return down })
	if well := f.ended(provider.StatusOK); well != many || len(f.a.slabs) != 1 {
		t.Errorf("%d of %d ended well, %d slabs of operations came back", well, many, len(f.a.slabs))
	}
}

// judge: writes that came before the end of their key are not taken for refused because their completions are behind the word of it.
func TestDrainBeforeWritesAreJudged(t *testing.T) {
	f := openFlow(t, "shm")
	f.post(t, many, block)
	if err := f.b.Deregister(f.to); err != nil {
		t.Fatal(err)
	}
	for range many { // the word of it is posted
		f.b.poll(t)
	}
	until(t, f.a, f.a, "the ends of the writes", func() bool { return f.ended(provider.StatusOK) == many })
	if c, down := f.a.has(f.ha, provider.KindPeerDown); down {
		t.Errorf("the connection ended: %+v", c)
	}
}
