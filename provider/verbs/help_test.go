//go:build cgo

package verbs_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/verbs"
)

// hangGuard ends a test that waits for something that never comes.
const hangGuard = 10 * time.Second

// pair is two domains on the two fake cards, polled in turn by the test.
type pair struct {
	*testing.T
	bell  *cpu.Parker
	doms  [2]provider.Domain
	got   [2][]provider.Completion // what each was told
	peers [2]provider.Peer
	token uint64
	spans []*mem.Span // freed after the domains are closed
}

func newPair(t *testing.T, o verbs.Options) *pair {
	t.Helper()
	return pairOn(t, onFake(t, o), provider.Config{})
}

func pairOn(t *testing.T, v provider.Provider, cfg provider.Config) *pair {
	t.Helper()
	p := &pair{T: t}
	var err error
	if p.bell, err = cpu.NewParker(); err != nil {
		t.Fatal(err)
	}
	cfg.Bell = p.bell
	devs, err := v.Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for i := range p.doms {
		if p.doms[i], err = v.Open(context.Background(), devs[i%len(devs)], cfg); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		for _, d := range p.doms {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		}
		if err := p.bell.Close(); err != nil {
			t.Error(err)
		}
		for _, s := range p.spans {
			if err := s.Free(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

// join connects the two.
func (p *pair) join() {
	p.Helper()
	p.peers = p.another()
}

// another connects the two once more.
func (p *pair) another() (peers [2]provider.Peer) {
	p.Helper()
	var addrs [2]provider.Addr
	for i, d := range p.doms {
		var err error
		if peers[i], addrs[i], err = d.Offer(); err != nil {
			p.Fatal(err)
		}
	}
	for i, d := range p.doms {
		if err := d.Connect(peers[i], addrs[1-i], i == 0); err != nil {
			p.Fatal(err)
		}
	}
	p.until("both are up", func() bool {
		return p.count(0, provider.KindPeerUp, peers[0]) == 1 && p.count(1, provider.KindPeerUp, peers[1]) == 1
	})
	return peers
}

// poll polls domain i once.
func (p *pair) poll(i int) int {
	p.Helper()
	var cs [64]provider.Completion
	n, err := p.doms[i].Poll(cs[:])
	if err != nil {
		p.Fatalf("domain %d: %v", i, err)
	}
	p.got[i] = append(p.got[i], cs[:n]...)
	return n
}

// until polls both until cond holds, and sleeps when there is nothing to do.
func (p *pair) until(what string, cond func() bool) {
	p.Helper()
	for end := time.Now().Add(hangGuard); !cond(); {
		if p.poll(0)+p.poll(1) > 0 {
			continue
		}
		if time.Now().After(end) {
			p.Fatalf("not within %v: %s\n%+v", hangGuard, what, p.got)
		}
		if a, b := p.doms[0].Arm(), p.doms[1].Arm(); !a && !b {
			p.bell.Park(hangGuard)
		}
	}
}

// count counts completions of a kind of one peer.
func (p *pair) count(i int, kind provider.Kind, peer provider.Peer) (n int) {
	for _, c := range p.got[i] {
		if c.Kind == kind && c.Peer == peer {
			n++
		}
	}
	return n
}

// last is the latest completion of a kind of one peer.
func (p *pair) last(i int, kind provider.Kind, peer provider.Peer) provider.Completion {
	p.Helper()
	for j := len(p.got[i]) - 1; j >= 0; j-- {
		if c := p.got[i][j]; c.Kind == kind && c.Peer == peer {
			return c
		}
	}
	p.Fatalf("domain %d has no %v of peer %#x: %+v", i, kind, peer, p.got[i])
	return provider.Completion{}
}

// memory registers n bytes with domain i.
func (p *pair) memory(i, n int, acc provider.Access) ([]byte, provider.Key) {
	p.Helper()
	s, err := mem.New(uint64(n), mem.Private)
	if err != nil {
		p.Fatal(err)
	}
	k, err := p.doms[i].Register(provider.Memory{Bytes: s.Bytes(), FD: -1}, acc)
	if err != nil {
		p.Fatal(err)
	}
	p.spans = append(p.spans, s)
	return s.Bytes(), k
}

// grant lets domain 0 write to n bytes of domain 1.
func (p *pair) grant(k provider.Key, n int) (key provider.Key) {
	p.Helper()
	p.until("the grant is known", func() bool {
		var err error
		key, err = p.doms[1].Grant(k, p.peers[1], 0, uint64(n))
		if err != nil && !errors.Is(err, provider.ErrBusy) {
			p.Fatal(err)
		}
		return err == nil
	})
	return key
}

// write is a write with an immediate from domain 0 to domain 1.
func (p *pair) write(src, dst provider.Key, n int) provider.WR {
	p.token++
	return provider.WR{
		Token: p.token, Op: provider.OpWriteImm, Peer: p.peers[0], Len: uint64(n), Imm: uint32(p.token),
		LocalKey: src.ID, LocalAddr: src.Base, RemoteKey: dst.ID, RemoteAddr: dst.Base,
	}
}

// post has domain i accept all requests at once.
func (p *pair) post(i int, wrs ...provider.WR) {
	p.Helper()
	if n, err := p.doms[i].Post(wrs); n != len(wrs) || err != nil {
		p.Fatalf("post of %d requests: %d, %v", len(wrs), n, err)
	}
}

// stats of domain i.
func (p *pair) stats(i int) verbs.Stats {
	return p.doms[i].(interface{ Stats() verbs.Stats }).Stats()
}

// refused has the other card refuse a write of domain i, and waits until the connection goes on.
func (p *pair) refused(i int) {
	p.Helper()
	_, src := p.memory(i, 4096, 0)
	_, dst := p.memory(1-i, 4096, provider.AccessRemoteWrite)
	var key provider.Key
	p.until("the grant is known", func() bool {
		var err error
		key, err = p.doms[1-i].Grant(dst, p.peers[1-i], 0, 4096)
		if err != nil && !errors.Is(err, provider.ErrBusy) {
			p.Fatal(err)
		}
		return err == nil
	})
	p.Setenv("FAKE_WC_STATUS", "10")
	wr := p.write(src, key, 200)
	wr.Peer = p.peers[i]
	before := p.count(i, provider.KindWrite, wr.Peer)
	p.post(i, wr)
	p.until("the write is refused", func() bool { return p.count(i, provider.KindWrite, wr.Peer) == before+1 })
	wr.Len = 100
	p.post(i, wr)
	p.until("the next one is not", func() bool { return p.count(i, provider.KindWrite, wr.Peer) == before+2 })
	if c := p.last(i, provider.KindWrite, wr.Peer); c.Status != provider.StatusOK {
		p.Fatalf("the write after one that was refused: %+v", c)
	}
}
