package topo

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// Bounds of what one Read takes from a tree. The largest known machine (32 NICs, 8 GPUs) needs 1 in 20 of each.
const (
	maxFile    = 64 << 10 // bytes of a file; an attribute of sysfs is one page at most
	maxEntries = 4096     // of a folder
	maxReads   = 200_000  // files, folders and links
	maxLinks   = 40       // on the way to one file, as in Linux
	maxPath    = 4096     // bytes of a path
)

// errBudget ends a Read that would not end.
var errBudget = fmt.Errorf("more than %d files", maxReads)

// source is where the files of a tree are. Names are relative to its root, clean, and pass through no link.
type source interface {
	// file returns up to limit bytes.
	file(name string, limit int) ([]byte, error)
	// names lists a folder, in any order, at most limit of it.
	names(name string, limit int) ([]string, error)
	// link returns where a link leads; an error if it is none.
	link(name string) (string, error)
	// has says whether there is something, without following a link.
	has(name string) error
}

// tree reads a source within bounds. Owned by one Read.
type tree struct {
	src   source
	left  int               // reads
	links map[string]string // path of a folder or file: where it is when all links are followed
	notes map[string]string // path: why it could not be read
}

func newTree(src source) *tree {
	return &tree{src: src, left: maxReads, links: map[string]string{}, notes: map[string]string{}}
}

func (t *tree) spend() error {
	if t.left <= 0 {
		return errBudget
	}
	t.left--
	return nil
}

// note keeps why a path could not be read. That it is not there is no news: every caller knows what it means to it.
func (t *tree) note(name string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
		t.notes[name] = reason(err)
	}
}

// reason is an error without the path, which stands beside it.
func reason(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// real follows all links of a path. Links lead to the root of the tree at most, as in a chroot.
func (t *tree) real(name string) (string, error) {
	if r, ok := t.links[name]; ok {
		return r, nil
	}
	rest, at, hops := strings.Split(name, "/"), "", 0
	for len(rest) > 0 {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if at = path.Dir(at); at == "." {
				at = ""
			}
			continue
		}
		next := path.Join(at, part)
		if len(next) > maxPath {
			return "", fmt.Errorf("path of more than %d bytes", maxPath)
		}
		if r, ok := t.links[next]; ok {
			at = r
			continue
		}
		if err := t.spend(); err != nil {
			return "", err
		}
		to, err := t.src.link(next)
		if err != nil { // no link, or not there, which shows when it is read
			t.links[next] = next
			at = next
			continue
		}
		if hops++; hops > maxLinks {
			return "", fmt.Errorf("more than %d links", maxLinks)
		}
		if strings.HasPrefix(to, "/") {
			at = ""
		}
		rest = slices.Concat(strings.Split(to, "/"), rest)
	}
	t.links[name] = at
	return at, nil
}

// text is the content of a file without the space around it.
func (t *tree) text(name string) (string, error) {
	r, err := t.real(name)
	if err == nil {
		err = t.spend()
	}
	if err != nil {
		return "", err
	}
	b, err := t.src.file(r, maxFile)
	return strings.ToValidUTF8(strings.TrimSpace(string(b)), "?"), err
}

// attr is the content of a file that may be missing: "".
func (t *tree) attr(name string) string {
	s, err := t.text(name)
	if err != nil {
		t.note(name, err)
		return ""
	}
	return s
}

// line is the first line of a file that may be missing, without control characters: what a name or state is read from.
func (t *tree) line(name string) string {
	return printable(t.attr(name))
}

// quiet is line for a file that often cannot be read, which is no news.
func (t *tree) quiet(name string) string {
	s, err := t.text(name)
	if err != nil {
		return ""
	}
	return printable(s)
}

// printable is the first line of a text without what is not to be printed: a tree may come from anybody, and ends up on a terminal.
func printable(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, s)
}

