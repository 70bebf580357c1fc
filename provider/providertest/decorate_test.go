package providertest_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// slow are the properties that cost seconds and that a decorator cannot change.
func slow(more map[string]string) map[string]string {
	ex := map[string]string{
		"ConnectEndsInTime":  "tested without the decorator: 5 s",
		"GibibyteInPieces":   "tested without the decorator: 1 GiB",
		"KilledProcess":      "tested without the decorator",
		"StoppedProcess":     "tested without the decorator",
		"StoppedInsideACopy": "tested without the decorator",
	}
	for name, why := range more {
		ex[name] = why
	}
	return ex
}

func reordered(t *testing.T, p provider.Provider) provider.Provider {
	seed := rand.Uint64()
	t.Logf("reordering seed %d", seed)
	return providertest.Decorate(p, func(d provider.Domain) provider.Domain {
		seed++
		return providertest.Reordering(d, seed)
	})
}

// Networks that keep order by nature, without it: a provider and the decorator together keep the contract.
func TestReorderedSharedMemory(t *testing.T) {
	providertest.Run(t, providertest.Factory{
		Memory: mem.Shared,
		Network: func(t *testing.T) providertest.Network {
			p := reordered(t, shm.New())
			return providertest.Network{Provider: func(string) provider.Provider { return p }}
		},
		Except: slow(map[string]string{"GrantIsEnforcedToItsRange": "the writer maps whole memory"}),
	})
}

func TestReorderedTCP(t *testing.T) {
	providertest.Run(t, providertest.Factory{
		Memory: mem.Heap,
		Network: func(t *testing.T) providertest.Network {
			p := reordered(t, tcp.New())
			return providertest.Network{Provider: func(string) provider.Provider { return p }}
		},
		Except: slow(nil),
	})
}

// An owner that is always behind: the contract holds however late completions are taken, and order with it.
func TestSlowOwners(t *testing.T) {
	for name, f := range map[string]struct {
		p      func(t *testing.T) func(host string) provider.Provider
		memory mem.Kind
		except map[string]string
	}{
		"shm": {
			func(*testing.T) func(string) provider.Provider {
				return func(string) provider.Provider { return shm.New() }
			}, mem.Shared,
			map[string]string{"GrantIsEnforcedToItsRange": "the writer maps whole memory"},
		},
		"tcp": {func(*testing.T) func(string) provider.Provider {
			return func(string) provider.Provider { return tcp.New() }
		}, mem.Heap, nil},
		"sim": {func(t *testing.T) func(string) provider.Provider {
			return sim.New(sim.Config{Seed: rand.Uint64(), NIC: sim.NIC{Ordered: true}}).Provider
		}, mem.Heap, nil},
	} {
		t.Run(name, func(t *testing.T) {
			providertest.Run(t, providertest.Factory{
				Memory: f.memory,
				Network: func(t *testing.T) providertest.Network {
					under := f.p(t)
					return providertest.Network{Provider: func(host string) provider.Provider {
						return providertest.Decorate(under(host), func(d provider.Domain) provider.Domain { return providertest.Slow(d, 3) })
					}}
				},
				Except: slow(f.except),
			})
		})
	}
}

// fakePair is two connected domains of a simulated fabric, the first one decorated.
type fakePair struct {
	a, b     provider.Domain
	pa, pb   provider.Peer
	src, dst []byte
	sk, dk   provider.Key
	seen     map[provider.Domain][]provider.Completion // polled and not asked for yet
}

func newFakePair(t *testing.T, wrapA func(provider.Domain) provider.Domain) *fakePair {
	t.Helper()
	return newPair(t, sim.NIC{}, wrapA, func(d provider.Domain) provider.Domain { return d })
}

