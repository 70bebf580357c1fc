package weightbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/weights"
	"github.com/hawser-project/hawser/weights/stage"
)

// world is a controller in this process and a child for each rank. Owned by one goroutine, which closes it.
type world struct {
	eng     *hawser.Engine
	c       *weights.Controller
	state   string // folder of the controller's log, in memory
	sources []*proc.Child
	dests   []*proc.Child
	version uint64
	bytes   int64 // delivered by a push
}

// memoryDir is where files are in memory.
const memoryDir = "/dev/shm"

// joinLimit bounds how long all members take to join.
const joinLimit = time.Minute

func newWorld(ctx context.Context, c Config, k Case, verify stage.Verify) (w *world, err error) {
	w = &world{}
	defer func() {
		if err != nil {
			err = errors.Join(err, w.close())
		}
	}()
	_, dst, err := k.Layouts()
	if err != nil {
		return w, err
	}
	if w.bytes, err = delivered(dst); err != nil {
		return w, err
	}
	if w.state, err = memoryFolder(memoryDir); err != nil {
		return w, err
	}
	if w.eng, err = openEngine(ctx, "controller", c.Network); err != nil {
		return w, err
	}
	w.c, err = weights.NewController(w.eng, weights.ControllerOptions{StateDir: w.state, Expect: k.Src + k.Dst})
	if err != nil {
		return w, err
	}
	for i := range k.Src + k.Dst {
		s := setup{Network: c.Network, Controller: w.eng.Addr(), Case: k, Verify: verify, Source: i < k.Src, Rank: i}
		if !s.Source {
			s.Rank -= k.Src
		}
		child, err := proc.Start(c.Child)
		if err != nil {
			return w, err
		}
		if s.Source {
			w.sources = append(w.sources, child)
		} else {
			w.dests = append(w.dests, child)
		}
		if err := child.Send("setup", s); err != nil {
			return w, err
		}
	}
	if _, err := gather(ctx, w.all()); err != nil {
		return w, err
	}
	return w, w.joined(ctx, k.Src+k.Dst)
}

func (w *world) all() []*proc.Child {
	return append(append([]*proc.Child(nil), w.sources...), w.dests...)
}

// joined waits until the controller knows all members.
func (w *world) joined(ctx context.Context, n int) error {
	deadline := time.Now().Add(joinLimit)
	for len(w.c.Status().Members) < n {
		if time.Now().After(deadline) {
			return fmt.Errorf("weightbench: %d of %d members have joined after %v", len(w.c.Status().Members), n, joinLimit)
		}
		select {
		case <-time.After(10 * time.Millisecond): // between two looks
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// tell gives children an order without waiting.
func tell(to []*proc.Child, kind string, o order) error {
	for _, c := range to {
		if err := c.Send(kind, o); err != nil {
			return err
		}
	}
	return nil
}

// gather waits for an answer of each.
func gather(ctx context.Context, from []*proc.Child) (all []answer, err error) {
	for _, c := range from {
		m, err := c.Next(ctx)
		if errors.Is(err, io.EOF) {
			err = fmt.Errorf("a rank's process has ended: %w", c.Err())
		}
		if err != nil {
			return nil, err
		}
		var a answer
		if err := m.Decode(&a); err != nil {
			return nil, err
		}
		all = append(all, a)
	}
	return all, nil
}

// ask does both.
func ask(ctx context.Context, to []*proc.Child, kind string, o order) ([]answer, error) {
	if err := tell(to, kind, o); err != nil {
		return nil, err
	}
	return gather(ctx, to)
}

// next makes a version in the sources, and overwrites the destinations.
func (w *world) next(ctx context.Context) error {
	w.version++
	if err := tell(w.dests, "poison", order{}); err != nil {
		return err
	}
	if _, err := ask(ctx, w.sources, "fill", order{Version: w.version}); err != nil {
		return err
	}
	_, err := gather(ctx, w.dests)
	return err
}

// wrong counts the bytes that are not those of the version.
func (w *world) wrong(ctx context.Context) (n int64, err error) {
	all, err := ask(ctx, w.dests, "check", order{Version: w.version})
	for _, a := range all {
		n += a.Wrong
	}
	return n, err
}

// pushed is one push.
type pushed struct {
	wall   time.Duration
	report *weights.Report
	CPU    float64 // seconds, of all processes
	RSS    uint64  // bytes, of the largest
	wrong  int64
}

// push pushes a new version, and compares every byte.
func (w *world) push(ctx context.Context) (p pushed, err error) {
	if err := w.next(ctx); err != nil {
		return p, err
	}
	before, _, err := w.usage(ctx)
	if err != nil {
		return p, err
	}
	if err := tell(w.sources, "push", order{Version: w.version}); err != nil {
		return p, err
	}
	began := time.Now()
	p.report, err = w.c.Update(ctx, weights.Version(w.version))
	p.wall = time.Since(began)
	if err != nil {
		return p, err
	}
	told, err := gather(ctx, w.sources)
	if err != nil {
		return p, err
	}
	for _, a := range told {
		p.report.Staging = max(p.report.Staging, a.Staging)
	}
	after, rss, err := w.usage(ctx)
	if err != nil {
		return p, err
	}
	p.CPU, p.RSS = after-before, rss
	p.wrong, err = w.wrong(ctx)
	return p, err
}

// usage is the processor time of all ranks so far, and the largest memory.
func (w *world) usage(ctx context.Context) (cpu float64, rss uint64, err error) {
	all, err := ask(ctx, w.all(), "usage", order{})
	for _, a := range all {
		cpu, rss = cpu+a.CPU, max(rss, a.RSS)
	}
	return cpu, rss, err
}

// file moves a new version through files in memory.
func (w *world) file(ctx context.Context) (d time.Duration, wrong int64, err error) {
	if err := w.next(ctx); err != nil {
		return 0, 0, err
	}
	dir, err := memoryFolder(memoryDir)
	if err != nil {
		return 0, 0, err
	}
	defer os.RemoveAll(dir)
	began := time.Now()
	if _, err := ask(ctx, w.sources, "save", order{Dir: dir}); err != nil {
		return 0, 0, err
	}
	if _, err := ask(ctx, w.dests, "load", order{Dir: dir}); err != nil {
		return 0, 0, err
	}
	d = time.Since(began)
	wrong, err = w.wrong(ctx)
	return d, wrong, err
}

// quantize is how long the sources take to stage everything, at the same time, and nothing else.
func (w *world) quantize(ctx context.Context) (time.Duration, error) {
	began := time.Now()
	_, err := ask(ctx, w.sources, "stage", order{})
	return time.Since(began), err
}

func (w *world) close() error {
	var errs []error
	for _, c := range w.all() {
		c.End()
	}
	for _, c := range w.all() {
		errs = append(errs, c.Stop(closeLimit))
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if w.c != nil {
		errs = append(errs, w.c.Close(ctx))
	}
	if w.eng != nil {
		errs = append(errs, w.eng.Close(ctx))
	}
	if w.state != "" {
		errs = append(errs, os.RemoveAll(w.state))
	}
	return errors.Join(errs...)
}
