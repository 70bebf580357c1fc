package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/models"
	"github.com/hawser-project/hawser/weights"
)

// The act of hawser demo that pushes weights: trainers that hold shards of rows, an inference engine with tensor parallelism.
const (
	actTrainers  = 4
	actReceivers = 2
	actVersions  = 2
)

// weightsAct is one push after the other between processes. Owned by the goroutine that runs the demo.
type weightsAct struct {
	provider network
	dir      string
	model    *models.Model
	src, dst *reshard.Layout
	addr     string
	children []*proc.Child // the controller first
}

// weightsActResult is the result in JSON.
type weightsActResult struct {
	Provider   string    `json:"provider"`
	Pushes     []*pushed `json:"pushes"`
	WrongBytes int64     `json:"wrong_bytes"` // of what the receivers hold, compared with the checkpoint byte by byte
	Bytes      int64     `json:"compared_bytes"`
}

// runWeightsAct makes checkpoints, pushes them and compares what arrived.
func runWeightsAct(ctx context.Context, u *ui, over network) (r *weightsActResult, err error) {
	a := &weightsAct{provider: over}
	if a.dir, err = os.MkdirTemp("", "hawser-weights-"); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(a.dir)) }()
	defer func() { err = errors.Join(err, a.stop()) }()
	if err := a.prepare(); err != nil {
		return nil, err
	}
	u.status.show("demo: starting %d trainers and %d inference ranks", actTrainers, actReceivers)
	if err := a.start(ctx); err != nil {
		return nil, err
	}
	r = &weightsActResult{Provider: string(over)}
	flags := &weightsNodeFlags{Provider: over, hostFlags: hostFlags{Rails: 1, Listen: "127.0.0.1:0"}}
	err = weightsClient(ctx, flags, &controllerFlag{a.addr}, func(client *weights.Client) error {
		for v := weights.Version(1); v <= actVersions; v++ {
			u.status.show("demo: pushing version %d", v)
			report, err := client.Update(ctx, v, false)
			if err != nil {
				return err
			}
			r.Pushes = append(r.Pushes, newPushed(report, nil))
		}
		return nil
	})
	if err = errors.Join(err, a.stop()); err != nil {
		return nil, err
	}
	r.WrongBytes, r.Bytes, err = a.compare()
	return r, err
}

// prepare writes checkpoints and layouts.
func (a *weightsAct) prepare() (err error) {
	if a.model, err = models.Lookup(models.TinyName); err != nil {
		return err
	}
	for v := uint64(1); v <= actVersions; v++ {
		if _, err := makeCheckpoint(a.checkpoint(v), a.model, v); err != nil {
			return err
		}
	}
	train := models.MeshSpec{Dims: []models.MeshDim{{Name: "fsdp", Size: actTrainers}}}
	infer := models.MeshSpec{Dims: []models.MeshDim{{Name: "tp", Size: actReceivers}}, Preset: "vllm"}
	if a.src, err = models.Generate(models.TinyName, models.Train, train); err != nil {
		return err
	}
	if a.dst, err = models.Generate(models.TinyName, models.Infer, infer); err != nil {
		return err
	}
	for name, l := range map[string]*reshard.Layout{"src.json": a.src, "dst.json": a.dst} {
		if err := writeFile(a.file(name), func(w io.Writer) error { return reshard.WriteLayout(w, l, nil) }); err != nil {
			return err
		}
	}
	return nil
}

func (a *weightsAct) file(name string) string { return filepath.Join(a.dir, name) }

func (a *weightsAct) checkpoint(v uint64) string { return a.file(fmt.Sprint("v", v)) }

func (a *weightsAct) dump(rank int) string { return a.file(fmt.Sprint("dump-", rank)) }

