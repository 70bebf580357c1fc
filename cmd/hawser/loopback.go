package main

import (
	"bytes"
	"cmp"
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

// What a child says: the devices of its network, or that its bytes have arrived.
const (
	msgDevices  = "devices"
	msgLoopback = "loopback"
)

type devicesResult struct {
	Names  []string `json:"names"`
	Reason string   `json:"reason"` // why there are none
}

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

// loopbacks sends over each device of a network. Looking for the devices, too, is the work of a process of its own: a library that hangs or
// crashes takes nothing with it.
func (c *doctorCmd) loopbacks(ctx context.Context, u *ui, n network) []doctor.Line {
	line := func(s doctor.Status, remedy, format string, args ...any) doctor.Line {
		return doctor.Line{Check: "loopback", About: string(n), Status: s, Remedy: remedy, Found: fmt.Sprintf(format, args...)}
	}
	const report = "the lines above, from top to bottom; if they are all ok, report this with the output of hawser doctor --json"
	u.status.show("doctor: looking for devices of %s", n)
	var found devicesResult
	if err := c.ask(ctx, &found, "--provider", string(n)); err != nil {
		return []doctor.Line{line(doctor.Fail, report, "looking for devices: %v", err)}
	}
	devices := found.Names
	if len(c.Device) > 0 {
		devices = slices.DeleteFunc(devices, func(d string) bool { return !slices.Contains(c.Device, d) })
	}
	if len(devices) == 0 {
		return []doctor.Line{line(doctor.Skip, "", "%s", cmp.Or(found.Reason, "no device"))}
	}
	var lines []doctor.Line
	for _, d := range devices[:min(len(devices), maxLoopbacks)] {
		u.status.show("doctor: sending over %s, %s", n, d)
		var r loopbackResult
		err := c.ask(ctx, &r, "--provider", string(n), "--device", d)
		l := line(doctor.OK, "", "%d KiB written and verified; 8 bytes and an immediate take %v", r.Bytes>>10, r.Latency.Round(100*time.Nanosecond))
		if err != nil {
			l = line(doctor.Fail, report, "%v", err)
		}
		l.About += " " + d
		lines = append(lines, l)
	}
	return lines
}

// ask has a child answer: without a device about the devices, else after sending over it.
func (c *doctorCmd) ask(ctx context.Context, answer any, args ...string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no end within %v (--timeout)", c.Timeout))
	defer cancel()
	child, err := proc.Start(proc.Spec{Name: "loopback", Args: append([]string{"doctor", "--child"}, args...)})
	if err != nil {
		return err
	}
	defer func() { _ = child.Stop(closeTimeout) }() // it has said all that it has to say
	m, err := child.Next(ctx)
	if err != nil {
		return err
	}
	return m.Decode(answer)
}

// listDevices is the work of a child, too: it lists the devices of a network.
func listDevices(ctx context.Context, p provider.Provider) (r devicesResult) {
	devices, err := p.Devices(ctx)
	if err != nil {
		r.Reason = err.Error()
	}
	for _, d := range devices {
		r.Names = append(r.Names, d.Name)
	}
	return r
}

// loopback is the work of a child: a write and its immediate between two engines, and then small ones.
func (c *doctorCmd) loopback(ctx context.Context, parent *proc.Parent) error {
	p, err := bench.Provider(string(c.Provider[0]))
	if err != nil {
		return err
	}
	if len(c.Device) == 0 {
		return parent.Send(msgDevices, listDevices(ctx, p))
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
