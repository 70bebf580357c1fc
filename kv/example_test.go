package kv_test

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// model has two layers and pages of 16 tokens.
var model = layout.Model{Name: "example@r1", Layers: 2, TP: 1, Groups: []layout.Group{{PageTokens: 16, KVHeads: 2, HeadDim: 64, ElemSize: 2, Planes: 2}}}

// memory is the KV cache of one side: what an inference engine has anyway.
func memory(ctx context.Context, name string, pages int) (*hawser.Engine, layout.Geometry, []*hawser.Region, error) {
	eng, err := hawser.Open(ctx, hawser.Options{Name: name})
	if err != nil {
		return nil, layout.Geometry{}, nil, err
	}
	g, sizes, err := layout.Build(layout.Spec{Model: model, Pages: pages})
	if err != nil {
		return nil, g, nil, err
	}
	var regions []*hawser.Region
	for _, n := range sizes {
		r, err := eng.Alloc(uint64(n), hawser.MemOptions{})
		if err != nil {
			return nil, g, nil, err
		}
		regions = append(regions, r)
	}
	return eng, g, regions, nil
}

// scheduler is the part of an inference engine that a Prefiller asks: it has one prompt at a time.
type scheduler struct{ jobs chan *kv.Job }

func (s *scheduler) Admit(*kv.Job) proto.Admission {
	pages := []layout.Pages{{Index: []uint32{5, 2, 7}}} // of its own pool
	return proto.Admission{Verdict: proto.AdmitReady, Source: proto.SourcePages{Pages: pages}}
}
func (s *scheduler) Start(j *kv.Job) { s.jobs <- j }
func (s *scheduler) Stop(*kv.Job)    {}
func (s *scheduler) Unpin(*kv.Job)   {} // the pages may be used again

// run computes prompts. The device stores a word after each layer; here this goroutine does.
func (s *scheduler) run(p *kv.Prefiller) {
	word, err := p.Progress(0)
	if err != nil {
		return
	}
	for j := range s.jobs {
		pass := p.NewPass()
		pass.Add(j, proto.Span{First: 0, N: j.Info().Prompt.Tokens})
		base, err := p.Begin(pass)
		if err != nil {
			j.Fail(err)
			continue
		}
		for layer := range model.Layers {
			word.Word().Store(base + uint64(layer) + 1)
			word.Kick() // so that it is seen at once; a device does not
		}
	}
}

// A decoder that reserves pages from a pool, asks for a prompt, and polls between the steps of its own work; and a prefiller that tells its
// progress by a word.
func ExampleDecoder_Poll() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := fetchAndPoll(ctx); err != nil {
		fmt.Println(err)
	}
	// Output:
	// request 81f2: ready, 3 pages
	// request 81f2: quiet
}

func fetchAndPoll(ctx context.Context) error {
	engP, g, regions, err := memory(ctx, "prefill-0", 8)
	if err != nil {
		return err
	}
	defer func() { _ = engP.Close(ctx) }()
	s := &scheduler{jobs: make(chan *kv.Job, 16)}
	defer close(s.jobs)
	p, err := kv.NewPrefiller(engP, kv.PrefillerConfig{Instance: "p0", Topology: &layout.Topology{Members: []layout.Geometry{g}}, Regions: regions, Pages: 8}, s)
	if err != nil {
		return err
	}
	defer func() { _ = p.Close(ctx) }()
	go s.run(p)

	engD, g, regions, err := memory(ctx, "decode-0", 8)
	if err != nil {
		return err
	}
	defer func() { _ = engD.Close(ctx) }()
	pages, err := pool.New(8, 1)
	if err != nil {
		return err
	}
	d, err := kv.NewDecoder(engD, kv.DecoderConfig{
		Instance: "d0", Topology: &layout.Topology{Members: []layout.Geometry{g}}, Regions: regions, Pools: []*pool.Pool{pages},
	})
	if err != nil {
		return err
	}
	defer func() { _ = d.Close(ctx) }()
	request := kv.FetchRequest{
		ID: "81f2", Prompt: proto.Prompt{Key: "what the prefiller knows it by", Tokens: 40},
		From: []proto.Source{{Writers: []string{engP.Addr()}}}, Polled: true,
	}
	if _, err := d.Fetch(ctx, request); err != nil {
		return err
	}
	events := make([]kv.Event, 16)
	for {
		for _, e := range events[:d.Poll(events)] {
			switch e.Kind {
			case kv.EventReady:
				res, err := e.Pending.Wait(ctx) // does not wait
				if err != nil {
					return err
				}
				fmt.Printf("request %s: %v, %d pages\n", e.Pending.ID(), e.Kind, len(res.Pages[0]))
				defer res.Release() // when the last token has been decoded
			case kv.EventFailed:
				_, err := e.Pending.Wait(ctx)
				return err
			case kv.EventQuiet:
				fmt.Printf("request %s: %v\n", e.Pending.ID(), e.Kind)
				return nil
			}
		}
		time.Sleep(time.Millisecond) // a step of the decoder
	}
}
