//go:build vm

package roce

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
)

func TestDevicesAreUp(t *testing.T) {
	for _, p := range pairs(t, 2) {
		for _, dev := range p.dev {
			if out := run(t, "ibv_devinfo", "-d", dev); !strings.Contains(out, "PORT_ACTIVE") {
				t.Errorf("%s: %s", dev, out)
			}
		}
	}
}

// The devices of a pair reach each other, by the tool of libibverbs.
func TestPairReachesEachOther(t *testing.T) {
	p := pairs(t, 1)[0]
	args := func(side int) []string { return []string{"-d", p.dev[side], "-g", "1", "-n", "100"} }
	server := exec.Command("ibv_rc_pingpong", args(0)...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait() // it has ended, or is of no use
	})
	var out []byte
	eventually(t, fmt.Sprintf("pingpong of %v", p.dev), func() bool { // it fails until the server listens
		var err error
		out, err = exec.Command("ibv_rc_pingpong", append(args(1), "127.0.0.1")...).CombinedOutput()
		return err == nil
	})
	if !strings.Contains(string(out), "100 iters") {
		t.Errorf("%v: %s", p.dev, out)
	}
}
