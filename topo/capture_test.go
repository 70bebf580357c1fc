package topo

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// TestCaptureReadsTheSame captures each machine in both forms: what is read of the copies is what is read of the original.
func TestCaptureReadsTheSame(t *testing.T) {
	for _, mc := range machines {
		t.Run(mc.name, func(t *testing.T) {
			from := filepath.Join("testdata", mc.name+".tar.gz")
			want, err := Read(from)
			if err != nil {
				t.Fatal(err)
			}
			to := []string{filepath.Join(t.TempDir(), "m.tar.gz")}
			if len(want.NICs) < 8 || len(want.Notes) > 0 { // thousands of files take their time
				to = append(to, filepath.Join(t.TempDir(), "m"))
			}
			for _, to := range to {
				if _, err := Capture(from, to, false); err != nil {
					t.Fatal(err)
				}
				got, err := Read(to)
				if err != nil {
					t.Fatal(err)
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s: got %+v\nwant %+v", to, got, want)
				}
			}
		})
	}
}

// TestAnonymisedCaptureHasNoAddressAndTheSamePlan looks for the addresses of the original in all bytes of the copy.
func TestAnonymisedCaptureHasNoAddressAndTheSamePlan(t *testing.T) {
	for _, mc := range machines {
		t.Run(mc.name, func(t *testing.T) {
			from, to := filepath.Join("testdata", mc.name+".tar.gz"), filepath.Join(t.TempDir(), "m.tar.gz")
			plain := mc.tree()
			if _, err := Capture(from, to, true); err != nil {
				t.Fatal(err)
			}
			secrets := map[string]bool{}
			for name, data := range plain.files {
				text := strings.TrimSpace(string(data))
				switch {
				case strings.HasSuffix(name, "/node_guid"), strings.Contains(name, "/gids/") && !strings.HasPrefix(text, "0000:0000:0000:0000:0000:0000:0000"):
					secrets[text] = true
				case strings.HasSuffix(name, "/information"):
					secrets[strings.Fields(text[strings.Index(text, "GPU-"):])[0]] = true
				}
			}
			f, err := os.Open(to)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			copied, err := readArchive(f)
			if err != nil {
				t.Fatal(err)
			}
			for name, data := range copied.files {
				for s := range secrets {
					if bytes.Contains(data, []byte(s)) {
						t.Fatalf("%s of the copy has %s", name, s)
					}
				}
			}
			a, b := newTree(plain).host(), newTree(copied).host()
			if !reflect.DeepEqual(a.Plan(), b.Plan()) {
				t.Error("the copy has another plan")
			}
			if was, is := distinct(a), distinct(b); was != is {
				t.Errorf("%d distinct GIDs became %d", was, is)
			}
			for i := range a.NICs {
				for j := range a.NICs[i].Ports {
					for k, g := range a.NICs[i].Ports[j].GIDs {
						c := b.NICs[i].Ports[j].GIDs[k]
						if g.Routable() != c.Routable() || g.Addr.Is4In6() != c.Addr.Is4In6() || g.Index != c.Index {
							t.Errorf("%v became %v, which is of another sort", g, c)
						}
					}
				}
			}
		})
	}
}

// distinct counts the addresses of a host.
func distinct(h *Host) int {
	seen := map[string]bool{}
	for _, n := range h.NICs {
		for _, p := range n.Ports {
			for _, g := range p.GIDs {
				seen[g.Addr.String()] = true
			}
		}
	}
	return len(seen)
}

func TestCaptureSaysWhatIsInIt(t *testing.T) {
	c, err := Capture(filepath.Join("testdata", "hgx-h100.tar.gz"), filepath.Join(t.TempDir(), "m.tar.gz"), false)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, a := range c.Secrets {
		got[a.Kind] = len(a.Values)
	}
	if want := map[string]int{"node GUIDs": 8, "GIDs": 16, "UUIDs of GPUs": 8}; !reflect.DeepEqual(got, want) {
		t.Errorf("it is said to have %v, want %v", got, want)
	}
}

func TestCaptureOverwritesNothing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "mine.tar.gz")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{dir, file} {
		if _, err := Capture("testdata/soft-roce-vm.tar.gz", to, false); !errors.Is(err, fs.ErrExist) {
			t.Errorf("%s: %v, want %v", to, err, fs.ErrExist)
		}
	}
}

// shuffled lists folders in any order.
type shuffled struct {
	source
	rng *rand.Rand
}

func (s shuffled) names(name string, limit int) ([]string, error) {
	names, err := s.source.names(name, limit)
	s.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return names, err
}

func TestOrderOfFoldersDoesNotMatter(t *testing.T) {
	for _, mc := range machines {
		want := newTree(mc.tree()).host()
		for seed := range uint64(8) {
			if got := newTree(shuffled{mc.tree(), rand.New(rand.NewPCG(seed, 1))}).host(); !reflect.DeepEqual(got, want) {
				t.Errorf("%s, seed %d: %+v\nwant %+v", mc.name, seed, got, want)
			}
		}
	}
}

// denied lets nobody look at some paths.
type denied struct {
	source
	part string
}

func (d denied) err(name string) error {
	if strings.Contains(name, d.part) {
		return &fs.PathError{Op: "open", Path: name, Err: syscall.EACCES}
	}
	return nil
}

func (d denied) file(name string, limit int) ([]byte, error) {
	if err := d.err(name); err != nil {
		return nil, err
	}
	return d.source.file(name, limit)
}

