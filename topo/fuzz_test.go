package topo

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"
)

// counted counts what is read of a source.
type counted struct {
	source
	n int
}

func (c *counted) file(name string, limit int) ([]byte, error) {
	c.n++
	return c.source.file(name, limit)
}

func (c *counted) names(name string, limit int) ([]string, error) {
	c.n++
	return c.source.names(name, limit)
}

func (c *counted) link(name string) (string, error) { c.n++; return c.source.link(name) }
func (c *counted) has(name string) error            { c.n++; return c.source.has(name) }

// FuzzTree changes the tree of a machine. The length of the input's first line says which one; each other line is a path (or a number of one
// that is there), what becomes of it, and its new content. Whatever the tree, reading ends within its bounds, and what was read can be
// planned for, printed as JSON, copied, and read again to the same end.
func FuzzTree(f *testing.F) {
	f.Add([]byte(""))
	f.Add([]byte("1\n/sys/class/infiniband/x f 1\n/sys/class/infiniband/mlx5_0 l ../../../..\n"))
	f.Add([]byte("22\n/sys/class/infiniband/mlx5_0/ports/1/gids/3 f ::1\n#7 f -1\n#9 l #8\n#12 d\n#30 r\n"))
	f.Add([]byte("\n/sys/devices/system/node/node99999 d\n/sys/bus/pci/devices/0000:00:03.0 l ../pci0000:00/10000:00/0000:00:03.0\n"))
	small := machines[:0:0]
	for _, mc := range machines {
		if len(mc.tree().files) < 200 {
			small = append(small, mc)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		which, edits, _ := strings.Cut(string(data), "\n")
		m := small[len(which)%len(small)].tree()
		edit(m, edits)
		src := &counted{source: m}
		h := newTree(src).host()
		if src.n > maxReads {
			t.Fatalf("%d reads", src.n)
		}
		want, err := json.Marshal(golden{h, h.Plan()})
		if err != nil {
			t.Fatal(err)
		}
		rec := &recorder{source: m, into: newMemory()}
		newTree(rec).host()
		addresses(rec.into, false)
		again := newTree(rec.into).host()
		if got, err := json.Marshal(golden{again, again.Plan()}); err != nil || !bytes.Equal(got, want) {
			t.Fatalf("the copy reads %s\nwant %s (%v)", got, want, err)
		}
		addresses(rec.into, true)
		newTree(rec.into).host()
	})
}

// golden is what is compared.
type golden struct {
	Host *Host
	Plan Plan
}

// edit changes a tree as FuzzTree describes.
func edit(m *memory, edits string) {
	paths := m.paths()
	find := func(s string) string {
		if strings.HasPrefix(s, "#") && len(s) > 1 {
			n := uint(0) // which may overflow
			for _, c := range []byte(s[1:]) {
				n = n*31 + uint(c)
			}
			return paths[n%uint(len(paths))]
		}
		return clean(s)
	}
	for i, line := range strings.Split(edits, "\n") {
		if i == 64 {
			return
		}
		f := strings.SplitN(line, " ", 3)
		if len(f) < 2 || len(line) > maxPath {
			continue
		}
		name, value := find(f[0]), ""
		if name == "" {
			continue
		}
		if len(f) == 3 {
			value = f[2]
		}
		delete(m.files, name)
		delete(m.links, name)
		switch f[1] {
		case "f":
			m.addFile(name, []byte(value))
		case "l":
			if strings.HasPrefix(value, "#") {
				value = "/" + find(value)
			}
			m.addLink(name, value)
		case "d":
			m.addDir(name)
		default:
			m.remove(name)
		}
	}
}

// FuzzArchive unpacks any bytes.
func FuzzArchive(f *testing.F) {
	for _, mc := range machines {
		if len(mc.tree().files) > 100 {
			continue
		}
		var packed bytes.Buffer
		if err := writeArchive(mc.tree(), &packed); err != nil {
			f.Fatal(err)
		}
		z, err := gzip.NewReader(&packed)
		if err != nil {
			f.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(plain[:4096])
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m := newMemory()
		if err := m.unpack(tar.NewReader(bytes.NewReader(data))); err != nil {
			return
		}
		for _, name := range m.paths() {
			if clean(name) != name || slices.Contains(strings.Split(name, "/"), "..") {
				t.Fatalf("name %q", name)
			}
		}
		newTree(m).host()
	})
}
