package topo

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

// memory is a tree in memory. Owned by who made it; it does not change while it is read.
type memory struct {
	files map[string][]byte
	links map[string]string
	dirs  map[string]map[string]bool // names in each folder; "" is the root
}

func newMemory() *memory {
	return &memory{files: map[string][]byte{}, links: map[string]string{}, dirs: map[string]map[string]bool{"": {}}}
}

// clean is a name as a source wants it: relative, and not above the root.
func clean(name string) string { return strings.TrimPrefix(path.Clean("/"+name), "/") }

// enter makes a name known in all folders above it.
func (m *memory) enter(name string) {
	for name != "" {
		dir, base := path.Split(name)
		dir = strings.TrimSuffix(dir, "/")
		if m.dirs[dir] == nil {
			m.dirs[dir] = map[string]bool{}
		}
		m.dirs[dir][base] = true
		name = dir
	}
}

func (m *memory) addFile(name string, data []byte) { m.enter(name); m.files[name] = data }
func (m *memory) addLink(name, to string)          { m.enter(name); m.links[name] = to }

func (m *memory) addDir(name string) {
	m.enter(name)
	if m.dirs[name] == nil {
		m.dirs[name] = map[string]bool{}
	}
}

func (m *memory) file(name string, limit int) ([]byte, error) {
	data, ok := m.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return data[:min(len(data), limit)], nil
}

func (m *memory) names(name string, limit int) ([]string, error) {
	dir, ok := m.dirs[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	var names []string
	for n := range dir {
		if len(names) == limit {
			break
		}
		names = append(names, n)
	}
	return names, nil
}

func (m *memory) link(name string) (string, error) {
	to, ok := m.links[name]
	if !ok {
		return "", fs.ErrNotExist
	}
	return to, nil
}

func (m *memory) has(name string) error {
	if dir, base := path.Split(name); name != "" && !m.dirs[strings.TrimSuffix(dir, "/")][base] {
		return fs.ErrNotExist
	}
	return nil
}

// maxArchive bounds an unpacked archive, bytes. That of a machine with 32 NICs is below 1 MiB.
const maxArchive = 64 << 20

// readArchive unpacks a tar archive that was compressed by gzip.
func readArchive(r io.Reader) (*memory, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return nil, err
	}
	m := newMemory()
	limited := &io.LimitedReader{R: z, N: maxArchive}
	err = m.unpack(tar.NewReader(limited))
	if limited.N <= 0 {
		err = fmt.Errorf("more than %d MiB", maxArchive>>20)
	}
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (m *memory) unpack(t *tar.Reader) error {
	for range maxReads {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := clean(h.Name)
		if len(name) > maxPath || strings.Count(name, "/") > maxDepth {
			return errors.New("an entry's name is too long")
		}
		switch h.Typeflag {
		case tar.TypeReg:
			data, err := io.ReadAll(io.LimitReader(t, maxFile))
			if err != nil {
				return err
			}
			m.addFile(name, data)
		case tar.TypeSymlink:
			m.addLink(name, h.Linkname)
		case tar.TypeDir:
			m.addDir(name)
		}
		if len(m.dirs) > maxDirs {
			return fmt.Errorf("more than %d folders", maxDirs)
		}
	}
	return fmt.Errorf("more than %d entries", maxReads)
}

// maxDirs bounds the folders of an archive, those that only names imply among them: each entry may make maxDepth. The largest kept machine
// has 426.
const maxDirs = 20_000

// maxDepth is how deep a path of an archive may be; sysfs is about 15 deep.
const maxDepth = 64
