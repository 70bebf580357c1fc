package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/hawser-project/hawser/reshard"
)

// MaxHeader is the most bytes that the JSON of a header may have.
const MaxHeader = 100 << 20

// maxDims bounds shapes. Formats of tensors stop well below.
const maxDims = 32

// Header is what a file says about its data.
type Header struct {
	Tensors  []Tensor          // in order of their bytes
	Metadata map[string]string // nil: none
	Start    int64             // where the data begins in the file
}

// Tensor is a tensor of a file. Its bytes are [Begin, End) of the data, row major, little endian.
type Tensor struct {
	Name       string
	DType      reshard.DType
	Shape      []int64 // empty: a scalar
	Begin, End int64
}

// ReadHeader reads and checks the header of a file of so many bytes. Errors name what is wrong where, and nothing that they say was
// trusted to size an allocation beyond what the file has.
func ReadHeader(r io.ReaderAt, size int64) (*Header, error) {
	var length [8]byte
	if size < int64(len(length)) {
		return nil, fmt.Errorf("safetensors: %d bytes are no file: the length of the header has 8", size)
	}
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return nil, fmt.Errorf("safetensors: length of the header: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > MaxHeader || n > uint64(size)-8 {
		return nil, fmt.Errorf("safetensors: header of %d bytes in a file of %d: the limit is %d and the file", n, size, MaxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(r, 8, int64(n)), text); err != nil {
		return nil, fmt.Errorf("safetensors: header: %w", err)
	}
	h, err := parseHeader(text)
	if err != nil {
		return nil, fmt.Errorf("safetensors: header: %w", err)
	}
	h.Start = 8 + int64(n)
	if err := h.cover(size - h.Start); err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	return h, nil
}

// parseHeader reads the JSON. It goes token by token, because a map would hide a name that is there twice.
func parseHeader(text []byte) (*Header, error) {
	if !utf8.Valid(text) {
		return nil, fmt.Errorf("not UTF-8")
	}
	h := &Header{}
	d := json.NewDecoder(bytes.NewReader(text))
	err := object(d, func(name string) error {
		if name == "__metadata__" {
			var err error
			h.Metadata, err = stringMap(d)
			return err
		}
		t, err := parseTensor(d, name)
		h.Tensors = append(h.Tensors, t)
		return err
	})
	if err != nil {
		return nil, err
	}
	if rest := text[d.InputOffset():]; len(bytes.Trim(rest, " ")) > 0 {
		return nil, fmt.Errorf("%q after the object: only spaces may follow", clip(rest))
	}
	return h, nil
}

func parseTensor(d *json.Decoder, name string) (Tensor, error) {
	t := Tensor{Name: name}
	seen := 0
	err := object(d, func(field string) error {
		seen++
		switch field {
		case "dtype":
			return d.Decode(&t.DType)
		case "shape":
			var err error
			t.Shape, err = numbers(d, maxDims)
			return err
		case "data_offsets":
			ends, err := numbers(d, 2)
			if err == nil && len(ends) != 2 {
				err = fmt.Errorf("%d data_offsets, want a begin and an end", len(ends))
			}
			if err == nil {
				t.Begin, t.End = ends[0], ends[1]
			}
			return err
		}
		return fmt.Errorf("unknown field %q", field)
	})
	if err == nil && (seen != 3 || t.DType == reshard.Invalid) {
		err = fmt.Errorf("want dtype, shape and data_offsets")
	}
	if err == nil {
		err = t.check()
	}
	if err != nil {
		return t, fmt.Errorf("tensor %q: %w", clip([]byte(name)), err)
	}
	return t, nil
}

// check compares the shape with the bytes.
func (t *Tensor) check() error {
	n, err := Bytes(t.DType, t.Shape)
	switch {
	case err != nil:
		return err
	case t.End < t.Begin:
		return fmt.Errorf("bytes [%d,%d) end before they begin", t.Begin, t.End)
	case t.End-t.Begin != n:
		return fmt.Errorf("bytes [%d,%d) are %d, but %v of %v has %d", t.Begin, t.End, t.End-t.Begin, t.Shape, t.DType, n)
	}
	return nil
}

// Bytes is how many bytes a tensor has. It fails where they are more than a file can have.
func Bytes(d reshard.DType, shape []int64) (int64, error) {
	n := d.Size()
	for _, x := range shape {
		if x < 0 {
			return 0, fmt.Errorf("shape %v: negative", shape)
		}
		if x > 0 && n > math.MaxInt64/x {
			return 0, fmt.Errorf("shape %v of %v: more bytes than 2^63", shape, d)
		}
		n *= x
	}
	return n, nil
}

// cover checks that the tensors are the data: no byte is in two of them, none in no tensor, none beyond the file's end.
func (h *Header) cover(size int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	end := int64(0)
	for i, t := range h.Tensors {
		switch {
		case t.Begin < end:
			return fmt.Errorf("tensors %q and %q overlap at byte %d", h.Tensors[i-1].Name, t.Name, t.Begin)
		case t.Begin > end:
			return fmt.Errorf("bytes [%d,%d) before tensor %q belong to none", end, t.Begin, t.Name)
		case t.End > size:
			return fmt.Errorf("tensor %q ends at byte %d, the data has %d: the file is cut short", t.Name, t.End, size)
		}
		end = t.End
	}
	if end != size {
		return fmt.Errorf("the last %d of %d bytes belong to no tensor", size-end, size)
	}
	return nil
}
