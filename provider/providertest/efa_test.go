package providertest_test

import (
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/ofi"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// strict puts the decorator under a test that fails when anything is reported.
func strict(t *testing.T, p provider.Provider) provider.Provider {
	seed := rand.Uint64()
	t.Logf("strict EFA, seed %d", seed)
	return providertest.Decorate(p, func(d provider.Domain) provider.Domain {
		seed++
		return providertest.EFA(d, seed, func(err error) { t.Error(err) })
	})
}

func libfabrics(name string) func(*testing.T) func(string) provider.Provider {
	return func(*testing.T) func(string) provider.Provider {
		return func(string) provider.Provider { return ofi.New(ofi.Options{Provider: name}) }
	}
}

// What the suite does, and so what the contract asks of the engine, would not break on EFA.
func TestStrictEFA(t *testing.T) {
	for name, under := range map[string]func(t *testing.T) func(host string) provider.Provider{
		"tcp": func(*testing.T) func(string) provider.Provider {
			return func(string) provider.Provider { return tcp.New() }
		},
		"sim": func(*testing.T) func(string) provider.Provider {
			return sim.New(sim.Config{Seed: rand.Uint64(), Rails: sim.EFA4x100()}).Provider
		},
		"ofi over tcp": libfabrics("tcp"),
		"ofi over shm": libfabrics("shm"),
		"ofi over rxd": libfabrics("udp;ofi_rxd"),
	} {
		t.Run(name, func(t *testing.T) {
			except := map[string]string{"LargestWriteArrives": "tested without the decorator: 64 MiB"}
			if strings.HasPrefix(name, "ofi") {
				if _, err := under(t)("a").Devices(t.Context()); err != nil {
					t.Skipf("libfabric cannot be used here: %v", err) // in CI its own tests fail
				}
				for _, p := range []string{"ManyPeers", "NoWakeIsLost"} {
					except[p] = "tested without the decorator"
				}
				if strings.HasSuffix(name, "rxd") {
					for _, p := range []string{"DeregisterWhileTheWriterRuns", "FenceWhileTheWriterRuns"} {
						except[p] = "not again over ofi_rxd, which sends again after seconds"
					}
				}
			}
			providertest.Run(t, providertest.Factory{
				Memory: mem.Private,
				Network: func(t *testing.T) providertest.Network {
					p := under(t)
					return providertest.Network{Provider: func(host string) provider.Provider { return strict(t, p(host)) }}
				},
				Except: slow(except),
			})
		})
	}
}

// reports collects what the decorator says.
type reports struct {
	mu   sync.Mutex
	errs []error // guarded by mu
}

func (r *reports) add(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, err)
}