func (d denied) names(name string, limit int) ([]string, error) {
	if err := d.err(name); err != nil {
		return nil, err
	}
	return d.source.names(name, limit)
}

func TestWhatMayNotBeReadIsNoted(t *testing.T) {
	tree := machines[0].tree()
	for _, part := range []string{"/gids", "sys/bus/pci/devices", "proc/driver", "/ports/1/state"} {
		h := newTree(denied{tree, part}).host()
		if len(h.Notes) == 0 || !strings.Contains(strings.Join(h.Notes, "\n"), "permission denied") {
			t.Errorf("%s may not be read; notes: %q", part, h.Notes)
		}
		if len(h.NICs) != 8 {
			t.Errorf("%s may not be read, and so %d NICs are left of 8", part, len(h.NICs))
		}
	}
}

// TestLinksDoNotLeadOut has links to a file outside, directly and through "..", and a pipe that would hold up a reader.
func TestLinksDoNotLeadOut(t *testing.T) {
	out := t.TempDir()
	secret := filepath.Join(out, "secret")
	if err := os.WriteFile(secret, []byte("4: ACTIVE\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(out, "tree")
	port := filepath.Join(dir, "sys/class/infiniband/x/ports/1")
	if err := os.MkdirAll(port, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(port, "state")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(strings.Repeat("../", 30)+secret, filepath.Join(port, "rate")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(port, "link_layer"), 0o600); err != nil {
		t.Fatal(err)
	}
	h, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if p := h.NICs[0].Ports[0]; p.State != "" || p.Rate != "" {
		t.Errorf("state %q, rate %q were read outside of the tree", p.State, p.Rate)
	}
}

// TestLinksInCirclesCostLittle has links that lead to themselves, and one that grows with every step.
func TestLinksInCirclesCostLittle(t *testing.T) {
	m := newMemory()
	m.addLink("sys/class/infiniband/a", "b")
	m.addLink("sys/class/infiniband/b", "a")
	m.addLink("sys/class/infiniband/self", "self/self")
	src := &counted{source: m}
	h := newTree(src).host()
	// Three NICs, of each of which a dozen files are looked for.
	if limit := 3 * 30 * (maxLinks + 10); src.n > limit || len(h.NICs) != 3 {
		t.Errorf("%d NICs, %d reads, more than %d", len(h.NICs), src.n, limit)
	}
}

// TestReadingIsBounded has a folder with more entries than are looked at, in which there is more than is read.
func TestReadingIsBounded(t *testing.T) {
	m := newMemory()
	for i := range maxEntries + 10 {
		for j := range 3 {
			m.addDir(fmt.Sprintf("sys/class/infiniband/nic%d/ports/%d", i, j+1))
		}
	}
	src := &counted{source: m}
	h := newTree(src).host()
	if len(h.NICs) != maxEntries || src.n > maxReads {
		t.Errorf("%d NICs, %d reads", len(h.NICs), src.n)
	}
	notes := strings.Join(h.Notes, "\n")
	for _, want := range []string{fmt.Sprintf("more than %d entries", maxEntries), fmt.Sprintf("more than %d files", maxReads)} {
		if !strings.Contains(notes, want) {
			t.Errorf("nothing says %q", want)
		}
	}
}

// TestLargeArchiveIsRefused has more than is unpacked, of zeros, which are small in the archive.
func TestLargeArchiveIsRefused(t *testing.T) {
	m := newMemory()
	zeros := make([]byte, maxFile)
	for i := range maxArchive/maxFile + 1 {
		m.addFile(fmt.Sprint(i), zeros)
	}
	var buf bytes.Buffer
	if err := writeArchive(m, &buf); err != nil {
		t.Fatal(err)
	}
	size := buf.Len()
	if _, err := readArchive(&buf); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("%d bytes that become more than %d: %v", size, maxArchive, err)
	}
}

// TestArchiveOfFoldersIsRefused has few entries whose names make many folders.
func TestArchiveOfFoldersIsRefused(t *testing.T) {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	w := tar.NewWriter(z)
	const deep = 40
	for i := range maxDirs/deep + 1 {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprint(i) + strings.Repeat("/d", deep), Mode: 0o644}); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(w.Close(), z.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := readArchive(&buf); err == nil || !strings.Contains(err.Error(), "folders") {
		t.Errorf("%d entries of %d folders each: %v", maxDirs/deep+1, deep, err)
	}
}

func TestHostileArchives(t *testing.T) {
	m := newMemory()
	m.addFile("sys/class/infiniband/a\x1b[2J/ports/1/state", []byte("4: ACTIVE\n"))
	m.addFile("sys/class/infiniband/b/ports/1/state", []byte("4: \x1b[31mACTIVE\x00\n"))
	m.addFile("../../outside", []byte("x"))
	var buf bytes.Buffer
	if err := writeArchive(m, &buf); err != nil {
		t.Fatal(err)
	}
	got, err := readArchive(&buf)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := got.files["outside"]; !ok || len(got.dirs[".."]) > 0 {
		t.Errorf("a name above the root became %v", got.dirs)
	}
	h := newTree(got).host()
	if len(h.NICs) != 1 || strings.ContainsAny(h.NICs[0].Ports[0].State, "\x1b\x00") {
		t.Errorf("what cannot be printed came through: %+v", h.NICs)
	}
}
