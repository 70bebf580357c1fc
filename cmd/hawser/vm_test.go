//go:build vm

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/internal/doctor"
)

// In a virtual machine with soft-RoCE devices (make test-verbs).

// TestVMDoctorSeesAndUsesTheDevices: each device is judged, counted by the kernel, and sends.
func TestVMDoctorSeesAndUsesTheDevices(t *testing.T) {
	pair, _, _ := strings.Cut(os.Getenv("HAWSER_VM_PAIRS"), " ")
	a, b, two := strings.Cut(pair, "=")
	if !two {
		t.Fatal("HAWSER_VM_PAIRS names no devices: is this a machine of internal/vmtest?")
	}
	d, stderr, _ := diagnose(t, "--provider", "verbs", "--device", a+"/1,"+b+"/1", "--timeout", "60s")
	for _, device := range []string{a, b} {
		for check, about := range map[string]string{"device": device, "port": device + "/1", "gid": device + "/1", "resources": device, "loopback": "verbs " + device + "/1"} {
			good := false
			for _, l := range d.Lines {
				good = good || l.Check == check && l.About == about && l.Status == doctor.OK
			}
			if !good {
				t.Errorf("%s: no line of %s that is ok", about, check)
			}
		}
	}
	for _, r := range d.Facts.Resources {
		if r.QPs < 1 { // the kernel's own one of each device
			t.Errorf("of %s the kernel counted no queue pair", r.NIC)
		}
	}
	if t.Failed() {
		t.Log(stderr)
	}
}

// TestVMToolMovesOverVerbs runs the commands that take a network's name.
func TestVMToolMovesOverVerbs(t *testing.T) {
	for _, args := range [][]string{
		append([]string{"bench", "pages", "--provider", "verbs", "--rounds", "1"}, quickBench["pages"]...),
		{"kv", "replay", "--provider", "verbs", "--requests", "2", "--pool", "64MiB", "--scale", "0.1", "--speed", "1000"},
		{"topo"},
	} {
		stdout, stderr, code := tool(t, args...)
		if code != exitOK || !strings.Contains(stdout, "verbs") {
			t.Errorf("%v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
	}
}

// TestVMDefaultRails: what topo calls default rails are those of an engine without options, the cards among them, before TCP.
func TestVMDefaultRails(t *testing.T) {
	stdout, stderr, code := tool(t, "topo", "--json", "-")
	v := decodeJSON(t, stdout)
	var names []string
	for _, r := range v["default_rails"].([]any) {
		names = append(names, r.(map[string]any)["provider"].(string))
	}
	if code != exitOK || len(names) < 4 || names[0] != "shm" || names[1] != "verbs" || names[2] != "verbs" || names[len(names)-1] != "tcp" {
		t.Errorf("exit code %d, default rails %q, left out %v: %s", code, names, v["left_out"], stderr)
	}
}
