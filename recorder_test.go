package hawser

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
)

// The recorder has the last operations and what happened to links and peers, can be read at any time, and after Close.
func TestFlightRecorder(t *testing.T) {
	duos(t, 2, func(d *duo) {
		stop := meanwhile(func() {
			if _, err := d.a.Flight(); err != nil {
				t.Error(err)
			}
		})
		defer stop()
		d.stream(3, func(i int) {
			if i == 1 {
				d.lose(d.a, d.b, 0)
			}
		})
		d.await("the link is back", func() bool { return d.links()[0].Ready && d.links()[0].Epoch > 1 })
		stop()
		events, err := d.a.Flight()
		if err != nil {
			t.Fatal(err)
		}
		kinds := map[EventKind]int{}
		for i, e := range events {
			kinds[e.Kind]++
			if e.Peer == nil || e.Peer.ID() != d.b.ID() || e.Time.After(time.Now()) || time.Since(e.Time) > time.Minute {
				t.Fatalf("event %d: %+v", i, e)
			}
			if e.Kind == EventLinkLost && (e.Link != 0 || e.Text != "told to") && e.Link != 1 {
				t.Fatalf("event %d: %+v", i, e)
			}
			if e.Kind == EventOp && e.Op == "write" && (e.Imm != Imm(1) || e.Len != duoSize || e.Status != "ok" || e.Link < 0 || e.Link > 1) {
				t.Fatalf("event %d: %+v", i, e)
			}
		}
		if kinds[EventOp] != 3*21 || kinds[EventPeerUp] != 1 || kinds[EventLinkUp] < 3 || kinds[EventLinkLost] < 1 {
			t.Fatalf("%v", kinds)
		}
		if err := d.a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		if err := d.a.DumpFlight(&text); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"op write, 8388608 bytes imm 0x1 peer ", "link lost peer ", ": told to", "op send, 2 bytes peer ", "peer down", "engine is closing"} {
			if !strings.Contains(text.String(), want) {
				t.Errorf("no %q in\n%s", want, &text)
			}
		}
	})
}

// A recorder that is full keeps what is new, and what is rare.
func TestFlightEvents(t *testing.T) {
	o := Options{FlightEvents: 20}
	d := newDuo(t, o, o, false)
	for range 10 {
		d.stream(1, func(int) {})
	}
	events, err := d.a.Flight()
	if err != nil {
		t.Fatal(err)
	}
	ops := slices.DeleteFunc(slices.Clone(events), func(e Event) bool { return e.Kind != EventOp })
	if len(ops) != 32 || len(events) < 34 {
		t.Fatalf("%d operations of %d events", len(ops), len(events))
	}
	for _, n := range []int{-1, maxFlightEvents + 1} {
		if _, err := Open(t.Context(), Options{FlightEvents: n}); !errors.Is(err, ErrInvalid) || !strings.Contains(err.Error(), "flight events") {
			t.Errorf("%d events: %v", n, err)
		}
	}
}

// An error of an operation that was refused carries what happened before, and a short hint in its text.
func TestErrorsCarryEvents(t *testing.T) {
	duos(t, 1, func(d *duo) {
		d.stream(1, func(int) {})
		err := d.refusedWrite()
		var oe *OpError
		if !errors.As(err, &oe) {
			t.Fatal(err)
		}
		got := oe.Flight()
		if len(got) < 3 || len(got) > 2*attached {
			t.Fatalf("%d events", len(got))
		}
		last := got[len(got)-1]
		if last.Op != "write" || last.Status == "ok" || last.Peer != oe.Peer {
			t.Fatalf("the last event: %s", &last)
		}
		if n := len(err.Error()); n > 400 || !strings.Contains(err.Error(), "last event, ") {
			t.Fatalf("a text of %d bytes: %v", n, err)
		}
		if again := FlightOf(fmt.Errorf("wrapped: %w", err)); len(again) != len(got) {
			t.Fatalf("%d events through FlightOf, %d directly", len(again), len(got))
		}
	})
	if FlightOf(errors.New("another")) != nil || (&OpError{Err: ErrClosed}).Flight() != nil {
		t.Fatal("events of nothing")
	}
}

// refusedWrite is the error of a write to memory that is closed as far as the rails know.
func (d *duo) refusedWrite() error {
	if err := d.a.worker.do(func(g *rail.Group) error { g.CloseRemote(&d.rem.rr); return nil }); err != nil {
		return err
	}
	tr, err := d.a.Write(Write{Src: d.src.Slice(0, 64), Dst: d.rem.Slice(0, 64)})
	if err != nil {
		return err
	}
	return tr.Wait(d.Context())
}

// The end of a session and the operations that fail by it carry the same: what happened before they failed.
func TestLostPeersCarryEvents(t *testing.T) {
	duos(t, 1, func(d *duo) {
		events := make(chan PeerEvent, 16)
		defer d.a.OnPeer(func(ev PeerEvent) { events <- ev })()
		d.stream(1, func(int) {})
		s := d.a.known(d.b.id).cur.Load()
		s.fail(ErrPeerDown, errors.New("the test says so"))
		for ev := range events {
			if ev.Kind != PeerDown {
				continue
			}
			got := FlightOf(ev.Cause)
			if n := len(got); n < attached || got[n-1].Kind != EventPeerDown || !strings.Contains(got[n-1].Text, "the test says so") {
				t.Fatalf("%d events: %v", n, got)
			}
			if !slices.ContainsFunc(got, func(e Event) bool { return e.Kind == EventPeerUp }) {
				t.Fatalf("%v", got)
			}
			break
		}
		d.await("writes fail", func() bool {
			tr, err := d.a.Write(Write{Src: d.src.Slice(0, 64), Dst: d.rem.Slice(0, 64)})
			if err == nil {
				err = tr.Wait(t.Context())
			}
			return err != nil && len(FlightOf(err)) > 0
		})
	})
}

// What is written down about a session is from before its operations fail by it: there may be more of them than the log has room for.
func TestFailingOperationsDoNotHideTheCause(t *testing.T) {
	best := &flaky{Provider: shm.New()}
	o := Options{Providers: []provider.Provider{best}, PeerTimeout: 5 * time.Second, ReconnectTime: -1}
	d := newDuo(t, o, o, false)
	d.stream(1, func(int) {})
	best.off.Store(true)
	d.lose(d.a, d.b, 0)
	d.await("the link is lost", func() bool { return !d.a.Stats().Peers[0].PerLink[0].Ready })
	p := d.a.known(d.b.id)
	var last *Transfer
	for range 2 * attached {
		var err error
		if last, err = d.a.Signal(Signal{To: p, Imm: 3}); err != nil {
			t.Fatal(err)
		}
	}
	d.await("all wait", func() bool { return d.a.Stats().Peers[0].Waiting == 2*attached })
	p.cur.Load().fail(ErrPeerDown, errors.New("the test says so"))
	for _, err := range []error{last.Wait(t.Context()), p.cur.Load().cause()} {
		got := FlightOf(err)
		if !slices.ContainsFunc(got, func(e Event) bool { return e.Kind == EventLinkLost && e.Text == "told to" }) {
			t.Errorf("the lost link is not in %v", got)
		}
		for _, e := range got {
			if e.Kind == EventOp && e.Status != "ok" {
				t.Errorf("%s: written down too late", &e)
			}
		}
	}
}
