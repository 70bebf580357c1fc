package main

import (
	"fmt"
	"io"
	"path"
)

// Modes of entries, as in stat(2).
const (
	modeFile = 0o100000
	modeDir  = 0o040000
	modeLink = 0o120000
)

// archive writes a cpio archive in the format "newc", which the kernel unpacks as its first file system
// (Documentation/driver-api/early-userspace/buffer-format.rst). Several archives may follow each other.
type archive struct {
	w       io.Writer
	offset  int64
	inode   int
	folders map[string]bool // those that are there
	err     error           // the first one; later entries are not written
}

func newArchive(w io.Writer) *archive {
	return &archive{w: w, folders: map[string]bool{".": true, "/": true}}
}

// add writes an entry, and the folders above it that are not there yet. data is a link's target.
func (a *archive) add(name string, mode int, data []byte) {
	a.folder(path.Dir(name))
	a.entry(name, mode, data)
}

func (a *archive) folder(name string) {
	if a.folders[name] {
		return
	}
	a.folders[name] = true
	a.folder(path.Dir(name))
	a.entry(name, modeDir|0o755, nil)
}

func (a *archive) entry(name string, mode int, data []byte) {
	if a.err != nil {
		return
	}
	a.inode++
	// magic, inode, mode, uid, gid, links, mtime, size, device and rdevice numbers, length of the name, checksum
	head := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0, name)
	a.write([]byte(head))
	a.write(data)
}

// write writes b and pads to a multiple of 4, as the format wants it after a header and after contents.
func (a *archive) write(b []byte) {
	if a.err != nil {
		return
	}
	pad := (4 - len(b)%4) % 4
	n, err := a.w.Write(append(b[:len(b):len(b)], make([]byte, pad)...))
	a.offset += int64(n)
	a.err = err
}

// close ends the archive. It does not close the writer.
func (a *archive) close() error {
	a.entry("TRAILER!!!", 0, nil)
	if a.err != nil {
		return fmt.Errorf("write archive: %w", a.err)
	}
	return nil
}
