package topo

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the trees and the golden files of testdata anew")

// remove takes away a name and all below it.
func (m *memory) remove(name string) {
	maps.DeleteFunc(m.files, func(n string, _ []byte) bool { return within(n, name) })
	maps.DeleteFunc(m.links, func(n, _ string) bool { return within(n, name) })
	maps.DeleteFunc(m.dirs, func(n string, _ map[string]bool) bool { return within(n, name) })
	dir := path.Dir(name)
	delete(m.dirs[dir], path.Base(name))
}

func within(name, folder string) bool { return name == folder || strings.HasPrefix(name, folder+"/") }

// tree makes the tree of a machine.
func (m machine) tree() *memory {
	b := newBuilder()
	m.build(b)
	if m.partial != nil {
		m.partial(b.m)
	}
	b.file(About, "Reconstructed from public documentation, not captured on hardware.\n\n"+m.about+
		"\n\nThe generator is topo/machines_test.go; addresses of networks, GUIDs and UUIDs are made up.")
	return b.m
}

// TestTreesAreThoseOfTheGenerator keeps testdata and its description together.
func TestTreesAreThoseOfTheGenerator(t *testing.T) {
	for _, mc := range machines {
		t.Run(mc.name, func(t *testing.T) {
			want := mc.tree()
			file := filepath.Join("testdata", mc.name+".tar.gz")
			if *update {
				var buf bytes.Buffer
				if err := writeArchive(want, &buf); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(file, buf.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			f, err := os.Open(file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got, err := readArchive(f)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s is not what machines_test.go describes: go test ./topo -update", file)
			}
		})
	}
}

// sections are a host and the plan for it, as JSON with an element a line.
func sections(h *Host) (string, error) {
	p := h.Plan()
	var b strings.Builder
	b.WriteString("{\n")
	for i, s := range []struct {
		name string
		list any
	}{
		{"nodes", h.Nodes},
		{"gpus", h.GPUs},
		{"nics", h.NICs},
		{"modules", h.Modules},
		{"notes", h.Notes},
		{"plan of gpus", p.GPUs},
		{"plan of nodes", p.Nodes},
		{"plan of host", p.Host.Rails},
		{"unused", p.Unused},
	} {
		if i > 0 {
			b.WriteString(",\n")
		}
		fmt.Fprintf(&b, "%q: [", s.name)
		v := reflect.ValueOf(s.list)
		for j := range v.Len() {
			line, err := json.Marshal(v.Index(j).Interface())
			if err != nil {
				return "", err
			}
			if j > 0 {
				b.WriteString(",")
			}
			b.WriteString("\n ")
			b.Write(line)
		}
		b.WriteString("\n]")
	}
	b.WriteString("\n}\n")
	return b.String(), nil
}

// captured are machines whose trees were captured, not made: rxe-captured is a virtual machine of internal/vmtest (Linux 6.1 of Debian 12, four
// devices of rdma_rxe on two veth cables), by hawser topo capture --anonymise.
var captured = []string{"rxe-captured"}

func TestGoldenHosts(t *testing.T) {
	names := captured
	for _, mc := range machines {
		names = append(names, mc.name)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			h, err := Read(filepath.Join("testdata", name+".tar.gz"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := sections(h)
			if err != nil {
				t.Fatal(err)
			}
			compare(t, filepath.Join("testdata", name+".json"), got)
		})
	}
}

// compare compares with a golden file and shows the first line that differs.
func compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, have := strings.Split(string(data), "\n"), strings.Split(got, "\n")
	for i := range max(len(want), len(have)) {
		w, g := "(nothing)", "(nothing)"
		if i < len(want) {
			w = want[i]
		}
		if i < len(have) {
			g = have[i]
		}
		if w != g {
			t.Fatalf("%s, line %d; go test ./topo -update if the new one is right:\nwant %s\ngot  %s", file, i+1, w, g)
		}
	}
}
