package hawser

import (
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/tcp"
)

// tracing collects what a Trace is told.
type tracing struct {
	mu      sync.Mutex
	begun   map[uint64]TraceOp
	ended   []TraceOp
	peers   []PeerEventKind
	links   []LinkEvent
	rails   []RailEvent
	refused []RefusedPeer
	wrong   []string
}

func (x *tracing) trace() *Trace {
	x.begun = map[uint64]TraceOp{}
	locked := func(f func()) {
		x.mu.Lock()
		defer x.mu.Unlock()
		f()
	}
	return &Trace{
		Submitted: func(o TraceOp) { locked(func() { x.begun[o.ID] = o }) },
		Ended: func(o TraceOp) {
			locked(func() {
				b, ok := x.begun[o.ID]
				if !ok || b.Op != o.Op || b.Peer != o.Peer || o.Took < 0 || o.Time.Sub(b.Time) != o.Took {
					x.wrong = append(x.wrong, o.Op)
				}
				delete(x.begun, o.ID)
				x.ended = append(x.ended, o)
			})
		},
		Peer:    func(ev PeerEvent) { locked(func() { x.peers = append(x.peers, ev.Kind) }) },
		Link:    func(ev LinkEvent) { locked(func() { x.links = append(x.links, ev) }) },
		Rail:    func(ev RailEvent) { locked(func() { x.rails = append(x.rails, ev) }) },
		Refused: func(r RefusedPeer) { locked(func() { x.refused = append(x.refused, r) }) },
	}
}

func (x *tracing) see(d *duo, what string, f func() bool) {
	d.Helper()
	d.await(what, func() bool {
		x.mu.Lock()
		defer x.mu.Unlock()
		return f()
	})
}

func tracedDuo(t *testing.T, tr *Trace) *duo {
	o := Options{Providers: []provider.Provider{tcp.New()}, PeerTimeout: 5 * time.Second, ReconnectTime: -1}
	a := o
	a.Trace = tr
	return newDuo(t, a, o, true)
}

// Everything that is submitted is told once, and its end after it; links, peers and refusals are told too.
func TestTraceTellsEverything(t *testing.T) {
	x := &tracing{}
	d := tracedDuo(t, x.trace())
	d.stream(2, func(i int) {
		if i == 1 {
			d.lose(d.a, d.b, 0)
		}
	})
	p := d.a.known(d.b.id)
	q, done := d.a.NewQueue(1), make([]Done, 1)
	if err := q.Scatter(Scatter{Src: d.src.All(), Targets: []Target{{Dst: d.rem.Slice(0, 64), Len: 64}, {Dst: d.rem.Slice(64, 64), Len: 64}}}, 77); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Wait(t.Context(), done); err != nil {
		t.Fatal(err)
	}
	if err := d.a.SendBulk(t.Context(), p, make([]byte, 100), nil); err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", d.a.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("GET / HTTP/1.1\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	x.see(d, "all ends", func() bool { return len(x.ended) == 2*21+2 && len(x.begun) == 0 })
	x.see(d, "the refusal", func() bool {
		return len(x.refused) == 1 && x.refused[0].Err != nil && x.refused[0].From != "" && x.refused[0].Reason != ""
	})
	x.see(d, "the link", func() bool {
		return len(x.links) == 2 && !x.links[0].Up && x.links[0].Why == "told to" && x.links[1].Up && x.links[1].Peer == p
	})
	if err := d.a.Fence(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	x.see(d, "the peer", func() bool { return slices.Equal(x.peers, []PeerEventKind{PeerUp, PeerDown, PeerFenced}) })
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(x.wrong) > 0 {
		t.Fatalf("ends that do not fit their beginnings: %v", x.wrong)
	}
	for _, o := range x.ended {
		switch o.Op {
		case "write":
			if o.Len != duoSize || o.Imm != Imm(1) || o.Parts != 40 || o.Peer != p || o.Err != nil {
				t.Errorf("%+v", o)
			}
		case "scatter":
			if o.Parts != 2 || o.Peer != nil || o.Cookie != 77 {
				t.Errorf("%+v", o)
			}
		case "send":
			if o.Len == 0 || o.Len > 2 {
				t.Errorf("%+v", o)
			}
		}
	}
	if st := d.a.Stats(); len(st.Refused) != 1 || st.TraceDropped != 0 {
		t.Errorf("%v refused, %d dropped", st.Refused, st.TraceDropped)
	}
}

// A function that is too slow loses what does not fit, which is counted; it stops nothing. One that panics neither.
func TestSlowTraceDropsAndCounts(t *testing.T) {
	free := make(chan struct{})
	told := make(chan uint64, 4*traceDepth)
	d := tracedDuo(t, &Trace{Ended: func(o TraceOp) {
		<-free
		told <- o.ID
		if o.ID == 1 {
			panic("the test says so")
		}
	}})
	q, done := d.a.NewQueue(256), make([]Done, 256)
	const all = 2 * traceDepth
	for sent, open := 0, 0; sent < all || open > 0; {
		for ; sent < all && open < 256; sent, open = sent+1, open+1 {
			if err := q.Signal(Signal{To: d.a.known(d.b.id), Imm: 5}, 0); err != nil {
				t.Fatal(err)
			}
		}
		n, err := q.Wait(t.Context(), done)
		if err != nil {
			t.Fatal(err)
		}
		open -= n
	}
	dropped := d.a.Stats().TraceDropped
	close(free)
	if dropped < all || dropped >= 2*all {
		t.Fatalf("%d of %d dropped", dropped, 2*all)
	}
	tr, err := d.a.Signal(Signal{To: d.a.known(d.b.id), Imm: 5})
	if err == nil {
		err = tr.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	d.await("it goes on", func() bool { return len(told) > 1 })
	d.await("the panic is counted", func() bool { return d.a.Stats().Callbacks.Panics == 1 })
}

// A rail that fails as a whole is told with its name.
func TestTraceTellsDeadRails(t *testing.T) {
	x := &tracing{}
	d := tracedDuo(t, x.trace())
	if err := d.a.worker.do(func(*rail.Group) error { d.a.worker.Dead(0, errors.New("unplugged")); return nil }); err != nil {
		t.Fatal(err)
	}
	x.see(d, "the rail", func() bool {
		return len(x.rails) == 1 && x.rails[0].Provider == "tcp" && strings.Contains(x.rails[0].Err.Error(), "unplugged")
	})
	if !d.a.Stats().Rails[0].Dead {
		t.Fatal("not dead")
	}
}
