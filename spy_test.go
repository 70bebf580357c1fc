package hawser_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// simPuppet is a puppet and an engine on one simulated network.
func simPuppet(t testing.TB, change func(*hawser.Options)) (*puppet, *hawser.Engine) {
	t.Helper()
	fabric := sim.New(sim.Config{Seed: rand.Uint64()})
	o := railsOf(fabric.Provider("engine"), 1, func(int) string { return "" })
	if change != nil {
		change(&o)
	}
	return newPuppet(t, fabric.Provider("puppet")), open(t, o)
}

// slowLog is a log handler that keeps whoever logs a message waiting.
type slowLog struct {
	slog.Handler
	message string
	wait    func()
}

func newSlowLog(message string, wait func()) *slog.Logger {
	return slog.New(slowLog{slog.NewTextHandler(io.Discard, nil), message, wait})
}

func (h slowLog) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.wait()
	}
	return nil
}

// spy shows what a network tells its owner. With noise, it tells something at every look. What it withholds comes when it does
// not any more, with the owner's next look.
type spy struct {
	provider.Provider
	see      func(provider.Completion)
	noise    bool
	withhold atomic.Uint32 // a provider.Kind, 0 for none
	broken   string        // "offer" or "connect": that fails
}

func (s *spy) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	d, err := s.Provider.Open(ctx, dev, cfg)
	if err != nil {
		return nil, fmt.Errorf("spy: %w", err)
	}
	return &spyDomain{Domain: d, spy: s}, nil
}

type spyDomain struct {
	provider.Domain
	spy  *spy
	held []provider.Completion
}

func (d *spyDomain) Offer() (provider.Peer, provider.Addr, error) {
	if d.spy.broken == "offer" {
		return 0, nil, fmt.Errorf("spy: %w", provider.ErrLimit)
	}
	return d.Domain.Offer()
}

func (d *spyDomain) Connect(p provider.Peer, remote provider.Addr, active bool) error {
	if d.spy.broken == "connect" {
		return fmt.Errorf("spy: %w", provider.ErrUnavailable)
	}
	return d.Domain.Connect(p, remote, active)
}

func (d *spyDomain) Poll(cs []provider.Completion) (int, error) {
	n, err := d.Domain.Poll(cs[:len(cs)/2])
	all := append(d.held, cs[:n]...)
	d.held, n = nil, 0
	for _, c := range all {
		if uint32(c.Kind) == d.spy.withhold.Load() {
			d.held = append(d.held, c)
			continue
		}
		if d.spy.see != nil {
			d.spy.see(c)
		}
		cs[n] = c
		n++
	}
	if n == 0 && d.spy.noise {
		cs[0] = provider.Completion{Kind: provider.KindImm} // of a peer that is not there
		n = 1
	}
	return n, err
}
