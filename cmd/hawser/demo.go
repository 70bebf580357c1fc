package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-project/hawser/kv/simllm"
)

type demoCmd struct {
	Requests int       `default:"32" help:"Requests per network, at least 16 (default: ${default})."`
	Steps    int       `default:"10000" help:"Steps of an MoE layer (default: ${default})."`
	Provider []network `default:"shm,tcp" placeholder:"NAME" help:"Networks: ${networks} (default: ${default})."`
}

type demoResult struct {
	OK      bool              `json:"ok"`
	Seconds float64           `json:"seconds"`
	Replays []*replayReport   `json:"replays"`
	Weights *weightsActResult `json:"weights"`
	MoE     *moeCheckReport   `json:"moe"`
}

// demoPool holds every prompt that the generator makes, and is made in a moment.
const demoPool = 512 << 20

// minDemo requests let each decoder cancel one and do others.
const minDemo = 16

// demoDecoders is how many decoders share the requests.
const demoDecoders = 2

// demoSpeed replays the seconds between two conversations in a fraction of them.
const demoSpeed = 6

// Run replays over every network that is asked for and prints one verdict.
func (c *demoCmd) Run(ctx context.Context, u *ui) error {
	if c.Requests < minDemo {
		return usage("--requests: %d, want %d or more", c.Requests, minDemo)
	}
	began := time.Now()
	var d demoResult
	var faults []error
	u.printf("Four processes: two prefillers that compute %d prompts of a generated trace and send their KV pages, layer by layer, and two\n"+
		"decoders that check every byte. Each of them cancels one request under way.\n", c.Requests)
	for _, name := range c.Provider {
		replay := replayCmd{
			kvFlags:     kvFlags{modelFlags: modelFlags{Geometry: "mini", Scale: 1}, Provider: name, Pool: demoPool},
			decodeFlags: decodeFlags{Requests: c.Requests, CancelN: 1, Seed: 1, Speed: demoSpeed, TokenTime: simllm.DefaultTokenTime, Verify: simllm.VerifyAll},
			Prefillers:  2, Decoders: demoDecoders, Rails: railPair{1, 1},
		}
		r, err := replay.replay(ctx, u)
		if err != nil {
			return fmt.Errorf("demo over %s: %w", name, err)
		}
		d.Replays = append(d.Replays, r)
		printReport(u, "over "+string(name), r)
		if err := r.verdict(); err != nil {
			faults = append(faults, fmt.Errorf("over %s: %w", name, err))
		}
		if r.Cancelled != demoDecoders {
			faults = append(faults, fmt.Errorf("over %s: %d requests were cancelled, want %d", name, r.Cancelled, demoDecoders))
		}
	}
	var err error
	if d.Weights, err = c.act(ctx, u); err != nil {
		faults = append(faults, err)
	}
	if d.MoE, err = c.moeAct(ctx, u); err != nil {
		faults = append(faults, err)
	}
	d.Seconds, d.OK = time.Since(began).Seconds(), len(faults) == 0
	if d.OK {
		u.printf("demo: %s in %.0f s\n", d.summary(), d.Seconds)
	}
	return errors.Join(append(faults, u.result(d))...)
}

func (d *demoResult) summary() string {
	verified, cancelled, bytes := 0, 0, uint64(0)
	var networks []string
	for _, r := range d.Replays {
		verified += r.VerifiedRequests
		cancelled += r.Cancelled
		bytes += r.Bytes
		networks = append(networks, r.Provider)
	}
	return fmt.Sprintf("ok: %d requests verified, %d cancelled, %.1f GB moved over %s, 0 bytes wrong, 0 pages lost; %d versions of weights pushed; %d steps of an MoE layer verified",
		verified, cancelled, float64(bytes)/1e9, strings.Join(networks, " and "), len(d.Weights.Pushes), d.MoE.Verified)
}