func newPair(t *testing.T, nic sim.NIC, wrapA, wrapB func(provider.Domain) provider.Domain) *fakePair {
	t.Helper()
	f := sim.New(sim.Config{Seed: 1, NIC: nic})
	open := func(host string, wrap func(provider.Domain) provider.Domain) provider.Domain {
		bell, err := cpu.NewParker()
		if err != nil {
			t.Fatal(err)
		}
		p := providertest.Decorate(f.Provider(host), wrap)
		devs, err := p.Devices(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Open(context.Background(), devs[0], provider.Config{Bell: bell})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
			if err := bell.Close(); err != nil {
				t.Error(err)
			}
		})
		return d
	}
	p := &fakePair{src: make([]byte, 64), dst: make([]byte, 64), seen: map[provider.Domain][]provider.Completion{}}
	p.a = open("a", wrapA)
	p.b = open("b", wrapB)
	var err error
	var addrA, addrB provider.Addr
	must := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	p.pa, addrA, err = p.a.Offer()
	must()
	p.pb, addrB, err = p.b.Offer()
	must()
	err = p.a.Connect(p.pa, addrB, true)
	must()
	err = p.b.Connect(p.pb, addrA, false)
	must()
	p.until(t, p.b, provider.KindPeerUp)
	p.until(t, p.a, provider.KindPeerUp)
	p.sk, err = p.a.Register(provider.Memory{Bytes: p.src, FD: -1}, 0)
	must()
	p.dk, err = p.b.Register(provider.Memory{Bytes: p.dst, FD: -1}, provider.AccessRemoteWrite)
	must()
	p.dk, err = p.b.Grant(p.dk, p.pb, 0, 64)
	must()
	return p
}

// until polls both until d has a completion of a kind.
func (p *fakePair) until(t *testing.T, d provider.Domain, kind provider.Kind) provider.Completion {
	t.Helper()
	cs := make([]provider.Completion, 4)
	for round := 0; ; round++ {
		if round == 100000 {
			t.Fatalf("no %v", kind)
		}
		if i := slices.IndexFunc(p.seen[d], func(c provider.Completion) bool { return c.Kind == kind }); i >= 0 {
			c := p.seen[d][i]
			p.seen[d] = slices.Delete(p.seen[d], i, i+1)
			return c
		}
		for _, x := range []provider.Domain{p.a, p.b} {
			n, err := x.Poll(cs)
			if err != nil {
				t.Fatal(err)
			}
			p.seen[x] = append(p.seen[x], cs[:n]...)
		}
	}
}

func (p *fakePair) write(t *testing.T, token uint64) {
	t.Helper()
	wr := provider.WR{
		Op: provider.OpWrite, Token: token, Peer: p.pa, Len: 64,
		LocalKey: p.sk.ID, LocalAddr: p.sk.Base, RemoteKey: p.dk.ID, RemoteAddr: p.dk.Base,
	}
	if n, err := p.a.Post([]provider.WR{wr}); n != 1 || err != nil {
		t.Fatalf("post: %d, %v", n, err)
	}
}

func TestFaultyFailsWhatItIsToldAndNothingElse(t *testing.T) {
	p := newFakePair(t, func(d provider.Domain) provider.Domain {
		return providertest.Faulty(d, func(n uint64, _ *provider.WR) provider.Status {
			if n%3 == 1 {
				return provider.StatusAccess
			}
			return provider.StatusOK
		})
	})
	for i := range uint64(9) {
		p.write(t, i)
		if c := p.until(t, p.a, provider.KindWrite); c.Token != i || (c.Status == provider.StatusAccess) != (i%3 == 1) {
			t.Fatalf("write %d ended as %+v", i, c)
		}
	}
}

func TestLoggedSaysWhatHappens(t *testing.T) {
	var out bytes.Buffer
	p := newFakePair(t, func(d provider.Domain) provider.Domain { return providertest.Logged(d, "a", &out) })
	p.write(t, 0x77)
	p.until(t, p.a, provider.KindWrite)
	for _, want := range []string{"a: offer: peer", "a: poll peer-up", "a: register 64 bytes", "a: post write to peer", "token 0x77, 64 bytes", "a: poll write of peer"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, out.String())
		}
	}
}
