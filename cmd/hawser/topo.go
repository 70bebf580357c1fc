package main

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
)

type topoCmd struct {
	Show    topoShowCmd    `cmd:"" default:"withargs" help:"Networks, NICs, GPUs, how far they are apart, and which NICs serve which GPU."`
	Capture topoCaptureCmd `cmd:"" help:"Copy what is read of this machine, to look at it elsewhere with --sysfs."`
}

type topoShowCmd struct {
	Sysfs string `placeholder:"DIR|FILE" help:"Read another machine: a folder or an archive that topo capture has made."`
	GIDs  bool   `name:"gids" help:"List the GIDs of each port."`
}

type topoResult struct {
	Machine      bench.Machine  `json:"machine"`
	NUMANodes    int            `json:"numa_nodes"`
	Providers    []providerInfo `json:"providers"`
	DefaultRails []railInfo     `json:"default_rails"` // what hawser.Open opens without options
	LeftOut      []leftOut      `json:"left_out"`      // what it leaves out of the networks that are there
	OpenError    string         `json:"open_error,omitempty"`
	hardware
}

type providerInfo struct {
	Name      string       `json:"name"`
	Available bool         `json:"available"`
	Reason    string       `json:"reason,omitempty"` // why not
	Devices   []deviceInfo `json:"devices"`
}

type deviceInfo struct {
	Name     string `json:"name"`
	Fabric   string `json:"fabric"` // devices connect only within one
	LinkBits uint64 `json:"link_bits_per_s"`
	NUMA     int    `json:"numa"` // -1 when unknown
	Loopback bool   `json:"loopback"`
}

type railInfo struct {
	Provider string `json:"provider"`
	Device   string `json:"device"`
}

type leftOut struct {
	Network string `json:"network"` // of a provider that is there, or provider/device
	Reason  string `json:"reason"`
}

// Run prints the topology.
func (c *topoShowCmd) Run(ctx context.Context, u *ui) error {
	hw, err := readHardware(c.Sysfs)
	if err != nil {
		return usage("--sysfs: %w", err)
	}
	if c.Sysfs != "" { // what this machine's libraries and kernel can do says nothing of another one
		hw.print(u, c.GIDs)
		return u.result(hw)
	}
	t := topology(ctx)
	t.hardware = hw
	m := t.Machine
	u.printf("%s, %d cores, %d GiB, %d NUMA node(s), linux %s\n", m.CPU, m.Cores, m.MemoryGiB, t.NUMANodes, m.Kernel)
	var rows [][]string
	for _, p := range t.Providers {
		for _, d := range p.Devices {
			note := ""
			if slices.Contains(t.DefaultRails, railInfo{p.Name, d.Name}) {
				note = "default rail"
			}
			rows = append(rows, []string{p.Name, d.Name, linkSpeed(d.LinkBits), numaNode(d.NUMA), reach(d.Loopback), note})
		}
	}
	u.table("", []string{"provider", "device", "link", "NUMA", "reaches", ""}, rows)
	for _, p := range t.Providers {
		if !p.Available {
			u.printf("%s cannot be used: %s\n", p.Name, p.Reason)
		}
	}
	if t.OpenError != "" {
		u.printf("there is no default rail: %s\n", t.OpenError)
	}
	for _, l := range t.LeftOut {
		u.printf("%s is no default rail: %s\n", l.Network, l.Reason)
	}
	t.print(u, c.GIDs)
	return u.result(t)
}

// topology lists all networks that can be had by name, without their parts, and what an engine opens of them.
func topology(ctx context.Context) *topoResult {
	t := &topoResult{Machine: bench.ThisMachine(), NUMANodes: numaNodes(), DefaultRails: []railInfo{}, LeftOut: []leftOut{}}
	for _, n := range bench.Networks() {
		p := n.New("")
		info := providerInfo{Name: p.Name(), Devices: []deviceInfo{}}
		devices, err := p.Devices(ctx)
		switch {
		case err != nil:
			info.Reason = err.Error()
		case len(devices) == 0:
			info.Reason = "no device"
		default:
			info.Available = true
		}
		for _, d := range devices {
			info.Devices = append(info.Devices, deviceInfo{d.Name, d.Fabric, d.LinkBits, d.NUMA, d.Loopback})
		}
		t.Providers = append(t.Providers, info)
	}
	t.open(ctx)
	return t
}

// open opens an engine without options: only that shows what one opens.
func (t *topoResult) open(ctx context.Context) {
	e, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		t.OpenError = err.Error()
		return
	}
	defer closeEngine(ctx, e)
	st := e.Stats()
	for _, r := range st.Rails {
		t.DefaultRails = append(t.DefaultRails, railInfo{r.Provider, r.Device})
	}
	for _, name := range slices.Sorted(maps.Keys(st.LeftOut)) {
		absent := func(p providerInfo) bool { return p.Name == name && !p.Available }
		if !slices.ContainsFunc(t.Providers, absent) { // else it is there with its reason
			t.LeftOut = append(t.LeftOut, leftOut{name, st.LeftOut[name]})
		}
	}
}

func numaNodes() int {
	nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	if err != nil || len(nodes) == 0 {
		return 1 // a kernel without NUMA has no such folder
	}
	return len(nodes)
}

func linkSpeed(bits uint64) string {
	switch {
	case bits == 0:
		return "unknown"
	case bits%1e9 == 0:
		return fmt.Sprintf("%d Gbit/s", bits/1e9)
	}
	return fmt.Sprintf("%.4g Gbit/s", float64(bits)/1e9)
}

func numaNode(n int) string {
	if n < 0 {
		return "any"
	}
	return fmt.Sprint(n)
}

func reach(loopback bool) string {
	if loopback {
		return "this host"
	}
	return "other hosts"
}
