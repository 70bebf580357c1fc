package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Write writes a file. The tensors' bytes come one after the other, in the order given; data writes those of tensor i, all of them. Begin
// and End of the tensors are set.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string, data func(w io.Writer, i int) error) error {
	text, err := header(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors: %w", err)
	}
	out := &counting{w: w}
	out.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(text))))
	out.Write(text)
	start := out.n
	for i, t := range tensors {
		if err := data(out, i); err != nil {
			return fmt.Errorf("safetensors: data of %s: %w", t.Name, err)
		}
		if out.err == nil && out.n-start != t.End {
			return fmt.Errorf("safetensors: data of %s: %d bytes, want %d", t.Name, out.n-start-t.Begin, t.End-t.Begin)
		}
	}
	return out.err
}

// header is the JSON of a header, with spaces so that the data is aligned to 8 bytes.
func header(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	item := func(key string, value any) error {
		k, err := json.Marshal(key)
		if err != nil {
			return err
		}
		v, err := json.Marshal(value)
		if err != nil {
			return err
		}
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		b.Write(k)
		b.WriteByte(':')
		b.Write(v)
		return nil
	}
	if metadata != nil {
		if err := item("__metadata__", metadata); err != nil {
			return nil, err
		}
	}
	seen := map[string]bool{"__metadata__": true}
	at := int64(0)
	for i := range tensors {
		t := &tensors[i]
		n, err := Bytes(t.DType, t.Shape)
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
		if seen[t.Name] {
			return nil, fmt.Errorf("tensor %q twice, or a name that is taken", t.Name)
		}
		seen[t.Name] = true
		t.Begin, t.End = at, at+n
		at = t.End
		err = item(t.Name, map[string]any{"dtype": t.DType, "shape": append([]int64{}, t.Shape...), "data_offsets": [2]int64{t.Begin, t.End}})
		if err != nil {
			return nil, fmt.Errorf("tensor %q: %w", t.Name, err)
		}
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if b.Len() > MaxHeader {
		return nil, fmt.Errorf("header of %d bytes: the limit is %d", b.Len(), MaxHeader)
	}
	return b.Bytes(), nil
}

// counting counts what it writes and keeps the first error.
type counting struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counting) Write(b []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.w.Write(b)
	c.n += int64(n)
	c.err = err
	return n, err
}

// Save writes a checkpoint into a directory: files of at most so many bytes of data, or one tensor, and an index if there are several.
// data writes the bytes of tensor i.
func Save(dir string, tensors []Tensor, most int64, data func(w io.Writer, i int) error) error {
	var files [][]int
	room := int64(0)
	total := int64(0)
	for i, t := range tensors {
		n, err := Bytes(t.DType, t.Shape)
		if err != nil {
			return fmt.Errorf("safetensors: tensor %q: %w", t.Name, err)
		}
		if len(files) == 0 || n > room {
			files = append(files, nil)
			room = most
		}
		files[len(files)-1] = append(files[len(files)-1], i)
		room -= n
		total += n
	}
	index := map[string]string{}
	for k, file := range files {
		name := "model.safetensors"
		if len(files) > 1 {
			name = fmt.Sprintf("model-%05d-of-%05d.safetensors", k+1, len(files))
		}
		part := make([]Tensor, len(file))
		for i, t := range file {
			part[i] = tensors[t]
			index[tensors[t].Name] = name
		}
		err := create(filepath.Join(dir, name), func(w io.Writer) error {
			return Write(w, part, map[string]string{"format": "pt"}, func(w io.Writer, i int) error { return data(w, file[i]) })
		})
		if err != nil {
			return err
		}
	}
	if len(files) < 2 {
		return nil
	}
	return create(filepath.Join(dir, IndexName), func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(map[string]any{"metadata": map[string]int64{"total_size": total}, "weight_map": index})
	})
}

func create(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = write(w)
	if err == nil {
		err = w.Flush()
	}
	return errors.Join(err, f.Close())
}
