package versus

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Layers is the scenario of a [Mover], which no [Case] has.
const Layers Scenario = "layers"

// Work is the KV cache of a prompt as a peer is to move it, in place of package kv: the same byte ranges, layer by layer.
type Work struct {
	Path     string // shm or tcp
	Src, Dst uint64 // bytes of the two pools
	Ranges   []Range
}

// Range is one write of a Work. Offsets and length are multiples of 8.
type Range struct{ Layer, Src, Dst, Len uint64 }

// Mover is the driver of a peer that moves a Work again and again; between two calls its processes are stopped. Owned by one goroutine.
type Mover struct {
	Name, Version, Settings string
	process                 *process
	order                   string
}

// Moved is one time that a Work was moved. The receiving application knows that all is there at the end of both times.
type Moved struct {
	Whole   time.Duration // from the beginning of the first layer
	Exposed time.Duration // from the end of the last layer's computation
	CPU     float64       // seconds, of all processes of the driver
}

// movers are the peers whose drivers know the scenario.
var movers = []string{"nixl", "mooncake"}

// Movers are the names of the peers that can be a [Mover].
func Movers() []string { return append([]string(nil), movers...) }

// NewMover installs and starts a peer. Errors are those of the peer: it cannot be installed, or does not run here.
func NewMover(ctx context.Context, env *Env, name string, w Work) (m *Mover, err error) {
	peers, unknown := Choose([]string{name})
	if unknown != "" {
		return nil, fmt.Errorf("versus: there is no peer %q", unknown)
	}
	m = &Mover{Name: name}
	defer func() {
		if err != nil {
			m.Close()
			m, err = nil, fmt.Errorf("versus: %s: %w", name, err)
		}
	}()
	if m.order, err = w.write(env.tmp()); err != nil {
		return m, err
	}
	cmd, err := env.command(ctx, peers[0], Case{Path: w.Path, Scenario: Layers}, DefaultCongestion)
	if err != nil {
		return m, err
	}
	if m.process, err = start(name, cmd); err != nil {
		return m, err
	}
	a, err := m.process.ask(ctx, request{Op: opOpen, Opening: &Opening{
		Scenario: Layers, Transport: w.Path, Size: 8, Pool: w.Src, Target: w.Dst, Order: m.order, Seed: 1, Congestion: DefaultCongestion,
	}}, openLimit)
	if err != nil {
		return m, err
	}
	m.Version, m.Settings = a.Version, a.Settings
	m.process.pause()
	return m, nil
}

// write writes the ranges to a file.
func (w *Work) write(dir string) (path string, err error) {
	data := make([]byte, 0, 32*len(w.Ranges))
	for _, r := range w.Ranges {
		for _, x := range [...]uint64{r.Layer, r.Src, r.Dst, r.Len} {
			data = binary.LittleEndian.AppendUint64(data, x)
		}
	}
	f, err := os.CreateTemp(dir, "layers-")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	return filepath.Clean(f.Name()), errors.Join(err, f.Close())
}

// Move moves everything once: a layer is computed after each of so long. whole: nothing is posted before all are.
func (m *Mover) Move(ctx context.Context, every time.Duration, whole bool) (Moved, error) {
	a, err := m.ask(ctx, request{Op: opRun, LayerNS: every.Nanoseconds(), Whole: whole})
	if err == nil && (a.Seconds <= 0 || a.Exposed <= 0) {
		err = fmt.Errorf("versus: %s: run: %v s, %v s after the last layer, are no measurement", m.Name, a.Seconds, a.Exposed)
	}
	seconds := func(x float64) time.Duration { return time.Duration(x * float64(time.Second)) }
	return Moved{Whole: seconds(a.Seconds), Exposed: seconds(a.Exposed), CPU: a.CPU}, err
}

// Verify compares every byte that the last Move was to write, and overwrites the destination.
func (m *Mover) Verify(ctx context.Context) error {
	var moved uint64
	a, err := m.ask(ctx, request{Op: opVerify, Moved: &moved})
	if err == nil && a.Corrupt > 0 {
		err = fmt.Errorf("versus: %s: %w: %d bytes of the receiver's memory are wrong", m.Name, errCorrupt, a.Corrupt)
	}
	return err
}

func (m *Mover) ask(ctx context.Context, q request) (reply, error) {
	m.process.resume()
	defer m.process.pause()
	a, err := m.process.ask(ctx, q, runLimit)
	if err != nil {
		err = fmt.Errorf("versus: %s: %w", m.Name, err)
	}
	return a, err
}

// Close ends the driver. The Mover cannot be used afterwards.
func (m *Mover) Close() {
	if m.process != nil {
		m.process.end(false)
		m.process = nil
	}
	if m.order != "" {
		_ = os.Remove(m.order)
		m.order = ""
	}
}
