package topo

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// Contents says what is in a capture.
type Contents struct {
	Files   int         `json:"files"`
	Links   int         `json:"links"`
	Bytes   int         `json:"bytes"`
	Secrets []Addresses `json:"addresses"` // what tells machines apart
	Hidden  []string    `json:"hidden"`    // what could not be read, and is missing
}

// Addresses are the values of one kind that are in a capture, after anonymising.
type Addresses struct {
	Kind   string   `json:"kind"`
	Values []string `json:"values"`
}

// About is the name of the file in a capture that says in words what it is.
const About = "ABOUT"

// Capture copies what Read would read of the machine at path into a folder, which must be empty or not there, or, if its name ends in
// ".tar.gz" or ".tgz", into an archive, which must not be there. With anonymise, addresses (GUIDs, GIDs, UUIDs and serial numbers of GPUs) are replaced:
// equal ones by equal ones, everywhere alike, link-local ones and IPv4 ones by such.
func Capture(path, to string, anonymise bool) (*Contents, error) {
	src, closer, err := open(path)
	if err != nil {
		return nil, err
	}
	defer closer()
	rec := &recorder{source: src, into: newMemory()}
	t := newTree(rec)
	h := t.host()
	c := &Contents{Hidden: h.Notes}
	c.Secrets = addresses(rec.into, anonymise)
	for _, data := range rec.into.files {
		c.Bytes += len(data)
	}
	c.Files, c.Links = len(rec.into.files), len(rec.into.links)
	rec.into.addFile(About, []byte(c.about(anonymise)))
	if err := write(rec.into, to); err != nil {
		return nil, fmt.Errorf("capture to %s: %w", to, err)
	}
	return c, nil
}

// about is the text of the file About.
func (c *Contents) about(anonymised bool) string {
	var b strings.Builder
	b.WriteString("Files of /sys, /proc and /dev that say how a machine's NICs and GPUs are connected, made by hawser topo capture.\n")
	b.WriteString("Files of /dev are empty: that they are there is all there is to know.\n")
	for _, a := range c.Secrets {
		fmt.Fprintf(&b, "%s: %d", a.Kind, len(a.Values))
		if anonymised {
			b.WriteString(", replaced")
		}
		b.WriteString("\n")
	}
	for _, note := range c.Hidden {
		fmt.Fprintf(&b, "could not be read: %s\n", note)
	}
	return b.String()
}

// recorder keeps what is read through it. Owned by one Capture.
type recorder struct {
	source
	into *memory
}

func (r *recorder) file(name string, limit int) ([]byte, error) {
	data, err := r.source.file(name, limit)
	if err == nil {
		r.into.addFile(name, data)
	}
	return data, err
}

func (r *recorder) names(name string, limit int) ([]string, error) {
	names, err := r.source.names(name, limit)
	if err == nil {
		r.into.addDir(name)
		for _, n := range names {
			r.into.enter(path.Join(name, n))
		}
	}
	return names, err
}

func (r *recorder) link(name string) (string, error) {
	to, err := r.source.link(name)
	if err == nil {
		r.into.addLink(name, to)
	}
	return to, err
}

func (r *recorder) has(name string) error {
	err := r.source.has(name)
	if err == nil {
		r.into.enter(name)
	}
	return err
}

// write writes a tree to a new folder or archive.
func write(m *memory, to string) error {
	if strings.HasSuffix(to, ".tar.gz") || strings.HasSuffix(to, ".tgz") {
		f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return err
		}
		return errors.Join(writeArchive(m, f), f.Close())
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	if there, err := os.ReadDir(to); err != nil || len(there) > 0 {
		return errors.Join(err, fmt.Errorf("the folder is not empty: %w", fs.ErrExist))
	}
	return writeFolder(m, to)
}

// paths are all names of a tree, each after the folders above it.
func (m *memory) paths() []string {
	var all []string
	for dir, names := range m.dirs {
		for n := range names {
			all = append(all, path.Join(dir, n))
		}
	}
	slices.Sort(all)
	return all
}

// isDir says whether a name is a folder. What was only seen in a list, and is none of the others, is an empty file.
func (m *memory) isDir(name string) bool {
	_, ok := m.dirs[name]
	return ok
}

func writeFolder(m *memory, to string) error {
	root, err := os.OpenRoot(to)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range m.paths() {
		at := filepath.FromSlash(name)
		link, isLink := m.links[name]
		switch {
		case isLink:
			err = root.Symlink(link, at)
		case m.isDir(name):
			err = root.Mkdir(at, 0o755)
		default:
			err = root.WriteFile(at, m.files[name], 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func writeArchive(m *memory, w io.Writer) error {
	z, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, name := range m.paths() {
		h := &tar.Header{Name: name, Mode: 0o644}
		link, isLink := m.links[name]
		switch {
		case isLink:
			h.Typeflag, h.Linkname = tar.TypeSymlink, link
		case m.isDir(name):
			h.Typeflag, h.Name, h.Mode = tar.TypeDir, name+"/", 0o755
		default:
			h.Typeflag, h.Size = tar.TypeReg, int64(len(m.files[name]))
		}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := t.Write(m.files[name]); err != nil {
				return err
			}
		}
	}
	return errors.Join(t.Close(), z.Close())
}

// sorted are the keys of a set.
func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