// number is the number in a file, decimal or with a prefix as in 0x15b3; without there being one, what is given.
func (t *tree) number(name string, without int64) int64 {
	n, err := strconv.ParseInt(t.line(name), 0, 64)
	if err != nil {
		return without
	}
	return n
}

// list is what is in a folder, in natural order: mlx5_2 before mlx5_10. Names that cannot be printed are left out.
func (t *tree) list(name string) []string {
	r, err := t.real(name)
	if err == nil {
		err = t.spend()
	}
	var names []string
	if err == nil {
		names, err = t.src.names(r, maxEntries+1)
	}
	t.note(name, err)
	if len(names) > maxEntries {
		t.notes[name] = fmt.Sprintf("more than %d entries: the rest is not looked at", maxEntries)
	}
	names = slices.DeleteFunc(names, func(n string) bool { return n == "" || printable(n) != n || !utf8.ValidString(n) })
	slices.SortFunc(names, natural)
	return names[:min(len(names), maxEntries)]
}

// has says whether a path leads to something.
func (t *tree) has(name string) bool {
	r, err := t.real(name)
	if err == nil {
		err = t.spend()
	}
	if err == nil {
		err = t.src.has(r)
	}
	t.note(name, err)
	return err == nil
}

// base is the last element of where a link leads: the driver of a device, for example. "" without a link.
func (t *tree) base(name string) string {
	r, err := t.real(path.Dir(name))
	if err == nil {
		err = t.spend()
	}
	if err != nil {
		return ""
	}
	to, err := t.src.link(path.Join(r, path.Base(name)))
	if err != nil || to == "" {
		return ""
	}
	return printable(path.Base(to))
}

// natural orders names with numbers in them by the numbers.
func natural(a, b string) int {
	for a != "" && b != "" {
		if digit(a[0]) && digit(b[0]) {
			na, nb := digits(a), digits(b)
			x, y := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
			if c := len(x) - len(y); c != 0 {
				return c
			}
			if c := strings.Compare(x, y); c != 0 {
				return c
			}
			if na != nb {
				return na - nb // 01 after 1
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if a[0] != b[0] {
			return int(a[0]) - int(b[0])
		}
		a, b = a[1:], b[1:]
	}
	return len(a) - len(b)
}

func digit(c byte) bool { return '0' <= c && c <= '9' }

func digits(s string) int {
	n := 0
	for n < len(s) && digit(s[n]) {
		n++
	}
	return n
}

// folder is a tree in the file system, below a folder that links do not lead out of. Owned by one Read.
type folder struct {
	root *os.Root
	name string   // of the folder that was used last, which is mostly the next one, too
	last *os.Root // the same; nil at first
}

// in opens the folder above a name and returns it with the rest of the name.
func (f *folder) in(name string) (*os.Root, string, error) {
	dir, base := path.Split(name)
	if dir == "" {
		return f.root, name, nil
	}
	if f.last == nil || f.name != dir {
		next, err := f.root.OpenRoot(dir)
		if err != nil {
			return nil, "", err
		}
		if f.last != nil {
			_ = f.last.Close()
		}
		f.name, f.last = dir, next
	}
	return f.last, base, nil
}

func (f *folder) close() {
	if f.last != nil {
		_ = f.last.Close()
	}
	_ = f.root.Close()
}

func (f *folder) file(name string, limit int) ([]byte, error) {
	dir, base, err := f.in(name)
	if err != nil {
		return nil, err
	}
	// A pipe that somebody put into a captured tree must not hold up the reader.
	file, err := dir.OpenFile(base, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, int64(limit)))
}

func (f *folder) names(name string, limit int) ([]string, error) {
	if name == "" {
		name = "."
	}
	dir, err := f.root.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}

func (f *folder) link(name string) (string, error) {
	dir, base, err := f.in(name)
	if err != nil {
		return "", err
	}
	return dir.Readlink(base)
}

func (f *folder) has(name string) error {
	if name == "" {
		return nil
	}
	dir, base, err := f.in(name)
	if err != nil {
		return err
	}
	_, err = dir.Lstat(base)
	return err
}
