package hawser

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
)

func (t Traffic) plus(o Traffic) Traffic {
	c := rail.Counts(t)
	c.Add(rail.Counts(o))
	return Traffic(c)
}

// addUp checks that what links, peers and rails say is the same, and returns it.
func (d *duo) addUp(e *Engine) Traffic {
	d.Helper()
	st := e.Stats()
	var rails, peers Traffic
	for i := range st.Rails {
		rails = rails.plus(st.Rails[i].Traffic)
	}
	for i := range st.Peers {
		var links Traffic
		for k := range st.Peers[i].PerLink {
			links = links.plus(st.Peers[i].PerLink[k].Traffic)
		}
		if links != st.Peers[i].Traffic {
			d.Errorf("links: %+v\npeer: %+v", links, st.Peers[i].Traffic)
		}
		peers = peers.plus(links)
	}
	if peers != rails {
		d.Errorf("peers: %+v\nrails: %+v", peers, rails)
	}
	return rails
}

// meanwhile calls f again and again until stop, which waits for its end.
func meanwhile(f func()) (stop func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			select {
			case <-over:
				return
			default:
				f()
			}
		}
	}()
	return sync.OnceFunc(func() { close(over); <-ended })
}

// Counts add up over links, peers and rails, on both sides, at any time and while connections fail: each byte is counted once, and so is
// each immediate and each message.
func TestCountsAddUp(t *testing.T) {
	duos(t, 2, func(d *duo) {
		stop := meanwhile(func() { d.addUp(d.a); d.addUp(d.b) })
		defer stop()
		d.stream(8, func(i int) {
			if i%2 == 0 {
				d.lose(d.a, d.b, i/2%2)
			} else {
				d.lose(d.b, d.a, i/2%2)
			}
		})
		stop()
		want := Traffic{TxBytes: 8 * duoSize, TxImms: d.parts + d.signals, TxMessages: d.messages}
		for i := range d.messages {
			want.TxBytes += uint64(len(strconv.FormatUint(i+1, 10)))
		}
		a, b := d.addUp(d.a), d.addUp(d.b)
		if a.TxBytes != want.TxBytes || a.TxImms != want.TxImms || a.TxMessages != want.TxMessages {
			t.Errorf("sent %+v, want %+v", a, want)
		}
		if b.RxImms != want.TxImms || b.RxMessages != want.TxMessages || b.TxWrites != 0 || a.RxImms != 0 {
			t.Errorf("arrived %+v, want %+v", b, want)
		}
		if a.Losses < 4 || a.TxWrites < d.parts+d.signals+d.messages {
			t.Errorf("writer: %+v", a)
		}
		st := d.a.Stats()
		if ops := 8 * (1 + 20); st.Ops.Ended != uint64(ops) || st.Ops.Errors != nil {
			t.Errorf("%+v, want %d ends", st.Ops, ops)
		}
		for i, r := range st.Rails {
			if r.Outstanding < 0 || r.Held != 0 || r.Batches == 0 || r.Share <= 0 || r.Share > 2 {
				t.Errorf("rail %d: %+v", i, r)
			}
		}
	}, "shm", "tcp") // the order of sim's NICs leaves open which messages have arrived, so some end with an error
}

// A path on which something does not work says so.
func TestDegradedPathIsVisible(t *testing.T) {
	best := &flaky{Provider: shm.New()}
	o := Options{Providers: []provider.Provider{best, tcp.New()}, PeerTimeout: 5 * time.Second, Rails: []Rail{{Provider: "shm"}, {Provider: "shm"}, {Provider: "tcp"}}}
	d := newDuo(t, o, o, false)
	is := func(want string) func() bool {
		return func() bool { return strings.Contains(d.a.Stats().Peers[0].Degraded, want) }
	}
	if p := d.a.Stats().Peers[0]; p.Degraded != "" || p.Links != 2 || len(p.PerLink) < 2 || !p.PerLink[0].Ready {
		t.Fatalf("%+v", p)
	}
	best.off.Store(true)
	d.lose(d.a, d.b, 0)
	d.await("one link", is("1 of 2 links"))
	d.lose(d.a, d.b, 1)
	d.await("tcp stands in", is("tcp stands in"))
	if text := d.a.Stats().String(); !strings.Contains(text, "degraded: tcp stands in") {
		t.Error(text)
	}
	best.off.Store(false)
	d.await("all is well", func() bool { return d.a.Stats().Peers[0].Degraded == "" })
}