// start starts the controller, then everybody who joins it.
func (a *weightsAct) start(ctx context.Context) error {
	c, err := a.child("controller", "--role=controller", "--state="+a.file("state"), fmt.Sprint("--expect=", actTrainers+actReceivers))
	if err != nil {
		return err
	}
	if a.addr, err = listening(ctx, c); err != nil {
		return err
	}
	var members []*proc.Child
	for r := range actTrainers {
		c, err := a.child(fmt.Sprint("trainer-", r), "--role=publisher", "--controller="+a.addr, "--layout="+a.file("src.json"),
			fmt.Sprint("--rank=", r), "--from="+a.file("v{version}"))
		if err != nil {
			return err
		}
		members = append(members, c)
	}
	for r := range actReceivers {
		c, err := a.child(fmt.Sprint("rank-", r), "--controller="+a.addr, "--layout="+a.file("dst.json"), fmt.Sprint("--rank=", r), "--dump="+a.dump(r))
		if err != nil {
			return err
		}
		members = append(members, c)
	}
	for _, c := range members {
		if _, err := listening(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

func (a *weightsAct) child(name string, args ...string) (*proc.Child, error) {
	line := append([]string{"weights", "serve", "--child", "--name=" + name, "--verify=all"}, args...)
	if a.provider != "" {
		line = append(line, "--provider="+string(a.provider))
	}
	c, err := proc.Start(proc.Spec{Name: name, Args: line})
	if err == nil {
		a.children = append(a.children, c)
	}
	return c, err
}

// listening waits for a child's address.
func listening(ctx context.Context, c *proc.Child) (addr string, err error) {
	m, err := c.Next(ctx)
	if err != nil {
		return "", err
	}
	if m.Kind != msgListening {
		return "", fmt.Errorf("demo: a child says %q before its address", m.Kind)
	}
	return addr, m.Decode(&addr)
}

// stop ends the children, the controller last.
func (a *weightsAct) stop() (err error) {
	for i := len(a.children) - 1; i >= 0; i-- {
		a.children[i].End()
	}
	for i := len(a.children) - 1; i >= 0; i-- {
		err = errors.Join(err, a.children[i].Stop(stopGrace))
	}
	a.children = nil
	return err
}

// compare loads the last version as each inference rank should have it, without a plan, and counts bytes that differ.
func (a *weightsAct) compare() (wrong, all int64, err error) {
	for rank, buffers := range a.dst.Buffers {
		got, err := os.ReadFile(a.dump(rank))
		if err != nil {
			return 0, 0, err
		}
		want := make([]byte, buffers[0])
		if err := loadRank(a.checkpoint(actVersions), actVersions, a.dst, rank, [][]byte{want}); err != nil {
			return 0, 0, err
		}
		if len(got) != len(want) {
			return 0, 0, fmt.Errorf("demo: rank %d holds %d bytes, want %d", rank, len(got), len(want))
		}
		all += int64(len(want))
		if !bytes.Equal(got, want) {
			for i := range want {
				if got[i] != want[i] {
					wrong++
				}
			}
		}
	}
	return wrong, all, nil
}

func (r *weightsActResult) print(u *ui) {
	var rows [][]string
	for _, p := range r.Pushes {
		rows = append(rows, []string{
			fmt.Sprint(p.Version), bytesText(p.Bytes), fmt.Sprint(p.Writes), fmt.Sprintf("%.0f", p.WallMS), fmt.Sprintf("%.2f", p.GBPerS), fmt.Sprintf("%.0f", p.Phases.Pause),
		})
	}
	u.table("weights over "+r.Provider, []string{"version", "moved", "writes", "ms", "GB/s", "engine stopped, ms"}, rows)
}

// verdict says what is wrong with the act.
func (r *weightsActResult) verdict() error {
	if r.WrongBytes > 0 {
		return fmt.Errorf("weights over %s: %d of %d bytes are wrong", r.Provider, r.WrongBytes, r.Bytes)
	}
	return nil
}

// act runs the act for the demo, and says how long it took.
func (c *demoCmd) act(ctx context.Context, u *ui) (*weightsActResult, error) {
	began := time.Now()
	over := network("")
	if len(c.Provider) > 0 {
		over = c.Provider[0]
	}
	u.printf("Seven processes: %d trainers push the shards of a small model, one version after the other, into the memory of %d inference ranks,\n"+
		"which have it in another sharding; then every byte is compared with the checkpoint.\n", actTrainers, actReceivers)
	r, err := runWeightsAct(ctx, u, over)
	if err != nil {
		return nil, fmt.Errorf("demo: weights: %w", err)
	}
	r.print(u)
	u.printf("weights: %s compared, %d wrong, in %.1f s\n", bytesText(r.Bytes), r.WrongBytes, time.Since(began).Seconds())
	return r, r.verdict()
}
