package topo

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// GPU is an accelerator whose memory NICs may read and write.
type GPU struct {
	Name   string `json:"name"`             // "gpu0", by the order of PCI addresses among those that are seen
	Vendor string `json:"vendor"`           // "NVIDIA", "AMD", "AWS Neuron"
	Model  string `json:"model,omitempty"`  // as its driver says it
	ID     string `json:"id"`               // vendor and device of PCI: "10de:2330"
	Driver string `json:"driver,omitempty"` // "" when none has taken it
	Device string `json:"device,omitempty"` // "/dev/nvidia0"; "" where sysfs does not say it, as for Neuron
	Hidden string `json:"hidden,omitempty"` // why this process cannot use it
	Place  Place  `json:"place"`
}

const pciDevices = "sys/bus/pci/devices"

// Classes of PCI devices (PCI Code and ID Assignment), without the programming interface.
const (
	classVGA         = 0x0300
	class3D          = 0x0302
	classDisplay     = 0x0380
	classAccelerator = 0x1200
)

func (t *tree) gpus() []GPU {
	gpus := []GPU{}
	all := t.list(pciDevices)
	slices.Sort(all) // the numbers are hexadecimal
	for _, addr := range all {
		if !isPCI(addr) {
			continue
		}
		dir := path.Join(pciDevices, addr)
		vendor, device := t.number(path.Join(dir, "vendor"), 0), t.number(path.Join(dir, "device"), 0)
		class := t.number(path.Join(dir, "class"), 0) >> 8
		name := accelerator(vendor, device, class)
		if name == "" {
			continue
		}
		g := GPU{
			Name: fmt.Sprintf("gpu%d", len(gpus)), Vendor: name, ID: fmt.Sprintf("%04x:%04x", vendor, device),
			Driver: t.base(path.Join(dir, "driver")), Place: t.place(dir),
		}
		switch vendor {
		case vendorNVIDIA:
			t.nvidia(&g, addr)
		case vendorAMD:
			t.amd(&g, dir)
		}
		if g.Driver == "" {
			g.Hidden = "no driver"
		}
		gpus = append(gpus, g)
	}
	return gpus
}

// accelerator is the vendor of a device that is an accelerator with memory, else "".
func accelerator(vendor, device, class int64) string {
	switch vendor {
	case vendorNVIDIA:
		if class == class3D || class == classVGA { // bridges of NVLink are of another class
			return "NVIDIA"
		}
	case vendorAMD:
		if slices.Contains([]int64{classVGA, class3D, classDisplay, classAccelerator}, class) {
			return "AMD"
		}
	case vendorAmazon:
		// The table of the aws-neuron-driver: Inferentia 1 (four numbers), Trainium 1, Inferentia 2, Trainium 2, Trainium 3 (two).
		if slices.Contains([]int64{0x7064, 0x7065, 0x7066, 0x7067, 0x7164, 0x7264, 0x7364, 0x7564, 0x7565}, device) {
			return "AWS Neuron"
		}
	}
	return ""
}

const nvidiaGPUs = "proc/driver/nvidia/gpus"

// nvidia reads what the driver says of a GPU. In a container it lists those that the container was given.
func (t *tree) nvidia(g *GPU, addr string) {
	info := path.Join(nvidiaGPUs, addr, "information")
	minor := ""
	for line := range strings.Lines(t.attr(info)) {
		key, value, _ := strings.Cut(line, ":")
		switch value = printable(strings.TrimSpace(value)); strings.TrimSpace(key) {
		case "Model":
			g.Model = value
		case "Device Minor":
			minor = value
		}
	}
	switch _, err := strconv.ParseUint(minor, 10, 16); {
	case err == nil:
		g.Device = "/dev/nvidia" + minor
		t.give(g)
	case t.has(nvidiaGPUs):
		g.Hidden = "the driver does not list it here"
	}
}

func (t *tree) amd(g *GPU, dir string) {
	g.Model = t.line(path.Join(dir, "product_name"))
	for _, drm := range t.list(path.Join(dir, "drm")) {
		if strings.HasPrefix(drm, "renderD") {
			g.Device = "/dev/dri/" + drm
			t.give(g)
			return
		}
	}
}

// give looks whether this process was given the file of a GPU.
func (t *tree) give(g *GPU) {
	if !t.has(strings.TrimPrefix(g.Device, "/")) {
		g.Hidden = "no " + g.Device
	}
}
