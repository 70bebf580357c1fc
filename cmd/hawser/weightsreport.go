package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/weights"
)

// pushed is the result in JSON.
type pushed struct {
	weightsHead

	Version    uint64     `json:"version"`
	Epoch      uint64     `json:"epoch"`
	Plan       *string    `json:"plan"` // its id; null: there was none, or another process has it
	Mode       *string    `json:"mode"` // in place, shadow, or both
	Provider   *string    `json:"provider"`
	Bytes      int64      `json:"bytes"`
	Writes     uint64     `json:"writes"`
	WallMS     float64    `json:"wall_ms"` // BEGIN to the last DONE
	GBPerS     float64    `json:"gb_per_s"`
	Phases     phasesJSON `json:"phases"`
	WrongBytes *int64     `json:"wrong_bytes"` // null: not compared
	Rails      []railJSON `json:"rails"`       // null when not measured, as all below
	Skew       *float64   `json:"skew"`        // the publisher that sent most, in relation to the average
	Retries    *uint64    `json:"retries"`
	Stale      *uint64    `json:"stale_immediates"`
	Grants     *uint64    `json:"grants"`           // descriptors that publishers have imported
	Floor      *float64   `json:"percent_of_floor"` // of the time that the busiest rank's links need for its bytes
	CPU        *float64   `json:"cpu_seconds"`      // of all processes with a member
	Repairs    int        `json:"repairs"`
	Staging    int64      `json:"peak_staging_bytes"`
	Serving    []int      `json:"serving"` // instances
	Out        []outJSON  `json:"out"`     // instances that were part of it and do not serve it
	Error      string     `json:"error,omitempty"`
}

// railJSON is what publishers have sent over a rail.
type railJSON struct {
	Provider string  `json:"provider"`
	Device   string  `json:"device"`
	Writes   uint64  `json:"writes"`
	Bytes    uint64  `json:"bytes"`
	GBPerS   float64 `json:"gb_per_s"`
}

type phasesJSON struct {
	Pause     float64 `json:"pause_ms"`
	FirstByte float64 `json:"first_byte_ms"`
	LastByte  float64 `json:"last_byte_ms"`
	Verify    float64 `json:"verify_ms"`
	Commit    float64 `json:"commit_ms"`
	PostLoad  float64 `json:"post_load_ms"`
	Resume    float64 `json:"resume_ms"`
}

type outJSON struct {
	Instance int    `json:"instance"`
	Why      string `json:"why"`
}

func newPushed(r *weights.Report, err error) *pushed {
	out := &pushed{
		weightsHead: weightsResult("push"), Version: uint64(r.Version), Epoch: r.Epoch, Bytes: r.Bytes, Writes: r.Writes, WallMS: millis(r.Wall),
		Repairs: r.Repairs, Staging: r.Staging, Serving: r.Serving, Out: []outJSON{},
		Phases: phasesJSON{
			Pause: millis(r.Phases.Pause), FirstByte: millis(r.Phases.FirstByte), LastByte: millis(r.Phases.LastByte), Verify: millis(r.Phases.Verify),
			Commit: millis(r.Phases.Commit), PostLoad: millis(r.Phases.PostLoad), Resume: millis(r.Phases.Resume),
		},
	}
	if r.Plan != "" {
		out.Plan = &r.Plan
	}
	if r.Wall > 0 {
		out.GBPerS = float64(r.Bytes) / r.Wall.Seconds() / 1e9
	}
	for _, o := range r.Out {
		out.Out = append(out.Out, outJSON{o.Instance, o.Why})
	}
	if err != nil {
		out.Error = err.Error()
	}
	return out
}

