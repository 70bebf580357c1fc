package topo

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// Host is what could be seen of one machine. Lists are in natural order of their names, whatever the order of folders.
type Host struct {
	Nodes   []Node   `json:"nodes"` // none on a kernel without NUMA
	GPUs    []GPU    `json:"gpus"`
	NICs    []NIC    `json:"nics"`
	Modules []string `json:"modules"` // loaded, of those that RDMA and memory of GPUs need
	Notes   []string `json:"notes"`   // what could not be read, and what that hides
}

// Read reads a machine: this one when path is "" or "/", else the copy in a folder or archive that Capture has made. An error means that
// there is no such folder or archive. It takes milliseconds for each NIC.
func Read(path string) (*Host, error) {
	src, closer, err := open(path)
	if err != nil {
		return nil, err
	}
	defer closer()
	return newTree(src).host(), nil
}

// open returns a source and what ends its use.
func open(path string) (source, func(), error) {
	if path == "" {
		path = "/"
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("topology: %w", err)
	}
	if !info.IsDir() {
		f, err := os.Open(path)
		if err != nil {
			return nil, nil, fmt.Errorf("topology: %w", err)
		}
		defer func() { _ = f.Close() }()
		m, err := readArchive(f)
		if err != nil {
			return nil, nil, fmt.Errorf("topology: %s: %w: want a folder, or an archive as hawser topo capture makes it", path, err)
		}
		return m, func() {}, nil
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, nil, fmt.Errorf("topology: %w", err)
	}
	f := &folder{root: root}
	return f, f.close, nil
}

func (t *tree) host() *Host {
	h := &Host{Nodes: t.nodes(), GPUs: t.gpus(), NICs: t.nics(), Modules: t.modules()}
	if t.left <= 0 {
		t.notes[""] = errBudget.Error() + ": the rest is not looked at"
	}
	h.Notes = []string{}
	for _, name := range slices.Sorted(maps.Keys(t.notes)) {
		h.Notes = append(h.Notes, "/"+name+": "+t.notes[name])
	}
	h.Notes = append(h.Notes, t.missing(h)...)
	return h
}

// missing says what a machine has that cannot be seen here, as in a container or without a driver.
func (t *tree) missing(h *Host) []string {
	var notes []string
	for _, part := range []struct{ dir, what string }{
		{nodesDir, "NUMA nodes are unknown"},
		{pciDevices, "GPUs are unknown"},
		{classIB, "there is no NIC, no driver for one is loaded, or none is shown to this process"},
	} {
		if !t.has(part.dir) {
			notes = append(notes, fmt.Sprintf("no /%s: %s", part.dir, part.what))
		}
	}
	var blind []string
	for i := range h.NICs {
		n := &h.NICs[i]
		if n.Place.PCI == "" && !n.Soft {
			notes = append(notes, n.Name+": it is unknown where its card is")
		}
		for j := range n.Ports {
			if p := &n.Ports[j]; p.Kind == RoCE && len(p.GIDs) > 0 && p.MTU == 0 {
				blind = append(blind, fmt.Sprintf("%s/%d", n.Name, p.Number))
			}
		}
	}
	if len(blind) > 0 {
		notes = append(notes, strings.Join(blind, ", ")+": MTU unknown, because the interface is not shown to this process, as in a network namespace of its own")
	}
	return notes
}

// known are the modules whose presence says what this machine can do.
var known = []string{
	"ib_core", "ib_uverbs", "rdma_cm", "rdma_ucm", "mlx4_ib", "mlx5_core", "mlx5_ib", "efa", "irdma", "bnxt_re", "ionic_rdma", "erdma", "mana_ib",
	"hns_roce_hw_v2", "qedr", "rdma_rxe", "siw", "nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "amdgpu", "neuron",
}

// modules are the known ones that are loaded. Those that are built into the kernel show up only if they have parameters.
func (t *tree) modules() []string {
	loaded := []string{}
	for _, m := range known {
		if t.has("sys/module/" + m) {
			loaded = append(loaded, m)
		}
	}
	return loaded
}

// NIC is the one with a name, nil if there is none.
func (h *Host) NIC(name string) *NIC {
	i := slices.IndexFunc(h.NICs, func(n NIC) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &h.NICs[i]
}

// Module says whether a kernel module is loaded, by either spelling of its name. Only modules of RDMA and of GPUs are known.
func (h *Host) Module(name string) bool {
	return slices.Contains(h.Modules, strings.ReplaceAll(name, "-", "_"))
}
