package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/internal/doctor"
)

// diagnose runs doctor and returns what it found.
func diagnose(t *testing.T, args ...string) (d diagnosis, stderr string, code int) {
	t.Helper()
	stdout, stderr, code := tool(t, append([]string{"doctor", "--json", "-"}, args...)...)
	if err := json.Unmarshal([]byte(stdout), &d); err != nil {
		t.Fatalf("exit code %d: %v: %q, %s", code, err, stdout, stderr)
	}
	return d, stderr, code
}

// exitOf is the documented exit code of what was found.
func exitOf(s doctor.Status) int {
	return map[doctor.Status]int{doctor.OK: 0, doctor.Warn: 1, doctor.Fail: 2}[s]
}

func TestDoctorSendsOverEveryNetwork(t *testing.T) {
	d, stderr, code := diagnose(t)
	if code != exitOf(d.Worst) || d.Worst != doctor.Worst(d.Lines) || d.Facts.Kernel == "" || d.Revision == "" {
		t.Errorf("exit code %d, worst %s", code, d.Worst)
	}
	for _, network := range []string{"shm", "tcp"} {
		sent := false
		for _, l := range d.Lines {
			sent = sent || l.Check == "loopback" && strings.HasPrefix(l.About, network+" ") && l.Status == doctor.OK && strings.HasPrefix(l.Found, "1024 KiB written and verified")
		}
		if !sent {
			t.Errorf("nothing was sent over %s:\n%s", network, stderr)
		}
	}
	if !strings.Contains(stderr, doctor.Text(d.Lines[:1])) {
		t.Errorf("no lines for people: %q", stderr)
	}
}

// The search for devices ends in time, too, in a process of its own: here of a network that has none, or does not tell in time.
func TestDoctorEndsAHangingNetwork(t *testing.T) {
	d, stderr, code := diagnose(t, "--provider", "verbs", "--timeout", "1ns")
	last := d.Lines[len(d.Lines)-1]
	if code != exitOf(doctor.Fail) || last.Status != doctor.Fail || !strings.Contains(last.Found, "looking for devices: no end within 1ns") || last.Remedy == "" {
		t.Errorf("exit code %d, %+v", code, last)
	}
	if !strings.Contains(stderr, "hawser: doctor: 1 failed") {
		t.Errorf("stderr %q", stderr)
	}
}

func TestDoctorJudgesACapturedMachine(t *testing.T) {
	d, _, code := diagnose(t, "--sysfs", t.TempDir())
	if code != exitOK || d.Worst != doctor.OK || !d.Facts.Captured {
		t.Errorf("an empty folder: exit code %d, %+v", code, d)
	}
	for _, l := range d.Lines {
		if l.Check == "loopback" || l.Status == doctor.OK {
			t.Errorf("of an empty folder it says %+v", l)
		}
	}
}
