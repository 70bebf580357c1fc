package hawser

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/provider/tcp"
)

// alias is a network under another name; with cards it pins what is registered, as cards do.
type alias struct {
	provider.Provider
	name   string
	cards  bool
	broken string // a device that cannot be opened
}

func (a *alias) Name() string { return a.name }

func (a *alias) Devices(ctx context.Context) ([]provider.Device, error) {
	devs, err := a.Provider.Devices(ctx)
	for i := range devs {
		devs[i].Provider = a.name
	}
	return devs, err
}

func (a *alias) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	if dev.Name == a.broken {
		return nil, fmt.Errorf("%s: %w: out of order", dev.Name, provider.ErrLimit)
	}
	dev.Provider = a.Provider.Name()
	d, err := a.Provider.Open(ctx, dev, cfg)
	if err != nil {
		return nil, err
	}
	return aliasDomain{d, a.cards}, nil
}

type aliasDomain struct {
	provider.Domain
	cards bool
}

func (d aliasDomain) Caps() provider.Caps {
	c := d.Domain.Caps()
	c.PinsMemory = d.cards
	return c
}

// absent is a network that is not on this machine.
type absent struct{ name string }

func (a absent) Name() string { return a.name }
func (a absent) Devices(context.Context) ([]provider.Device, error) {
	return nil, fmt.Errorf("%s: %w: no library", a.name, provider.ErrUnavailable)
}

func (a absent) Open(context.Context, provider.Device, provider.Config) (provider.Domain, error) {
	return nil, fmt.Errorf("%s: %w: no library", a.name, provider.ErrUnavailable)
}

// lockNothing lets cards be used whatever this process may pin.
func lockNothing(t *testing.T) {
	old := minLock
	minLock = 0
	t.Cleanup(func() { minLock = old })
}

func openWith(t *testing.T, o Options) *Engine {
	t.Helper()
	e, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return e
}

// railNames are the rails of an engine, provider/device.
func railNames(e *Engine) []string {
	var out []string
	for _, r := range e.Stats().Rails {
		out = append(out, r.Provider+"/"+r.Device)
	}
	return out
}

// Who lists no rails gets all cards that work, one rail of other networks, and is told what was left out.
func TestRailsThatNobodyListed(t *testing.T) {
	lockNothing(t)
	fabric := sim.New(sim.Config{NICs: 3})
	cards := &alias{Provider: fabric.Provider("a"), name: "verbs", cards: true, broken: "nic1"}
	o := Options{Providers: []provider.Provider{absent{"shm"}, cards, &alias{Provider: fabric.Provider("b"), name: "ofi:tcp"}}}
	e := openWith(t, o)
	if got, want := railNames(e), []string{"verbs/nic0", "verbs/nic2", "ofi:tcp/nic0"}; !slices.Equal(got, want) {
		t.Errorf("rails %v, want %v", got, want)
	}
	left := e.Stats().LeftOut
	if len(left) != 2 || !strings.Contains(left["shm"], "no library") || !strings.Contains(left["verbs/nic1"], "out of order") {
		t.Errorf("left out: %v", left)
	}

	o.Rails = []Rail{{"verbs", AllDevices}}
	if _, err := Open(t.Context(), o); !errors.Is(err, ErrLimit) || !strings.Contains(err.Error(), "verbs/*") {
		t.Errorf("a card that was asked for cannot be opened: %v", err)
	}
	cards.broken = ""
	if got, want := railNames(openWith(t, o)), []string{"verbs/nic0", "verbs/nic1", "verbs/nic2"}; !slices.Equal(got, want) {
		t.Errorf("rails %v, want %v", got, want)
	}
	o.Rails = []Rail{{"shm", AllDevices}}
	if _, err := Open(t.Context(), o); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a network that was asked for is not there: %v", err)
	}
}

// Cards that nobody asked for are left out where hardly any memory could be registered for them; the others are not.
func TestCardsAreLeftOutWhenLittleCanBePinned(t *testing.T) {
	old := minLock
	minLock = 1 << 62
	defer func() { minLock = old }()
	fabric := sim.New(sim.Config{NICs: 2})
	e := openWith(t, Options{Providers: []provider.Provider{&alias{Provider: fabric.Provider("a"), name: "verbs", cards: true}, tcp.New()}})
	switch got, left := railNames(e), e.Stats().LeftOut["verbs"]; {
	case len(got) == 3:
		t.Skip("this process may pin as much as it likes")
	case len(got) != 1 || !strings.Contains(left, "ulimit -l"):
		t.Errorf("rails %v, left out: %s", got, left)
	}
}

// A family of networks is required by its name, one of them by its own.
func TestRequireFamily(t *testing.T) {
	fabric := sim.New(sim.Config{})
	options := func(host, require string) Options {
		return Options{Providers: []provider.Provider{tcp.New(), &alias{Provider: fabric.Provider(host), name: "ofi:udp"}}, Require: require}
	}
	b := openWith(t, options("b", ""))
	for require, want := range map[string]string{"": "tcp", "ofi": "ofi:udp", "ofi:udp": "ofi:udp"} {
		a := openWith(t, options("a"+require, require))
		p, err := a.Connect(t.Context(), b.Addr())
		if err != nil || p.Path() != want {
			t.Errorf("require %q: path %v, %v", require, p, err)
		}
		back, err := openWith(t, options("c"+require, "")).Connect(t.Context(), a.Addr())
		if err != nil || back.Path() != want {
			t.Errorf("required by the other side, %q: path %v, %v", require, back, err)
		}
	}
	for _, require := range []string{"of", "ofi:", "ofi:tcp", "udp"} {
		if _, err := Open(t.Context(), options("x", require)); !errors.Is(err, ErrInvalid) {
			t.Errorf("require %q: %v", require, err)
		}
	}
}

