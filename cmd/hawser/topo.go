package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/shm"
	"github.com/hawser-project/hawser/provider/tcp"
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

// builtin are the providers of a default engine, in its order of preference.
func builtin() []provider.Provider { return []provider.Provider{shm.New(), tcp.New()} }

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
		for i, d := range p.Devices {
			note := ""
			if i == 0 && t.byDefault(p.Name) {
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
	t.print(u, c.GIDs)
	return u.result(t)
}

// byDefault says whether an engine without options opens a provider.
func (t *topoResult) byDefault(name string) bool {
	return slices.ContainsFunc(t.DefaultRails, func(r railInfo) bool { return r.Provider == name })
}

// topology lists all networks that can be had by name, without their parts.
func topology(ctx context.Context) topoResult {
	defaults := builtin()
	t := topoResult{Machine: bench.ThisMachine(), NUMANodes: numaNodes()}
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
			if slices.ContainsFunc(defaults, func(d provider.Provider) bool { return d.Name() == p.Name() }) {
				t.DefaultRails = append(t.DefaultRails, railInfo{p.Name(), devices[0].Name})
			}
		}
		for _, d := range devices {
			info.Devices = append(info.Devices, deviceInfo{d.Name, d.Fabric, d.LinkBits, d.NUMA, d.Loopback})
		}
		t.Providers = append(t.Providers, info)
	}
	return t
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
