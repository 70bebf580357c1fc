//go:build vm

package roce

import (
	"context"
	"fmt"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/providertest"
	"github.com/hawser-project/hawser/provider/verbs"
)

// What a card is asked per write: these do not depend on how fast the machine is.
func TestWritesShareDoorbellsAndCompletionsCrossings(t *testing.T) {
	const (
		leastWrites = 8 // per doorbell: what one visit of the worker hands over
		leastDones  = 2 // per crossing that finds any; each stands for up to 16 writes
		mostSignals = 4 // writes per signal, at least: selective signaling is at work
		rounds      = 20
	)
	p := pairs(t, 1)[0]
	var opened []provider.Domain
	watched := func(o hawser.Options) hawser.Options {
		o.Providers = []provider.Provider{providertest.Decorate(verbs.New(verbs.Options{}), func(d provider.Domain) provider.Domain {
			opened = append(opened, d)
			return d
		})}
		return o
	}
	before := notReady(t, p.dev[:]...)
	d := &duo{a: open(t, watched(options(0, overVerbs(p)))), b: open(t, watched(options(1, overVerbs(p))))}
	d.src, d.dst = alloc(t, d.a), alloc(t, d.b)
	var err error
	if d.rem, err = d.a.Import(testContext(t), d.dst.Descriptor(d.dst.All(), hawser.RightWrite)); err != nil {
		t.Fatal(err)
	}
	for i := range rounds {
		d.round(t, uint64(i))
	}
	for _, e := range []*hawser.Engine{d.a, d.b} {
		if err := e.Close(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	// The owners have ended: now these are ours.
	sender := opened[0].(interface{ Stats() verbs.Stats }).Stats()
	receiver := opened[1].(interface{ Stats() verbs.Stats }).Stats()
	ratio := func(a, b uint64) float64 { return float64(a) / float64(max(b, 1)) }
	fmt.Printf("roce: %.1f writes a doorbell, %.1f writes a signal, %.1f completions a crossing of the sender, %.1f of the receiver\n",
		ratio(sender.Writes, sender.Doorbells), ratio(sender.Writes, sender.Signaled), ratio(sender.Dones, sender.Found), ratio(receiver.Dones, receiver.Found))
	if got := ratio(sender.Writes, sender.Doorbells); got < leastWrites {
		t.Errorf("%.1f writes a doorbell, want %d: %+v", got, leastWrites, sender)
	}
	if got := ratio(sender.Writes, sender.Signaled); got < mostSignals {
		t.Errorf("%.1f writes a signal, want %d: %+v", got, mostSignals, sender)
	}
	if got := ratio(receiver.Dones, receiver.Found); got < leastDones {
		t.Errorf("%.1f completions a crossing, want %d: %+v", got, leastDones, receiver)
	}
	if n := notReady(t, p.dev[:]...) - before; n != 0 {
		t.Errorf("cards met a receiver without receive requests %d times", n)
	}
}
