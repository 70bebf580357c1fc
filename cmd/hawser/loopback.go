package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/doctor"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/provider"
)

const (
	loopbackBytes = 1 << 20
	loopbackPings = 200
	loopbackImm   = 1
	// maxLoopbacks is how many devices of one network are tried: more than any host has NICs.
	maxLoopbacks = 32
)

// msgLoopback is what a child says whose bytes have arrived.
const msgLoopback = "loopback"

type loopbackResult struct {
	Bytes   uint64        `json:"bytes"`   // verified
	Latency time.Duration `json:"latency"` // median of 8 bytes and an immediate, from the submit to the end of a wait for the count
}

// networks are those to send over: without --provider none of the parts, which only emulate a network.
func (c *doctorCmd) networks() []network {
	if len(c.Provider) > 0 {
		return c.Provider
	}
	var all []network
	for _, n := range bench.Networks() {
		all = append(all, network(n.Name))
	}
	return all
}

// loopbacks sends over each device of a network, in a process of its own each: a library that hangs or crashes takes nothing with it.
func (c *doctorCmd) loopbacks(ctx context.Context, u *ui, n network) []doctor.Line {
	line := func(s doctor.Status, remedy, format string, args ...any) doctor.Line {
		return doctor.Line{Check: "loopback", About: string(n), Status: s, Remedy: remedy, Found: fmt.Sprintf(format, args...)}
	}
	p, err := bench.Provider(string(n))
	if err != nil {
		return []doctor.Line{line(doctor.Fail, "", "%v", err)}
	}
	devices, err := p.Devices(ctx)
	if err == nil && len(c.Device) > 0 {
		devices = slices.DeleteFunc(devices, func(d provider.Device) bool { return !slices.Contains(c.Device, d.Name) })
	}
	if err == nil && len(devices) == 0 {
		err = errors.New("no device")
	}
	if err != nil {
		return []doctor.Line{line(doctor.Skip, "", "%v", err)}
	}
	var lines []doctor.Line
	for _, d := range devices[:min(len(devices), maxLoopbacks)] {
		u.status.show("doctor: sending over %s, %s", n, d.Name)
		r, err := c.child(ctx, n, d)
		l := line(doctor.OK, "", "%d KiB written and verified; 8 bytes and an immediate take %v", r.Bytes>>10, r.Latency.Round(100*time.Nanosecond))
		if err != nil {
			l = line(doctor.Fail, "", "%v", err)
			l.Remedy = "the lines above, from top to bottom; if they are all ok, report this with the output of hawser doctor --json"
		}
		l.About += " " + d.Name
		lines = append(lines, l)
	}
	return lines
}

// child sends over one device.
func (c *doctorCmd) child(ctx context.Context, n network, d provider.Device) (r loopbackResult, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no end within %v (--timeout)", c.Timeout))
	defer cancel()
	child, err := proc.Start(proc.Spec{Name: "loopback", Args: []string{"doctor", "--child", "--provider", string(n), "--device", d.Name}})
	if err != nil {
		return r, err
	}
	defer func() { _ = child.Stop(closeTimeout) }() // it has said all that it has to say
	m, err := child.Next(ctx)
	if err != nil {
		return r, err
	}
	return r, m.Decode(&r)
}

// loopback is the work of a child: a write and its immediate between two engines, and then small ones.
func (c *doctorCmd) loopback(ctx context.Context, parent *proc.Parent) error {
	p, err := bench.Provider(string(c.Provider[0]))
	if err != nil {
		return err
	}
	o := hawser.Options{Providers: []provider.Provider{p}, Require: p.Name(), Rails: []hawser.Rail{{Provider: p.Name(), Device: c.Device[0]}}}
	var pair [2]*hawser.Engine
	for i := range pair {
		if pair[i], err = hawser.Open(ctx, o); err != nil {
			return err
		}
		defer closeEngine(ctx, pair[i])
	}
	r, err := sendBetween(ctx, pair[0], pair[1])
	if err != nil {
		return err
	}
	return parent.Send(msgLoopback, r)
}

func closeEngine(ctx context.Context, e *hawser.Engine) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = e.Close(ctx)
}

func sendBetween(ctx context.Context, from, to *hawser.Engine) (r loopbackResult, err error) {
	memory, err := to.Alloc(loopbackBytes, hawser.MemOptions{})
	if err != nil {
		return r, err
	}
	remote, err := from.Import(ctx, memory.Descriptor(memory.All(), hawser.RightWrite))
	if err != nil {
		return r, err
	}
	source, err := from.Alloc(loopbackBytes, hawser.MemOptions{})
	if err != nil {
		return r, err
	}
	_, _ = rand.Read(source.Bytes()) // it never fails
	counter, sent := to.Counter(loopbackImm), uint64(0)
	send := func(n uint64) error {
		sent++
		t, err := from.Write(hawser.Write{Src: source.Slice(0, n), Dst: remote.Slice(0, n), Imm: hawser.Imm(loopbackImm)})
		if err != nil {
			return err
		}
		if err := counter.Wait(ctx, sent); err != nil {
			return errors.Join(err, t.Err())
		}
		return nil
	}
	if err := send(loopbackBytes); err != nil {
		return r, err
	}
	if !bytes.Equal(memory.Bytes(), source.Bytes()) {
		return r, errors.New("the bytes that arrived are wrong")
	}
	var took [loopbackPings]time.Duration
	for i := range took {
		began := time.Now()
		if err := send(8); err != nil {
			return r, err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took[:])
	return loopbackResult{Bytes: loopbackBytes, Latency: took[len(took)/2]}, nil
}
