package safetensors

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/reshard"
)

// IndexName is the index of a checkpoint of several files.
const IndexName = "model.safetensors.index.json"

// maxIndex is the most bytes that an index may have.
const maxIndex = 256 << 20

// Checkpoint is an open directory of safetensors files.
type Checkpoint struct {
	Files    []File
	Metadata map[string]string // of the first file that has any

	byName map[string]place
}

// File is a file of a checkpoint.
type File struct {
	Name   string
	Size   int64
	Header *Header
	file   fs.File
	at     io.ReaderAt
}

// place is where a tensor is.
type place struct{ file, tensor int }

// Open reads the headers of all files of a directory, and its index if there is one. The caller closes the checkpoint.
func Open(dir fs.FS) (*Checkpoint, error) {
	c := &Checkpoint{byName: map[string]place{}}
	if err := c.open(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %w", err), c.Close())
	}
	return c, nil
}

// OpenFile reads the header of one file of a directory.
func OpenFile(dir fs.FS, name string) (*Checkpoint, error) {
	c := &Checkpoint{byName: map[string]place{}}
	if err := c.add(dir, name); err != nil {
		return nil, errors.Join(fmt.Errorf("checkpoint: %s: %w", name, err), c.Close())
	}
	return c, nil
}

func (c *Checkpoint) open(dir fs.FS) error {
	names, err := fs.Glob(dir, "*.safetensors")
	if err != nil {
		return err
	}
	index, err := readIndex(dir)
	if err != nil {
		return err
	}
	if index != nil {
		names = index.files()
	}
	if len(names) == 0 {
		return errors.New("no *.safetensors file")
	}
	for _, name := range names {
		if err := c.add(dir, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	if index != nil {
		return index.check(c)
	}
	return nil
}

// add opens a file.
func (c *Checkpoint) add(dir fs.FS, name string) error {
	f, err := dir.Open(name)
	if err != nil {
		return err
	}
	c.Files = append(c.Files, File{Name: name, file: f})
	file := &c.Files[len(c.Files)-1]
	info, err := f.Stat()
	if err != nil {
		return err
	}
	at, ok := f.(io.ReaderAt)
	if !ok || !info.Mode().IsRegular() {
		return errors.New("not a regular file that can be read by range")
	}
	file.Size, file.at = info.Size(), at
	if file.Header, err = ReadHeader(at, file.Size); err != nil {
		return err
	}
	if c.Metadata == nil {
		c.Metadata = file.Header.Metadata
	}
	for i, t := range file.Header.Tensors {
		if other, ok := c.byName[t.Name]; ok {
			return fmt.Errorf("tensor %q is in %s too", t.Name, c.Files[other.file].Name)
		}
		c.byName[t.Name] = place{len(c.Files) - 1, i}
	}
	return nil
}

// Close closes the files.
func (c *Checkpoint) Close() error {
	var err error
	for _, f := range c.Files {
		err = errors.Join(err, f.file.Close())
	}
	c.Files = nil
	return err
}

// Tensor finds a tensor by its name.
func (c *Checkpoint) Tensor(name string) (Tensor, bool) {
	p, ok := c.byName[name]
	if !ok {
		return Tensor{}, false
	}
	return c.Files[p.file].Header.Tensors[p.tensor], true
}

// ReadAt fills b with bytes of a tensor's data, from an offset in it.
func (c *Checkpoint) ReadAt(b []byte, name string, off int64) error {
	p, ok := c.byName[name]
	if !ok {
		return fmt.Errorf("checkpoint: no tensor %q", name)
	}
	f := &c.Files[p.file]
	t := &f.Header.Tensors[p.tensor]
	if off < 0 || off > t.End-t.Begin || int64(len(b)) > t.End-t.Begin-off {
		return fmt.Errorf("checkpoint: %s: bytes [%d,%d) of %d", name, off, off+int64(len(b)), t.End-t.Begin)
	}
	if n, err := f.at.ReadAt(b, f.Header.Start+t.Begin+off); n < len(b) {
		return fmt.Errorf("checkpoint: %s: %s: %w", f.Name, name, err)
	}
	return nil
}

// Layout describes the checkpoint as the memory of one rank: a buffer for each file, with offsets that count from the file's begin.
func (c *Checkpoint) Layout() *reshard.Layout {
	l := &reshard.Layout{Side: "train", Buffers: [][]int64{{}}}
	for i, f := range c.Files {
		l.Buffers[0] = append(l.Buffers[0], f.Size)
		for _, t := range f.Header.Tensors {
			l.Fragments = append(l.Fragments, reshard.Fragment{
				Tensor: len(l.Tensors), Lo: make([]int64, len(t.Shape)), Hi: slices.Clone(t.Shape), Buffer: i, Offset: f.Header.Start + t.Begin,
			})
			l.Tensors = append(l.Tensors, reshard.Tensor{Name: t.Name, Shape: t.Shape, DType: t.DType})
		}
	}
	return l
}

// index is the JSON beside the files of a checkpoint.
type index struct {
	total int64             // bytes of all tensors; -1: it does not say
	file  map[string]string // by tensor
}

// readIndex is nil if there is none.
func readIndex(dir fs.FS) (*index, error) {
	f, err := dir.Open(IndexName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	x, err := parseIndex(io.LimitReader(f, maxIndex))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", IndexName, err)
	}
	return x, nil
}

func parseIndex(r io.Reader) (*index, error) {
	x := &index{total: -1}
	d := json.NewDecoder(r)
	err := object(d, func(key string) (err error) {
		switch key {
		case "metadata":
			return x.metadata(d)
		case "weight_map":
			x.file, err = stringMap(d)
			return err
		}
		return d.Decode(new(json.RawMessage)) // not for us
	})
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("something follows the object, or the file is too large")
	}
	if x.file == nil {
		return nil, errors.New("no weight_map")
	}
	for tensor, name := range x.file {
		if path.Base(name) != name || !fs.ValidPath(name) || strings.ContainsAny(name, `\:`) || !strings.HasSuffix(name, ".safetensors") {
			return nil, fmt.Errorf("tensor %q: %q is no *.safetensors file in this directory", clip([]byte(tensor)), clip([]byte(name)))
		}
	}
	return x, nil
}

func (x *index) metadata(d *json.Decoder) error {
	return object(d, func(key string) error {
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil || key != "total_size" {
			return err
		}
		if err := json.Unmarshal(raw, &x.total); err != nil || x.total < 0 {
			return fmt.Errorf("total_size %s is no number of bytes", clip(raw))
		}
		return nil
	})
}

// files lists the files, sorted.
func (x *index) files() []string {
	var list []string
	for _, name := range x.file {
		list = append(list, name)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// check compares the index with the files that it names.
func (x *index) check(c *Checkpoint) error {
	for name, file := range x.file {
		p, ok := c.byName[name]
		if !ok {
			return fmt.Errorf("%s: tensor %q is not in %s", IndexName, name, file)
		}
		if got := c.Files[p.file].Name; got != file {
			return fmt.Errorf("%s: tensor %q is in %s, not in %s", IndexName, name, got, file)
		}
	}
	total := int64(0)
	for _, f := range c.Files {
		for _, t := range f.Header.Tensors {
			if _, ok := x.file[t.Name]; !ok {
				return fmt.Errorf("%s: tensor %q of %s is missing", IndexName, t.Name, f.Name)
			}
			total += t.End - t.Begin
		}
	}
	if x.total >= 0 && x.total != total {
		return fmt.Errorf("%s: total_size %d, the tensors have %d bytes", IndexName, x.total, total)
	}
	return nil
}
