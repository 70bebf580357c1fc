package main

import (
	"errors"
	"io"
	"os"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
)

type weightsLayoutCmd struct {
	quietFlag

	Model   string   `required:"" placeholder:"NAME" help:"A published model, for example Kimi-K2 or Qwen3-0.6B."`
	Side    string   `required:"" enum:"train,infer" placeholder:"train|infer" help:"Whose layout: a trainer's, or an inference engine's."`
	Mesh    string   `required:"" placeholder:"MESH" help:"Dimensions of the mesh, slowest first: pp=2,ep=8,fsdp=16."`
	Out     string   `required:"" short:"o" placeholder:"FILE|-" help:"Where to write the layout; '-' is standard output."`
	Place   []string `sep:"none" placeholder:"GROUP=CUTS" help:"How tensors are cut, instead of what the names of the dimensions say: experts=shard0:ep.fsdp, norm*=replicate. The first that fits a tensor counts."`
	Preset  string   `enum:"hf,vllm,sglang" default:"hf" help:"How an engine lays parameters out: hf as in the checkpoint, vllm and sglang fused and padded (default: ${default})."`
	Codec   string   `enum:"raw,fp8block" default:"raw" help:"How an engine has what can be quantized (default: ${default})."`
	Experts string   `enum:"stacked,split" default:"stacked" help:"One tensor for all experts of a layer, or one for each as in checkpoints (default: ${default})."`
}

// laidOut is the result in JSON.
type laidOut struct {
	weightsHead

	File  string `json:"file"`
	Ranks int    `json:"ranks"`
	Count int    `json:"tensors"`
	Grids int    `json:"grids"`
	Bytes int64  `json:"bytes_per_rank"` // of the rank that has most
}

// Help is shown below the first line of the help.
func (weightsLayoutCmd) Help() string {
	return "Dimensions that say how tensors are cut: pp layers, tp and ep as engines do, fsdp and dp_shard dimension 0; dp, dp_replicate and rep are copies,\n" +
		"inst are engines, each the unit of a commit. Other names are used by --place only. GROUP is experts, embed, attn, * or a pattern of names;\n" +
		"CUTS is replicate, or shardN:DIM.DIM,... where N counts a tensor's dimensions with all experts stacked."
}

// Run writes the layout.
func (c *weightsLayoutCmd) Run(u *ui) error {
	if c.Out == "-" {
		u.out = os.Stderr
	}
	c.hush(u)
	spec, err := c.spec()
	if err != nil {
		return err
	}
	l, err := models.Generate(c.Model, c.Side, spec)
	if err != nil {
		return &usageError{err}
	}
	if err := writeFile(c.Out, func(w io.Writer) error { return reshard.WriteLayout(w, l, nil) }); err != nil {
		return err
	}
	r := laidOut{weightsHead: weightsResult("layout gen"), File: c.Out, Ranks: len(l.Buffers), Count: len(l.Tensors), Grids: len(l.Grids)}
	for _, buffers := range l.Buffers {
		sum := int64(0)
		for _, n := range buffers {
			sum += n
		}
		r.Bytes = max(r.Bytes, sum)
	}
	u.printf("%s: %d tensors on %d ranks, at most %s each\n", c.Out, r.Count, r.Ranks, bytesText(r.Bytes))
	return u.result(r)
}

func (c *weightsLayoutCmd) spec() (s models.MeshSpec, err error) {
	s = models.MeshSpec{Preset: c.Preset, Split: c.Experts == "split"}
	if c.Codec != "raw" {
		s.Codec.Kind = c.Codec
	}
	if s.Dims, err = models.ParseMesh(c.Mesh); err != nil {
		return s, usage("--mesh: %w", err)
	}
	for _, text := range c.Place {
		p, err := models.ParsePlace(text)
		if err != nil {
			return s, usage("--place: %w", err)
		}
		s.Place = append(s.Place, p)
	}
	return s, nil
}

// writeFile writes a file, or standard output for "-". A file that is not complete is removed.
func writeFile(name string, write func(io.Writer) error) error {
	if name == "-" {
		return write(os.Stdout)
	}
	f, err := os.Create(name)
	if err != nil {
		return usage("-o: %w", err)
	}
	if err := errors.Join(write(f), f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}