func (r *pushed) print(u *ui, err error) {
	row := func(name, format string, args ...any) []string { return []string{name, fmt.Sprintf(format, args...)} }
	state := fmt.Sprintf("committed, instances %v serve it", r.Serving)
	if err != nil {
		state = "not committed"
	}
	rows := [][]string{
		row("version, epoch", "%d, %d: %s", r.Version, r.Epoch, state),
		row("moved", "%s in %d writes, %.0f ms, %.2f GB/s", bytesText(r.Bytes), r.Writes, r.WallMS, r.GBPerS),
		row("engines stopped", "%.1f ms at most", r.Phases.Pause),
		row("first, last byte", "%.1f ms, %.1f ms", r.Phases.FirstByte, r.Phases.LastByte),
		row("verify, post-load", "%.1f ms, %.1f ms", r.Phases.Verify, r.Phases.PostLoad),
		row("commit, resume", "%.1f ms, %.1f ms", r.Phases.Commit, r.Phases.Resume),
		row("repairs, staging", "%d, at most %s in flight", r.Repairs, bytesText(r.Staging)),
	}
	if r.CPU != nil {
		rows = append(rows, row("processor time", "%.3f s of all ranks", *r.CPU))
	}
	for _, x := range r.Rails {
		rows = append(rows, row("rail", "%s %s: %s in %d writes, %.2f GB/s", x.Provider, x.Device, bytesText(int64(x.Bytes)), x.Writes, x.GBPerS))
	}
	if r.Retries != nil {
		rows = append(rows, row("retries, stale, grants", "%d, %d, %d", *r.Retries, *r.Stale, *r.Grants))
	}
	if r.WrongBytes != nil {
		rows = append(rows, row("wrong bytes", "%d", *r.WrongBytes))
	}
	for _, o := range r.Out {
		rows = append(rows, row("instance out", "%d: %s", o.Instance, o.Why))
	}
	u.table("push", []string{"", ""}, rows)
}

// usage is what members have done before the push; nil where another process orders it.
func (p *pushing) usage(ctx context.Context) (map[string]weights.Usage, error) {
	if !p.orders {
		return nil, nil
	}
	if err := p.joined(ctx); err != nil {
		return nil, err
	}
	list, err := p.client.Usage(ctx)
	all := map[string]weights.Usage{}
	for _, x := range list {
		all[x.Engine] = x
	}
	return all, err
}

