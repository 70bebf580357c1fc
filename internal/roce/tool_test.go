//go:build vm

package roce

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// toolsEnv names the folder, in the module, with what .ci/verbs has built for these tests: hawser, and a loop in C (bench/peers/c/verbs.c).
const toolsEnv = "HAWSER_VM_TOOLS"

func tool(t testing.TB, name string) string {
	t.Helper()
	file := filepath.Join(os.Getenv(toolsEnv), name)
	if _, err := os.Stat(file); err != nil {
		t.Fatalf("%v: .ci/verbs builds it and sets %s", err, toolsEnv)
	}
	return file
}

// replay is what an emulated machine can do of it.
var replay = []string{"kv", "replay", "--geometry", "mini", "--pool", "64MiB", "--verify", "all"}

// The KvCache transfer between two processes over verbs, all bytes verified.
func TestReplayOverVerbs(t *testing.T) {
	before := resources(t)
	out := run(t, tool(t, "hawser"), slices.Concat(replay, []string{"--provider", "verbs", "--requests", "4", "--cancel", "20%"})...)
	for line := range strings.Lines(out) {
		t.Log(strings.TrimRight(line, "\n"))
	}
	if !strings.Contains(out, "verbs") {
		t.Errorf("the replay does not say that it went over verbs")
	}
	if after := resources(t); after != before {
		t.Errorf("left behind: %s, before %s", after, before)
	}
}

// The same binary on a machine without libibverbs runs everything else, and says what is missing.
func TestToolWithoutTheLibrary(t *testing.T) {
	hawser := tool(t, "hawser")
	libs, err := filepath.Glob("/usr/lib/x86_64-linux-gnu/libibverbs.so*")
	if err != nil || len(libs) == 0 {
		t.Fatalf("this VM has no libibverbs to take away: %v", err)
	}
	away := t.TempDir()
	for _, l := range libs {
		run(t, "mv", l, away)
		t.Cleanup(func() { run(t, "mv", filepath.Join(away, filepath.Base(l)), l) })
	}
	out, err := exec.Command(hawser, slices.Concat(replay, []string{"--provider", "verbs", "--requests", "1"})...).CombinedOutput()
	if err == nil {
		t.Fatalf("verbs works without its library:\n%s", out)
	}
	for _, want := range []string{"libibverbs", "install"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("the tool does not say %q:\n%s", want, out)
		}
	}
	if out := run(t, hawser, "topo"); !strings.Contains(out, "libibverbs") {
		t.Errorf("topo does not name the library:\n%s", out)
	}
	for _, other := range []string{"tcp", "shm"} {
		run(t, hawser, slices.Concat(replay, []string{"--provider", other, "--requests", "1"})...)
	}
}