// TestEFACatches has users that get away with something elsewhere.
func TestEFACatches(t *testing.T) {
	type rig struct {
		*fakePair
		t    *testing.T
		said *reports
	}
	status := func(r *rig, wr provider.WR) provider.Status {
		r.t.Helper()
		wr.Token, wr.Peer = 1, r.pa
		if n, err := r.a.Post([]provider.WR{wr}); n != 1 || err != nil {
			r.t.Fatalf("post: %d, %v", n, err)
		}
		kind := provider.KindWrite
		if wr.Op == provider.OpSend {
			kind = provider.KindSend
		}
		return r.until(r.t, r.a, kind).Status
	}
	good := func(r *rig) provider.WR {
		return provider.WR{Op: provider.OpWrite, Len: 8, LocalKey: r.sk.ID, LocalAddr: r.sk.Base, RemoteKey: r.dk.ID, RemoteAddr: r.dk.Base}
	}
	for _, tc := range []struct {
		name     string
		do       func(r *rig) provider.Status // 0 where the outcome is not a status
		want     provider.Status
		reported string // part of what is reported, "" for nothing
	}{
		{"nothing, when a write keeps all rules", func(r *rig) provider.Status { return status(r, good(r)) }, provider.StatusOK, ""},
		{"a remote address that is an offset", func(r *rig) provider.Status {
			wr := good(r)
			wr.RemoteAddr = 0
			return status(r, wr)
		}, provider.StatusAccess, ""},
		{"a local address that is an offset", func(r *rig) provider.Status {
			wr := good(r)
			wr.LocalAddr = 0
			return status(r, wr)
		}, provider.StatusLocal, ""},
		{"a remote key made up", func(r *rig) provider.Status {
			wr := good(r)
			wr.RemoteKey += 1000
			return status(r, wr)
		}, provider.StatusAccess, ""},
		{"a local key used as a remote one", func(r *rig) provider.Status {
			wr := good(r)
			wr.RemoteKey, wr.RemoteAddr = r.sk.ID, r.sk.Base
			return status(r, wr)
		}, provider.StatusAccess, ""},
		{"memory that is not registered", func(r *rig) provider.Status {
			wr := good(r)
			wr.LocalKey = 0
			return status(r, wr)
		}, provider.StatusLocal, ""},
		{"a message from memory that is not registered", func(r *rig) provider.Status {
			wr := good(r)
			wr.Op, wr.LocalKey = provider.OpSend, 77
			return status(r, wr)
		}, provider.StatusLocal, ""},
		{"a write longer than an adapter's", func(r *rig) provider.Status {
			wr := good(r)
			wr.Len = r.a.Caps().MaxMsg + 1
			return status(r, wr)
		}, provider.StatusLocal, ""},
		{"an operation that is no write and no message", func(r *rig) provider.Status {
			wr := good(r)
			wr.Op = provider.OpRecv + 1
			return status(r, wr)
		}, provider.StatusLocal, ""},
		{"a source that changes before its write has completed", func(r *rig) provider.Status {
			wr := good(r)
			wr.Peer = r.pa
			if n, err := r.a.Post([]provider.WR{wr}); n != 1 || err != nil {
				r.t.Fatalf("post: %d, %v", n, err)
			}
			r.src[3]++
			return r.until(r.t, r.a, provider.KindWrite).Status
		}, provider.StatusOK, "changed before it completed"},
		{"memory without bytes", func(r *rig) provider.Status {
			if _, err := r.a.Register(provider.Memory{FD: -1, Phantom: 4096}, 0); !errors.Is(err, providertest.ErrEFA) {
				r.t.Errorf("register of phantom memory returned %v", err)
			}
			return 0
		}, 0, ""},
		{"memory that is not mapped", func(r *rig) provider.Status {
			if _, err := r.a.Register(provider.Memory{FD: -1, Bytes: gone(r.t)}, 0); !errors.Is(err, providertest.ErrEFA) {
				r.t.Errorf("register of memory that is not mapped returned %v", err)
			}
			return 0
		}, 0, ""},
		{"memory that is unmapped before it is deregistered", func(r *rig) provider.Status {
			b, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
			if err != nil {
				r.t.Fatal(err)
			}
			k, err := r.a.Register(provider.Memory{FD: -1, Bytes: b}, 0)
			if err != nil {
				r.t.Fatal(err)
			}
			if err := unix.Munmap(b); err != nil {
				r.t.Fatal(err)
			}
			if err := r.a.Deregister(k); err != nil {
				r.t.Error(err)
			}
			return 0
		}, 0, "not mapped any more"},
		{"a user that posts a batch and does not look how much was taken", func(r *rig) provider.Status {
			wrs := make([]provider.WR, 100)
			for i := range wrs {
				wrs[i] = good(r)
				wrs[i].Peer, wrs[i].Token = r.pa, uint64(i)
			}
			if n, err := r.a.Post(wrs); err != nil || n != r.a.Caps().PeerDepth || n >= len(wrs) {
				r.t.Errorf("post took %d of %d, %v; PeerDepth is %d", n, len(wrs), err, r.a.Caps().PeerDepth)
			}
			return 0
		}, 0, ""},
		{"a receiver that waits to be told of a refusal", func(r *rig) provider.Status {
			wr := good(r)
			wr.Op, wr.RemoteAddr = provider.OpWriteImm, wr.RemoteAddr+1000
			st := status(r, wr)
			cs := make([]provider.Completion, 8)
			for range 1000 {
				n, err := r.b.Poll(cs)
				if err != nil || n > 0 {
					r.t.Fatalf("the receiver was told %+v, %v", cs[:n], err)
				}
			}
			return st
		}, provider.StatusAccess, ""},
		{"a user who reads order or heap memory out of Caps", func(r *rig) provider.Status {
			if c := r.a.Caps(); c.Ordered || c.HeapMemory || c.Phantom || c.Refusals || !c.PinsMemory || c.MaxMsg > 1<<30 {
				r.t.Errorf("caps %+v", c)
			}
			return 0
		}, 0, ""},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			said := &reports{}
			wrap := func(d provider.Domain) provider.Domain { return providertest.EFA(d, 1, said.add) }
			r := &rig{newPair(t, sim.NIC{Ordered: true, PeerDepth: 80, MaxMsg: 1 << 40}, wrap, wrap), t, said}
			if got := tc.do(r); got != tc.want {
				t.Errorf("ended with %v, want %v", got, tc.want)
			}
			errs := errors.Join(said.errs...)
			switch {
			case tc.reported == "" && errs != nil:
				t.Errorf("reported: %v", errs)
			case tc.reported != "" && (errs == nil || !strings.Contains(errs.Error(), tc.reported) || !errors.Is(errs, providertest.ErrEFA)):
				t.Errorf("reported: %v, want %q", errs, tc.reported)
			}
		})
	}
}

// gone is memory that was mapped.
func gone(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	s := b[:len(b):len(b)]
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	return s
}

// Two rails of one host hand out the same keys, as two adapters do: who mixes them up is refused, or writes to a place that is his own.
func TestEFAKeysAreOfTheirRail(t *testing.T) {
	wrap := func(d provider.Domain) provider.Domain {
		return providertest.EFA(d, 1, func(err error) { t.Error(err) })
	}
	one, two := newPair(t, sim.NIC{}, wrap, wrap), newPair(t, sim.NIC{}, wrap, wrap)
	if one.dk.ID != two.dk.ID {
		t.Fatalf("keys %#x and %#x of two rails differ: code that mixes them up is not caught", one.dk.ID, two.dk.ID)
	}
	wr := provider.WR{
		Op: provider.OpWrite, Peer: one.pa, Len: 8, LocalKey: one.sk.ID, LocalAddr: one.sk.Base,
		RemoteKey: two.dk.ID, RemoteAddr: two.dk.Base,
	}
	if n, err := one.a.Post([]provider.WR{wr}); n != 1 || err != nil {
		t.Fatalf("post: %d, %v", n, err)
	}
	if c := one.until(t, one.a, provider.KindWrite); c.Status != provider.StatusAccess {
		t.Fatalf("a write with the key of another rail ended as %v", c.Status)
	}
}