// joined waits until the ranks of this process have: before there is nothing to compare with.
func (p *pushing) joined(ctx context.Context) error {
	end := time.Now().Add(addrPatience)
	for tick := time.NewTicker(20 * time.Millisecond); ; {
		defer tick.Stop()
		s, err := p.client.Status(ctx)
		if err != nil {
			return err
		}
		missing := 0
		for _, x := range p.ranks {
			if id := x.node.eng.ID().String(); !slices.ContainsFunc(s.Members, func(m weights.MemberStatus) bool { return m.ID == id }) {
				missing++
			}
		}
		if missing == 0 || time.Now().After(end) { // the update says whom it waits for
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// cost fills in what members have done in the push. What one of them cannot say is left out as a whole: it would be too little.
func (p *pushing) cost(ctx context.Context, r *pushed, before map[string]weights.Usage) error {
	if before == nil {
		return nil
	}
	s, err := p.client.Status(ctx)
	if err != nil {
		return err
	}
	r.mode(s)
	after, err := p.client.Usage(ctx)
	if err != nil {
		return err
	}
	var c costs
	for i := range after {
		old, ok := before[after[i].Engine]
		if !ok {
			return nil // it came in the meantime
		}
		c.add(&after[i], &old)
	}
	if len(after) == len(before) && len(after) == len(s.Members) {
		c.fill(r)
	}
	return nil
}

// mode says how receivers took it.
func (r *pushed) mode(s *weights.Cluster) {
	modes := map[string]bool{}
	for _, m := range s.Members {
		if m.Role == "receiver" {
			modes[modeOf(m.Shadow)] = true
		}
	}
	if text := joinKeys(modes); text != "" {
		r.Mode = &text
	}
}

func modeOf(shadow bool) string {
	if shadow {
		return "shadow"
	}
	return "in place"
}

func joinKeys(m map[string]bool) string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return strings.Join(keys, ", ")
}

// costs adds up members.
type costs struct {
	cpu            map[string]time.Duration // by process
	rails          []railJSON
	providers      map[string]bool
	sent           []uint64 // by publisher
	retries, stale uint64
	grants         uint64
	floor          time.Duration
	unknown        bool // a link says no speed
}

func (c *costs) add(now, old *weights.Usage) {
	if c.cpu == nil {
		c.cpu, c.providers = map[string]time.Duration{}, map[string]bool{}
	}
	c.cpu[now.Process] = max(c.cpu[now.Process], now.CPU-old.CPU)
	c.retries, c.stale, c.grants = c.retries+now.Resent-old.Resent, c.stale+now.Stale-old.Stale, c.grants+now.Imports-old.Imports
	tx, rx, bits := uint64(0), uint64(0), uint64(0)
	for i := range min(len(now.Rails), len(old.Rails)) {
		a, b := &now.Rails[i], &old.Rails[i]
		bytes, writes := a.TxBytes-b.TxBytes, a.TxWrites-b.TxWrites
		tx, rx = tx+bytes, rx+a.RxBytes-b.RxBytes
		if a.RxBytes == b.RxBytes && bytes == 0 {
			continue
		}
		c.unknown = c.unknown || a.LinkBits == 0 || a.Provider == "shm" // whose speed is for placement alone: copies have no line rate
		bits += a.LinkBits
		if now.Role != "publisher" {
			continue
		}
		c.providers[a.Provider] = true
		k := slices.IndexFunc(c.rails, func(r railJSON) bool { return r.Provider == a.Provider && r.Device == a.Device })
		if k < 0 {
			k = len(c.rails)
			c.rails = append(c.rails, railJSON{Provider: a.Provider, Device: a.Device})
		}
		c.rails[k].Writes, c.rails[k].Bytes = c.rails[k].Writes+writes, c.rails[k].Bytes+bytes
	}
	if now.Role == "publisher" {
		c.sent = append(c.sent, tx)
	}
	if bits > 0 {
		c.floor = max(c.floor, time.Duration(float64(8*max(tx, rx))/float64(bits)*1e9))
	}
}

func (c *costs) fill(r *pushed) {
	cpu := time.Duration(0)
	for _, d := range c.cpu {
		cpu += d
	}
	seconds := cpu.Seconds()
	r.CPU, r.Retries, r.Stale, r.Grants, r.Rails = &seconds, &c.retries, &c.stale, &c.grants, c.rails
	for i := range r.Rails {
		r.Rails[i].GBPerS = float64(r.Rails[i].Bytes) / r.WallMS / 1e6
	}
	if text := joinKeys(c.providers); text != "" {
		r.Provider = &text
	}
	total := uint64(0)
	for _, n := range c.sent {
		total += n
	}
	if total > 0 {
		skew := float64(slices.Max(c.sent)) * float64(len(c.sent)) / float64(total)
		r.Skew = &skew
	}
	if !c.unknown && c.floor > 0 {
		percent := r.WallMS / millis(c.floor) * 100
		r.Floor = &percent
	}
}

// compare compares what receivers serve with the checkpoint.
func (p *pushing) compare(ctx context.Context, u *ui, r *pushed) error {
	if p.cmd.From == "" || !p.orders || r.Error != "" || p.cmd.Verify == "off" {
		return nil
	}
	l, err := p.client.Layout(ctx)
	if err != nil {
		return err
	}
	list, err := p.client.Contents(ctx)
	if err != nil {
		return err
	}
	n, err := newNaive(p.cmd.From, weights.Version(p.cmd.Version), l)
	if err != nil {
		return err
	}
	wrong := int64(0)
	for i := range list {
		x := &list[i]
		if x.Err != "" || uint64(x.Version) != p.cmd.Version || !slices.Contains(r.Serving, x.Instance) {
			continue
		}
		u.status.show("push: comparing rank %d with the checkpoint", x.Rank)
		bytes, _, err := n.wrong(x)
		if err != nil {
			return errors.Join(err, n.close())
		}
		wrong += bytes
	}
	r.WrongBytes = &wrong
	if err := n.close(); err != nil || wrong == 0 {
		return err
	}
	return fmt.Errorf("push v%d: %d bytes are in cells that differ from the checkpoint: %w", p.cmd.Version, wrong, weights.ErrDigest)
}
