package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/weightbench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/weights/stage"
)

type (
	weightsBenchCmd struct {
		quietFlag

		Model    string  `default:"Qwen3-0.6B" placeholder:"NAME" help:"A model of models.json; tiny: 310 tensors of 4 KiB; one: one of them (default: ${default})."`
		SrcRanks int     `default:"4" placeholder:"N" help:"Training ranks, FSDP (default: ${default})."`
		DstRanks int     `default:"2" placeholder:"N" help:"Inference ranks: tensor parallel or, of models with experts, expert parallel (default: ${default})."`
		Provider network `default:"shm" placeholder:"NAME" help:"Network: ${networks} (default: ${default})."`
		Codec    string  `default:"raw" enum:"raw,fp8block" placeholder:"CODEC" help:"raw: both sides hold BF16; fp8block: destinations hold FP8 and scales (default: ${default})."`
		Layers   string  `placeholder:"A-B" help:"Only these layers, and nothing outside of layers (default: the whole model)."`
		Verify   string  `default:"off" enum:"sampled,all,off" placeholder:"HOW" help:"Digests within the clock: sampled, all or off; every byte is compared after it in any case (default: ${default})."`
		Rounds   int     `default:"9" help:"Rounds that count, after two that do not; everybody takes a turn in each (default: ${default})."`
		Predict  bool    `help:"Simulate the push, too, from the rate of the copy and a push of one small tensor, and compare."`
		Peers    bool    `help:"Measure files in memory, and torch.distributed over Gloo, beside the copy."`
		Torch    string  `default:"python3" placeholder:"PYTHON" help:"The Python that has torch, for --peers (default: ${default})."`
	}

	// benchRankCmd is the process of a rank.
	benchRankCmd struct{}
)

// Run serves the measuring process.
func (benchRankCmd) Run(ctx context.Context) error { return weightbench.Serve(ctx) }

// weightsBenchReport is the result in JSON.
type weightsBenchReport struct {
	weightsHead
	*weightbench.Result

	Machine  bench.Machine `json:"machine"`
	Revision string        `json:"revision"`
	Args     []string      `json:"args"`
	Predict  *prediction   `json:"prediction,omitempty"`
}

// Run measures pushes.
func (c *weightsBenchCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	k := weightbench.Case{Model: c.Model, Src: c.SrcRanks, Dst: c.DstRanks, Codec: c.Codec}
	if c.Layers != "" {
		first, last, ok := strings.Cut(c.Layers, "-")
		a, err := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if !ok || err != nil || err2 != nil || a > b {
			return usage("--layers %q: want A-B, as 0-1", c.Layers)
		}
		k.Layers = []int{a, b}
	}
	if c.Rounds < 1 || c.SrcRanks < 1 || c.DstRanks < 1 {
		return usage("--rounds, --src-ranks and --dst-ranks: want 1 or more")
	}
	config := weightbench.Config{
		Network: string(c.Provider), Case: k, Rounds: c.Rounds, Verify: map[string]stage.Verify{"sampled": stage.Sampled, "all": stage.All, "off": stage.Off}[c.Verify],
		Child: proc.Spec{Name: "rank", Args: []string{"bench", "rank"}},
		Tell:  func(what string) { u.status.show("weights bench: %s", what) },
	}
	if c.Peers {
		config.Peers = &weightbench.Peers{Python: c.Torch}
	}
	r, err := weightbench.Run(ctx, config)
	if err != nil {
		return err
	}
	printWeightsBench(u, r)
	var p *prediction
	if c.Predict {
		if p, err = c.predict(ctx, u, config, r); err != nil {
			return err
		}
	}
	if err := u.result(weightsBenchReport{weightsResult("bench"), r, bench.ThisMachine(), thisVersion().Revision, os.Args, p}); err != nil {
		return err
	}
	if r.Wrong > 0 {
		return fmt.Errorf("weights bench: %d bytes were wrong", r.Wrong)
	}
	return nil
}

func printWeightsBench(u *ui, r *weightbench.Result) {
	var cells [][]string
	for _, s := range r.Systems {
		if s.Skipped != "" {
			cells = append(cells, []string{s.Name, "skipped: " + s.Skipped, "", "", "", ""})
			continue
		}
		wrong := "-"
		if s.Wrong != nil {
			wrong = fmt.Sprint(*s.Wrong)
		}
		cells = append(cells, []string{
			s.Name, figure(s.Millis.Median), figure(s.Millis.Min) + " .. " + figure(s.Millis.Max), figure(s.Ratio.Median),
			figure(s.Ratio.Min) + " .. " + figure(s.Ratio.Max), wrong,
		})
	}
	u.table(fmt.Sprintf("%s %s, %d to %d ranks over %s, %s delivered, %d rounds, load %.1f", r.Config.Case.Model, r.Config.Case.Codec, r.Config.Case.Src,
		r.Config.Case.Dst, r.Config.Network, bytesText(r.Bytes), r.Config.Rounds, r.Load),
		[]string{"", "ms", "range", "hawser / this", "range", "wrong bytes"}, cells)
	p := r.Phases
	u.table("the push in the middle", []string{"pause ms", "first byte", "last byte", "verify", "commit", "writes", "CPU s", "GB/s"}, [][]string{{
		figure(p.Pause), figure(p.FirstByte), figure(p.LastByte), figure(p.Verify), figure(p.Commit), fmt.Sprint(r.Writes), figure(r.CPU), figure(r.GBPerS),
	}})
}
