package kv_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// BenchmarkAttempts is the control plane alone: requests without pages, whose tail is 64 bytes. Both sides are in this process.
func BenchmarkAttempts(b *testing.B) {
	for _, network := range networks {
		b.Run(network, func(b *testing.B) {
			src := newSide(b, "p", network, layout.Spec{Model: small, Pages: 256})
			dst := newSide(b, "d", network, layout.Spec{Model: small, Pages: 256})
			newLLM(b, src, kv.PrefillerConfig{})
			d := newDecoder(b, dst, kv.DecoderConfig{})
			if err := d.Warm(b.Context(), src.eng.Addr()); err != nil {
				b.Fatal(err)
			}
			const callers = 32
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for {
						i := next.Add(1)
						if i > int64(b.N) {
							return
						}
						if err := attempt(b.Context(), d, src, fmt.Sprint(i)); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "attempts/s")
		})
	}
}

func attempt(ctx context.Context, d *kv.Decoder, src *side, id string) error {
	p, err := d.Fetch(ctx, kv.FetchRequest{
		ID: id, Prompt: proto.Prompt{Key: "k", Tokens: 4}, Spans: []proto.Span{{First: 4, N: 4}}, Pages: [][]uint32{nil}, From: from(src.eng), Tail: true,
	})
	if err != nil {
		return err
	}
	res, err := p.Wait(ctx)
	if err != nil {
		return err
	}
	res.Release()
	return nil
}
