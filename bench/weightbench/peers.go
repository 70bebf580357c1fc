package weightbench

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/hawser-project/hawser/bench/peers"
	"github.com/hawser-project/hawser/reshard"
)

// Peers are what a benchmark measures beside the floor. Owned by Run.
type Peers struct {
	Python string // that has torch
	gloo   *gloo
}

// turns are those of the peers; who cannot take part has a reason.
func (p *Peers) turns(ctx context.Context, w *world, c Config) []*turn {
	file := &turn{System: System{Name: "file"}, run: w.file}
	all := []*turn{file}
	ways := map[string]string{"a": "gloo a: tensors", "b": "gloo b: buckets", "c": "gloo c: gather"}
	var err error
	if c.Case.Codec == "fp8block" {
		file.Skipped = "files hold what trainers have: nobody quantizes"
		err = errors.New("broadcasts carry what trainers have: nobody quantizes")
	} else {
		c.Tell("starting gloo")
		p.gloo, err = startGloo(ctx, p.Python, c.Case)
	}
	for _, way := range []string{"a", "b", "c"} {
		t := &turn{System: System{Name: ways[way]}}
		if err != nil {
			t.Skipped = err.Error()
		} else {
			t.run = func(ctx context.Context) (time.Duration, int64, error) { return p.gloo.round(ctx, way) }
		}
		all = append(all, t)
	}
	return all
}

func (p *Peers) stop() error {
	if p == nil || p.gloo == nil {
		return nil
	}
	return p.gloo.stop()
}

// gloo is bench/peers/gloo.py and its ranks.
type gloo struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errs    bytes.Buffer
	dir     string
	version uint64
}

// glooTensor is what gloo.py is told of a tensor: as a matrix, and which box of it each destination needs.
type glooTensor struct {
	Name  string        `json:"name"`
	Rows  int64         `json:"rows"`
	Cols  int64         `json:"cols"`
	Parts [][2][2]int64 `json:"parts"`
}

func startGloo(ctx context.Context, python string, k Case) (g *gloo, err error) {
	tensors, err := glooTensors(k)
	if err != nil {
		return nil, err
	}
	g = &gloo{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.stop())
			g = nil
		}
	}()
	if g.dir, err = os.MkdirTemp("", "hawser-gloo-"); err != nil {
		return g, err
	}
	source, err := peers.Source.ReadFile("gloo.py")
	if err != nil {
		return g, err
	}
	script := filepath.Join(g.dir, "gloo.py")
	if err := os.WriteFile(script, source, 0o600); err != nil {
		return g, err
	}
	g.cmd = exec.Command(python, script)
	g.cmd.Stderr = &g.errs
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if g.in, err = g.cmd.StdinPipe(); err != nil {
		return g, err
	}
	out, err := g.cmd.StdoutPipe()
	if err != nil {
		return g, err
	}
	g.out = bufio.NewReader(out)
	if err := g.cmd.Start(); err != nil {
		g.cmd = nil
		return g, err
	}
	work := map[string]any{"sources": k.Src, "dests": k.Dst, "tensors": tensors, "rendezvous": filepath.Join(g.dir, "meet")}
	return g, g.ask(ctx, work, &struct{}{})
}

// glooTensors lists what is pushed. Matrices that destinations hold in several boxes are more than gloo.py knows.
func glooTensors(k Case) ([]glooTensor, error) {
	_, dst, err := k.Layouts()
	if err != nil {
		return nil, err
	}
	all := make([]glooTensor, len(dst.Tensors))
	for i, t := range dst.Tensors {
		all[i] = glooTensor{Name: t.Name, Rows: t.Shape[0], Cols: 1}
		for _, n := range t.Shape[1:] {
			all[i].Cols *= n
		}
		if len(t.Shape) > 2 || t.DType != reshard.BF16 {
			return nil, fmt.Errorf("%s: a %v tensor of %d dimensions is more than gloo.py knows", t.Name, t.DType, len(t.Shape))
		}
	}
	for rank := range dst.Buffers {
		held, err := dst.Held(rank)
		if err != nil {
			return nil, err
		}
		for _, h := range held {
			box := [2][2]int64{{h.Lo[0], 0}, {h.Lo[0] + h.Extent[0], 1}}
			if len(h.Lo) == 2 {
				box[0][1], box[1][1] = h.Lo[1], h.Lo[1]+h.Extent[1]
			}
			all[h.Tensor].Parts = append(all[h.Tensor].Parts, box)
		}
	}
	for _, t := range all {
		if len(t.Parts) != k.Dst {
			return nil, fmt.Errorf("%s: %d boxes on %d ranks are more than gloo.py knows", t.Name, len(t.Parts), k.Dst)
		}
	}
	return all, nil
}

// ask writes a line and reads one. It ends with the context, and with the process.
func (g *gloo) ask(ctx context.Context, q, a any) error {
	line, err := json.Marshal(q)
	if err != nil {
		return err
	}
	if _, err := g.in.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("gloo: %w", err)
	}
	stop := context.AfterFunc(ctx, g.kill)
	defer stop()
	line, err = g.out.ReadBytes('\n')
	if err != nil {
		return g.why(errors.Join(context.Cause(ctx), err))
	}
	return json.Unmarshal(line, a)
}

// why adds the last line that the process wrote to an error. The process has closed its output.
func (g *gloo) why(err error) error {
	g.kill()
	_ = g.cmd.Wait() // its last line says more
	g.cmd = nil
	if last := strings.TrimSpace(g.errs.String()); last != "" {
		return fmt.Errorf("gloo: %s: %w", last[strings.LastIndexByte(last, '\n')+1:], err)
	}
	return fmt.Errorf("gloo: %w", err)
}

// round is one push of a way.
func (g *gloo) round(ctx context.Context, way string) (time.Duration, int64, error) {
	g.version++
	var a struct {
		Seconds float64
		Wrong   int64
	}
	err := g.ask(ctx, map[string]any{"way": way, "version": g.version}, &a)
	return time.Duration(a.Seconds * float64(time.Second)), a.Wrong, err
}

// kill ends the process and its ranks.
func (g *gloo) kill() { _ = syscall.Kill(-g.cmd.Process.Pid, syscall.SIGKILL) }

func (g *gloo) stop() error {
	if g.cmd != nil {
		_ = g.in.Close()
		t := time.AfterFunc(closeLimit, g.kill)
		_ = g.cmd.Wait() // the last line of its errors says more
		t.Stop()
		g.kill() // ranks that are left
		g.cmd = nil
	}
	return os.RemoveAll(g.dir)
}