func TestImbalanceOfRails(t *testing.T) {
	for _, c := range []struct {
		bytes, speeds []uint64
		imbalance     float64
		shares        string
	}{
		{[]uint64{5, 5}, []uint64{1e9, 1e9}, 1, "[1 1]"},
		{[]uint64{10, 0}, []uint64{1e9, 1e9}, 2, "[2 0]"},
		{[]uint64{1, 3}, []uint64{1e9, 3e9}, 1, "[1 1]"},
		{[]uint64{4, 4, 4, 0}, []uint64{0, 0, 0, 0}, 4.0 / 3, "[1.3333333333333333 1.3333333333333333 1.3333333333333333 0]"},
		{[]uint64{0, 0}, []uint64{1, 1}, 0, "[0 0]"},
	} {
		var rails []RailStats
		var links []LinkStats
		for i := range c.bytes {
			tr := Traffic{TxBytes: c.bytes[i]}
			rails = append(rails, RailStats{Provider: "x", LinkBits: c.speeds[i], Traffic: tr})
			links = append(links, LinkStats{Rail: i, Ready: true, Traffic: tr})
		}
		shares(rails)
		var got []float64
		for i := range rails {
			got = append(got, rails[i].Share)
		}
		if x := imbalance(links, 0, rails); x != c.imbalance || fmt.Sprint(got) != c.shares {
			t.Errorf("%v at %v: imbalance %v, shares %v; want %v, %s", c.bytes, c.speeds, x, got, c.imbalance, c.shares)
		}
	}
}

// Some operations are followed with the clock through all phases; each phase of each of them is counted once.
func TestLatenciesAreSampled(t *testing.T) {
	duos(t, 2, func(d *duo) {
		q, done := d.a.NewQueue(64), make([]Done, 64)
		for range 20 {
			for range 64 {
				if err := q.Write(Write{Src: d.src.Slice(0, 64), Dst: d.rem.Slice(0, 64)}, 0); err != nil {
					t.Fatal(err)
				}
			}
			for open := 64; open > 0; {
				n, err := q.Wait(t.Context(), done)
				if err != nil {
					t.Fatal(err)
				}
				open -= n
			}
		}
		l := d.a.Stats().Latency
		if n := l.Queue.Count; n < 20*64/stampEvery/2 || n > 20*64 || l.Wire.Count != n || l.Post.Count == 0 || l.Post.Count > n || l.Notify.Count == 0 {
			t.Fatalf("queue %s; post %s; wire %s; notify %s", l.Queue, l.Post, l.Wire, l.Notify)
		}
		if l.Queue.Sum == 0 || l.Queue.Quantile(1) > time.Minute {
			t.Fatalf("queue %+v", l.Queue)
		}
	})
}

// Stats are plain data: they can be written as JSON, with errors as texts.
func TestStatsAsJSON(t *testing.T) {
	duos(t, 1, func(d *duo) {
		d.stream(1, func(int) {})
		if err := d.a.Fence(t.Context(), d.a.known(d.b.id)); err != nil {
			t.Fatal(err)
		}
		text, err := json.Marshal(d.a.Stats())
		if err != nil {
			t.Fatal(err)
		}
		var back struct {
			Peers []struct {
				ID, Down string
				TxImms   uint64
				PerLink  []struct{ TxImms uint64 }
			}
			Latency struct{ Queue Histogram }
		}
		if err := json.Unmarshal(text, &back); err != nil {
			t.Fatal(err)
		}
		p := back.Peers[0]
		if p.ID != d.b.id.String() || !strings.Contains(p.Down, errFenced.Error()) || p.TxImms != d.parts+d.signals || p.PerLink[0].TxImms != p.TxImms || back.Latency.Queue.Count == 0 {
			t.Fatalf("%s", text)
		}
	}, "tcp")
}

// Operations that fail are counted by cause, each target of a scatter by itself.
func TestErrorsAreCountedByKind(t *testing.T) {
	duos(t, 1, func(d *duo) {
		if err := d.refusedWrite(); !errors.Is(err, ErrAccess) {
			t.Fatal(err)
		}
		to := d.rem.Slice(0, 64)
		tr, err := d.a.Scatter(Scatter{Src: d.src.All(), Targets: []Target{{Dst: to, Len: 64}, {Dst: to, Len: 64}, {Dst: to, Len: 64}}})
		if err != nil {
			t.Fatal(err)
		}
		err = tr.Wait(t.Context())
		if n := len(FlightOf(err)); n < 3 {
			t.Errorf("%d events of a target that failed", n)
		}
		if st := d.a.Stats(); st.Ops.Errors["access"] != 4 || st.Ops.Ended != 2 || len(st.Ops.Errors) != 1 {
			t.Errorf("%+v", st.Ops)
		}
	})
}
