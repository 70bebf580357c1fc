package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/internal/dl"
)

// bare is a root folder with the tool, the libraries that it is linked with, and nothing else: what a machine looks like that has
// no library of any network.
type bare struct {
	root string
	wrap []string // command that makes mount namespaces here
}

func newBare(t *testing.T) *bare {
	t.Helper()
	b := &bare{root: t.TempDir(), wrap: []string{"unshare", "--mount"}}
	if os.Geteuid() != 0 {
		b.wrap = append(b.wrap, "--user", "--map-root-user")
	}
	if out, err := exec.Command(b.wrap[0], append(b.wrap[1:], "mount", "--rbind", "/proc", t.TempDir())...).CombinedOutput(); err != nil {
		t.Skipf("%s: mount namespaces cannot be made here: %v: %s", strings.Join(b.wrap, " "), err, out)
	}
	for _, dir := range []string{"proc", "sys", "dev", "lib", "tmp"} {
		b.mkdir(t, dir)
	}
	b.put(t, os.Args[0], "hawser")
	exe, err := elf.Open(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	if interpreter := exe.Section(".interp"); interpreter != nil {
		name, err := interpreter.Data()
		if err != nil {
			t.Fatal(err)
		}
		path := string(bytes.TrimRight(name, "\x00"))
		b.put(t, path, path)
	}
	needed, err := exe.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps") // this process has them loaded
	if err != nil {
		t.Fatal(err)
	}
	for _, library := range needed {
		i := bytes.Index(maps, []byte("/"+library+"\n"))
		if i < 0 {
			t.Fatalf("%s is not in /proc/self/maps", library)
		}
		b.put(t, string(maps[bytes.LastIndexByte(maps[:i], ' ')+1:i])+"/"+library, "lib/"+library)
	}
	return b
}

func (b *bare) mkdir(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(b.root, dir), 0o755); err != nil {
		t.Fatal(err)
	}
}

// put copies a file.
func (b *bare) put(t *testing.T, from, to string) {
	t.Helper()
	data, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	b.mkdir(t, filepath.Dir(to))
	if err := os.WriteFile(filepath.Join(b.root, to), data, 0o755); err != nil {
		t.Fatal(err)
	}
}

// tool runs the tool there. The machine's devices and kernel are the same, its files are not.
func (b *bare) tool(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	const enter = `for d in proc sys dev; do mount --rbind /$d "$0/$d"; done; exec chroot "$0" /hawser "$@"`
	cmd, _ := command(t, args...)
	cmd.Args = append(append(append([]string{}, b.wrap...), "sh", "-euc", enter, b.root), cmd.Args[1:]...)
	path, err := exec.LookPath(b.wrap[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path, cmd.Env = path, append(cmd.Env, "LD_LIBRARY_PATH=/lib")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	_ = cmd.Run()
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// TestBinaryRunsWithoutTheLibrariesOfNetworks copies the binary to a machine that lacks them.
func TestBinaryRunsWithoutTheLibrariesOfNetworks(t *testing.T) {
	b := newBare(t)
	missing := "cannot open shared object file"
	if !dl.Available {
		missing = "built without cgo"
	}
	stdout, stderr, code := b.tool(t, "version", "--json", "-")
	if code != exitOK {
		t.Fatalf("version: exit code %d: %s", code, stderr)
	}
	v := decodeJSON(t, stdout)
	libraries, _ := v["libraries"].([]any)
	if len(libraries) != 2 {
		t.Fatalf("libraries %v, want 2", v["libraries"])
	}
	for _, l := range libraries {
		l := l.(map[string]any)
		if reason, _ := l["reason"].(string); l["path"] != nil || !strings.Contains(reason, missing) {
			t.Errorf("%v, want a reason with %q and no path", l, missing)
		}
	}
	for _, args := range [][]string{
		{"topo"},
		append([]string{"bench", "pages", "--provider", "shm,tcp", "--rounds", "1"}, quickBench["pages"]...),
		{"kv", "replay", "--requests", "1", "--pool", "64MiB", "--scale", "0.1", "--speed", "1000"},
	} {
		if _, stderr, code := b.tool(t, args...); code != exitOK {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
}

func TestVersionSaysHowTheBinaryIsLinked(t *testing.T) {
	stdout, _, _ := tool(t, "version")
	want := ", static)\n"
	if dl.Available {
		want = ", dynamic, needs glibc 2."
	}
	if !strings.Contains(stdout, want) {
		t.Errorf("%q, want %q in it", stdout, want)
	}
	if l := linkageOf("/proc/self/maps"); l.Linking != "unknown" {
		t.Errorf("what is no binary is %+v", l)
	}
}

func TestVersionsAreComparedByNumbers(t *testing.T) {
	for _, v := range [][2]string{{"", "2.2"}, {"2.2.5", "2.34"}, {"2.9", "2.10"}, {"2.3", "2.3.4"}} {
		if !older(v[0], v[1]) || older(v[1], v[0]) || older(v[1], v[1]) {
			t.Errorf("%q is not older than %q", v[0], v[1])
		}
	}
}