// Cards on several fabrics are one way; other networks have one for each fabric. Who has which network not is told.
func TestPlans(t *testing.T) {
	rail := func(network, fabric string) wire.Rail { return wire.Rail{Provider: network, Fabric: fabric} }
	down := rail("verbs", "1")
	down.Down = 1
	dialer := &party{rails: []wire.Rail{rail("tcp", "lo"), rail("verbs", "1"), rail("tcp", "x"), rail("verbs", "2"), rail("verbs", "2"), rail("shm", "there")}}
	answerer := &party{rails: []wire.Rail{rail("verbs", "2"), rail("verbs", "1"), down, rail("tcp", "x"), rail("tcp", "lo"), rail("shm", "here"), rail("ofi", "y")}}
	prefer := []provider.Provider{absent{"shm"}, absent{"verbs"}, absent{"ofi"}, absent{"sim"}, absent{"tcp"}}
	ways, missing := plans(prefer, dialer, answerer, func(n string) bool { return n == "verbs" })
	var got []string
	for _, w := range ways {
		s := w.text + ":"
		for _, p := range w.pairs {
			s += fmt.Sprintf(" %d-%d %v", p.Dialer, p.Answerer, p.dialers)
		}
		got = append(got, s)
	}
	want := []string{
		"verbs, 3 links over 2 fabrics: 3-0 [3 4] 4-0 [4 3] 1-1 [1]",
		"tcp, 1 x 1 rails: 2-3 [2]",
		"tcp, 1 x 1 rails: 0-4 [0]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("ways:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if missing["shm"] != "the two sides are on different fabrics" || missing["ofi"] != "none on the side that dialed" || missing["sim"] != "" {
		t.Errorf("missing: %v", missing)
	}
	answerer.require = "tcp"
	if ways, missing = plans(prefer, dialer, answerer, func(string) bool { return true }); len(ways) != 1 || len(ways[0].pairs) != 2 || missing["verbs"] == "" {
		t.Errorf("with tcp required: %+v, missing %v", ways, missing)
	}
}

// All cards of the best network fail, and the next one carries everything on, each immediate counted once, until the best is back.
func TestFailsOverBetweenNetworks(t *testing.T) {
	lockNothing(t)
	card := sim.NIC{Ordered: true, AccessEnds: true}
	verbs, efa := sim.New(sim.Config{NICs: 2, NIC: card}), sim.New(sim.Config{NIC: sim.NIC{Ordered: true}})
	options := func(host string) Options {
		return Options{PeerTimeout: 5 * time.Second, Providers: []provider.Provider{
			&alias{Provider: verbs.Provider(host), name: "verbs", cards: true}, &alias{Provider: efa.Provider(host), name: "ofi:efa", cards: true}, tcp.New(),
		}}
	}
	d := newDuo(t, options("a"), options("b"), true)
	d.ordered = true
	in := func(network string) bool { // and nothing better is
		for _, l := range d.a.Stats().Peers[0].PerLink {
			if l.Ready {
				return l.Provider == network
			}
		}
		return false
	}
	degraded := func() string { return d.a.Stats().Peers[0].Degraded }
	if s := d.a.Stats().Peers[0]; s.Path != "verbs" || s.Links != 2 || s.Degraded != "" {
		t.Fatalf("path %s with %d links, %s", s.Path, s.Links, s.Degraded)
	}
	d.stream(2, func(int) {})
	d.stream(4, func(i int) {
		if i == 1 {
			verbs.Cut("a", "b")
		}
	})
	d.await("ofi:efa carries on", func() bool { return in("ofi:efa") })
	if s := degraded(); s != "ofi:efa stands in for it" {
		t.Errorf("degraded: %s", s)
	}
	d.stream(4, func(i int) {
		if i == 1 {
			efa.Fail("a") // for good: that card is dead
		}
	})
	d.await("tcp carries on", func() bool { return in("tcp") })
	if s := degraded(); s != "tcp stands in for it" {
		t.Errorf("degraded: %s", s)
	}
	d.stream(4, func(i int) {
		if i == 1 {
			verbs.Heal("a", "b")
		}
	})
	d.await("both cards are back", func() bool { return degraded() == "" })
	before := d.links()
	d.stream(1, func(int) {})
	after := d.links()
	if n := after[0].TxBytes + after[1].TxBytes - before[0].TxBytes - before[1].TxBytes; n < duoSize || after[3].TxBytes != before[3].TxBytes {
		t.Errorf("%d bytes over the cards; links: %+v", n, after)
	}
	if after[0].Resent+after[1].Resent == 0 || after[2].Resent == 0 {
		t.Errorf("nothing was under way when the cards failed; links: %+v", after)
	}
	if a, b := d.a.Stats().Rails[2], d.b.Stats().Rails[2]; !d.a.known(d.b.id).Up() || !a.Dead || b.Dead {
		t.Errorf("the rail whose card is dead: %+v; that of the other side: %+v", a, b)
	}
}
