package kv_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// poll takes events, so many at a time, until f has seen enough.
func poll(t *testing.T, d *kv.Decoder, room int, f func(kv.Event) (enough bool)) {
	t.Helper()
	out := make([]kv.Event, room)
	enough := false
	eventually(t, func() error {
		for n := d.Poll(out); n > 0; n = d.Poll(out) {
			for _, e := range out[:n] {
				enough = f(e) || enough
			}
		}
		if !enough {
			return errors.New("events are missing")
		}
		return nil
	})
}

// TestPollTellsEachEventOnce: of requests that become ready and that are cancelled, in the order of their ends, whatever room the caller
// has; and of no others.
func TestPollTellsEachEventOnce(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 256})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 256})
		wait, open := gate()
		t.Cleanup(open)
		newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) { e.wait = wait })
		d := newDecoder(t, dst, kv.DecoderConfig{})
		if n := d.Poll(make([]kv.Event, 4)); n != 0 {
			t.Fatalf("%d events before the first request", n)
		}
		const requests = 12
		seen := map[*kv.Pending][]kv.EventKind{}
		var cancelled []*kv.Pending
		for i := range requests {
			p, err := d.Fetch(limit(t), kv.FetchRequest{ID: fmt.Sprint(i), Prompt: prompt("x", 20), From: from(src.eng), Polled: i%4 != 3})
			if err != nil {
				t.Fatal(err)
			}
			if i%4 != 3 {
				seen[p] = nil
			}
			if i%4 == 1 {
				p.Cancel("in a test")
				cancelled = append(cancelled, p)
			}
		}
		open()
		events := 0
		poll(t, d, 2, func(e kv.Event) bool {
			kinds, ours := seen[e.Pending]
			if !ours {
				t.Fatalf("%v of request %s, whose caller does not poll", e.Kind, e.Pending.ID())
			}
			select {
			case <-e.Pending.Done():
			default:
				t.Errorf("%v of request %s, which has not ended", e.Kind, e.Pending.ID())
			}
			seen[e.Pending] = append(kinds, e.Kind)
			events++
			return events == 2*len(seen)
		})
		for p, kinds := range seen {
			res, err := p.Wait(limit(t))
			first := kv.EventReady
			if err != nil {
				first = kv.EventFailed
				if !errors.Is(err, proto.ErrCancelled) {
					t.Error(err)
				}
			}
			if len(kinds) != 2 || kinds[0] != first || kinds[1] != kv.EventQuiet {
				t.Errorf("request %s: %v", p.ID(), kinds)
			}
			res.Release()
		}
		for _, p := range cancelled {
			if _, err := p.Wait(limit(t)); err == nil {
				t.Errorf("request %s was cancelled before anything was computed, and is ready", p.ID())
			}
		}
		if n := d.Poll(make([]kv.Event, 4)); n != 0 {
			t.Errorf("%d events after the last", n)
		}
	})
}
