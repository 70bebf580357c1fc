package kv

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// fences is a network that counts its fences that had proof.
type fences struct {
	network
	n atomic.Int64
}

func (n *fences) Fence(ctx context.Context, p *hawser.Peer) error {
	err := n.network.Fence(ctx, p)
	if err == nil {
		n.n.Add(1)
	}
	return err
}

// railRig is a prefiller and a decoder on simulated hosts with two NICs each. While rough is set, one NIC of the
// prefiller, then the other, stops in the middle of each prompt, long enough for the connection over it to break, and then works again.
type railRig struct {
	*testing.T
	p     *prefillSide
	d     *decodeSide
	net   *fences
	rough atomic.Bool
}

func newRailRig(t *testing.T, ordered bool) *railRig {
	const (
		patience    = 2 * time.Millisecond
		layerEvents = 500 // about as many as the network plays while a layer travels
	)
	fabric := sim.New(sim.Config{NICs: 2, NIC: sim.NIC{Ordered: ordered}, RetryTimeout: patience})
	open := func(host string) *hawser.Engine {
		return openWith(t, hawser.Options{
			Name: host, Providers: []provider.Provider{fabric.Provider(host)},
			Rails: []hawser.Rail{{Provider: "sim", Device: "nic0"}, {Provider: "sim", Device: "nic1"}},
		})
	}
	r := &railRig{T: t}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0)) // only the toy uses it
	r.p = prefillWith(t, open("P"), small, 200, func(h *toy, _ *PrefillerConfig) {
		h.chunk = 600 // a layer has many operations
		strikes := 0
		h.step = func(_ *Job, _, layer int) {
			if !r.rough.Load() || layer != 1 {
				return
			}
			strikes++
			fabric.Script(sim.Fault{
				At: fabric.Events() + rng.Uint64N(layerEvents), Kind: sim.FaultCut, Places: []string{fmt.Sprintf("P/nic%d", strikes%2), ""}, For: 2 * patience,
			})
		}
	})
	eng := open("D")
	r.net = &fences{network: onEngine{eng}}
	r.d = decodeWith(t, eng, r.net, 200)
	return r
}

// fetch fetches a large prompt. Every byte is there, or the request failed because of its writes and its pages are back.
func (r *railRig) fetch(id string) error {
	r.Helper()
	fenced := r.net.n.Load()
	x, err := r.d.d.Fetch(limit(r.T), FetchRequest{ID: id, Tokens: 600, From: r.p.eng.Addr()})
	if err != nil {
		r.Fatal(err)
	}
	res, err := x.Wait(limit(r.T))
	if err == nil {
		if n := r.d.mem.corrupt(id, res.Pages); n != 0 {
			r.Fatalf("%s: %d corrupt bytes", id, n)
		}
		res.Release()
		return nil
	}
	select {
	case <-x.Quiesced():
	case <-limit(r.T).Done():
		r.Fatal("pages are never reusable")
	}
	if r.net.n.Load() == fenced {
		r.Fatalf("%s: pages were reused without a fence: %v", id, err)
	}
	if n := r.d.mem.pool.Free(); n != 200 {
		r.Fatalf("%d pages free, want 200", n)
	}
	return err
}

// TestOrderedRailsFailInMidLayer costs nothing but time: the engine knows which writes arrived, and places the others again.
func TestOrderedRailsFailInMidLayer(t *testing.T) {
	r := newRailRig(t, true)
	r.rough.Store(true)
	for i := range 8 { // more often would make the engine wait longer before it tries a connection anew
		if err := r.fetch(fmt.Sprintf("r%d", i)); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.net.n.Load(); n != 0 {
		t.Errorf("%d fences, want none", n)
	}
}

// TestUnorderedRailsFailInMidLayer: of several operations with one immediate the engine may not know which arrived. Then the request
// fails although its peer is up, and its pages wait for a fence. Afterwards everything works as before.
func TestUnorderedRailsFailInMidLayer(t *testing.T) {
	r := newRailRig(t, false)
	whole, failed := 0, 0
	for i := 0; whole < 5 || failed < 5; i++ {
		r.rough.Store(true)
		err := r.fetch(fmt.Sprintf("r%d", i))
		r.rough.Store(false)
		var f *FailedError
		switch {
		case err == nil:
			whole++
		case errors.As(err, &f) && f.Code == CodeTransfer:
			failed++
		default:
			t.Fatal(err)
		}
		if i == 1000 {
			t.Fatalf("%d requests were whole and %d failed: this tests nothing", whole, failed)
		}
	}
	t.Logf("%d requests were whole, %d failed", whole, failed)
	if err := r.fetch("last"); err != nil {
		t.Error(err)
	}
}

// TestUncertainWritesAreFenced: a write ended with ErrUnfenced at a prefiller that is up, and as many came as it knows of. The one that
// it does not know of may still land.
func TestUncertainWritesAreFenced(t *testing.T) {
	r := badPrefiller(t, "tcp", func(r *raw, remote *hawser.Remote, m *dispatch) {
		r.write(remote, m, 3)
		r.answer(&failed{cancelAck{m.seq, 3, false}, CodeTransfer, "one is not known"})
	})
	eng := openEngine(t, "D", "tcp")
	net := &fences{network: onEngine{eng}}
	d := decodeWith(t, eng, net, 20)
	x, err := d.d.Fetch(limit(t), FetchRequest{ID: "r", Tokens: 30, From: r.eng.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	var f *FailedError
	if _, err := x.Wait(limit(t)); !errors.As(err, &f) || f.Code != CodeTransfer {
		t.Fatalf("got %v, want a FailedError, transfer", err)
	}
	select {
	case <-x.Quiesced():
	case <-limit(t).Done():
		t.Fatal("pages are never reusable")
	}
	if net.n.Load() == 0 {
		t.Error("pages were reused without a fence")
	}
}
