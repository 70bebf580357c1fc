package kv_test

import (
	"fmt"
	"testing"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
)

// TestTimingComesAfterReady: what the prefiller tells of a request reaches its result, also when the last write was faster.
func TestTimingComesAfterReady(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		m := newSide(t, "d", network, layout.Spec{Model: small, Pages: 64})
		p := newSide(t, "p", network, layout.Spec{Model: small, Pages: 64})
		newLLM(t, p, kv.PrefillerConfig{})
		d := newDecoder(t, m, kv.DecoderConfig{})
		for i := range 50 {
			f, err := d.Fetch(limit(t), kv.FetchRequest{ID: fmt.Sprint(i), Prompt: prompt(fmt.Sprint(i), 9), From: from(p.eng)})
			if err != nil {
				t.Fatal(err)
			}
			res, err := f.Wait(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := res.Timing(limit(t)); err != nil {
				t.Fatal(err)
			}
			res.Release()
		}
	})
}
