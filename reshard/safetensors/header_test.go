package safetensors

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/reshard"
)

// file is a file with such a header and so many bytes of data.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, data)...)
}

func read(b []byte) (*Header, error) { return ReadHeader(bytes.NewReader(b), int64(len(b))) }

func TestHeader(t *testing.T) {
	h, err := read(file(`{"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"__metadata__":{"format":"pt"},`+
		`"a":{"data_offsets":[0,4],"dtype":"F32","shape":[]},"none":{"dtype":"U8","shape":[0,7],"data_offsets":[4,4]}}   `, 16))
	if err != nil {
		t.Fatal(err)
	}
	want := []Tensor{
		{"a", reshard.F32, []int64{}, 0, 4},
		{"none", reshard.U8, []int64{0, 7}, 4, 4},
		{"b", reshard.BF16, []int64{2, 3}, 4, 16},
	}
	if !reflect.DeepEqual(h.Tensors, want) || h.Metadata["format"] != "pt" {
		t.Errorf("%+v, %v", h.Tensors, h.Metadata)
	}
	if h, err := read(file("{}", 0)); err != nil || len(h.Tensors) != 0 {
		t.Errorf("empty: %v, %v", h, err)
	}
}

func TestHeaderRefused(t *testing.T) {
	one := func(fields string) string { return `{"x":{` + fields + `}}` }
	for _, c := range []struct {
		name, header string
		data         int
		want         string
	}{
		{"name twice", `{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, `"x" twice`},
		{"name twice, escaped", `{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"\u0078":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, `"x" twice`},
		{"field twice", one(`"dtype":"U8","shape":[1],"shape":[2],"data_offsets":[0,2]`), 2, `"shape" twice`},
		{"metadata twice", `{"__metadata__":{"a":"b","a":"c"}}`, 0, `"a" twice`},
		{"metadata no string", `{"__metadata__":{"a":1}}`, 0, "no string"},
		{"unknown field", one(`"dtype":"U8","shape":[1],"data_offsets":[0,1],"stride":[1]`), 1, `unknown field "stride"`},
		{"missing field", one(`"dtype":"U8","shape":[1]`), 1, "want dtype"},
		{"unknown type", one(`"dtype":"U7","shape":[1],"data_offsets":[0,1]`), 1, `no type "U7"`},
		{"null type", one(`"dtype":null,"shape":[1],"data_offsets":[0,1]`), 1, "want dtype"},
		{"size", one(`"dtype":"BF16","shape":[3],"data_offsets":[0,5]`), 5, "has 6"},
		{"backwards", one(`"dtype":"U8","shape":[0],"data_offsets":[1,0]`), 1, "end before they begin"},
		{"three offsets", one(`"dtype":"U8","shape":[1],"data_offsets":[0,1,1]`), 1, "more than 2"},
		{"one offset", one(`"dtype":"U8","shape":[1],"data_offsets":[0]`), 1, "1 data_offsets"},
		{"negative", one(`"dtype":"U8","shape":[-1],"data_offsets":[0,1]`), 1, "no integer"},
		{"fraction", one(`"dtype":"U8","shape":[1.5],"data_offsets":[0,1]`), 1, "no integer"},
		{"exponent", one(`"dtype":"U8","shape":[1e0],"data_offsets":[0,1]`), 1, "no integer"},
		{"product", one(`"dtype":"F64","shape":[4294967296,4294967296],"data_offsets":[0,0]`), 0, "more bytes than 2^63"},
		{"dimensions", one(`"dtype":"U8","shape":[` + strings.Repeat("1,", 32) + `1],"data_offsets":[0,1]`), 1, "more than 32"},
		{"overlap", `{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, `"x" and "y" overlap at byte 1`},
		{"same bytes", `{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2, "overlap"},
		{"hole", `{"x":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, "[0,1) before tensor"},
		{"beyond the end", one(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`), 1, "cut short"},
		{"rest", one(`"dtype":"U8","shape":[2],"data_offsets":[0,2]`), 3, "last 1 of 3 bytes"},
		{"array", `[]`, 0, "where { belongs"},
		{"text after", `{} x`, 0, "only spaces"},
		{"line after", "{}\n", 0, "only spaces"},
		{"not closed", `{"x":`, 0, "EOF"},
		{"no JSON", `{"x" 1}`, 0, "invalid character"},
		{"no UTF-8", "{\"\xff\":{}}", 0, "UTF-8"},
		{"nothing", ``, 0, "EOF"},
	} {
		if _, err := read(file(c.header, c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	long := binary.LittleEndian.AppendUint64(nil, MaxHeader+1)
	huge := binary.LittleEndian.AppendUint64(nil, 1<<63)
	for _, b := range [][]byte{nil, {1, 2, 3}, long, huge, append(binary.LittleEndian.AppendUint64(nil, 3), '{', '}')} {
		if _, err := read(b); err == nil {
			t.Errorf("%d bytes are a file", len(b))
		}
	}
	// The limit holds for files that are large enough, and nothing is allocated.
	if _, err := ReadHeader(bytes.NewReader(long), 1<<40); err == nil || !strings.Contains(err.Error(), "limit") {
		t.Errorf("a header over the limit: %v", err)
	}
}

func TestWriteReads(t *testing.T) {
	tensors := []Tensor{
		{Name: "z \"quoted\" ü", DType: reshard.BF16, Shape: []int64{3, 5}},
		{Name: "empty", DType: reshard.F32, Shape: []int64{0}},
		{Name: "a", DType: reshard.U8, Shape: nil},
	}
	var b bytes.Buffer
	err := Write(&b, tensors, map[string]string{"k": "v"}, func(w io.Writer, i int) error {
		n, err := Bytes(tensors[i].DType, tensors[i].Shape)
		if err == nil {
			_, err = w.Write(bytes.Repeat([]byte{byte(i + 1)}, int(n)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	h, err := read(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if h.Start%8 != 0 || len(h.Tensors) != 3 || h.Metadata["k"] != "v" {
		t.Errorf("%+v", h)
	}
	for _, x := range h.Tensors {
		for _, w := range tensors {
			if w.Name == x.Name && (w.DType != x.DType || w.Begin != x.Begin || w.End != x.End || fmt.Sprint(w.Shape) != fmt.Sprint(x.Shape)) {
				t.Errorf("%+v, want %+v", x, w)
			}
		}
	}
	short := func(w io.Writer, i int) error { _, err := w.Write([]byte{1}); return err }
	if err := Write(io.Discard, tensors, nil, short); err == nil || !strings.Contains(err.Error(), "1 bytes, want 30") {
		t.Errorf("too few bytes: %v", err)
	}
	if err := Write(io.Discard, []Tensor{tensors[0], tensors[0]}, nil, short); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Errorf("a tensor twice: %v", err)
	}
}

// What is accepted has every byte in one tensor, and is the same after it was written again.
func FuzzSafetensorsHeader(f *testing.F) {
	f.Add(file(`{"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 4))
	f.Add(file(`{"__metadata__":{"format":"pt"},"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"BF16","shape":[1],"data_offsets":[2,4]}}  `, 4))
	f.Add(file(`{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 2))
	f.Add(file(`{}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := read(b)
		if err != nil {
			return
		}
		owner := make([]int, len(b)-int(h.Start))
		for _, x := range h.Tensors {
			for i := x.Begin; i < x.End; i++ {
				owner[i]++
			}
		}
		for i, n := range owner {
			if n != 1 {
				t.Fatalf("byte %d is in %d tensors", i, n)
			}
		}
		var out bytes.Buffer
		err = Write(&out, append([]Tensor{}, h.Tensors...), h.Metadata, func(w io.Writer, i int) error {
			x := h.Tensors[i]
			_, err := w.Write(b[h.Start+x.Begin : h.Start+x.End])
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		again, err := read(out.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		again.Start = h.Start
		if len(h.Tensors)+len(again.Tensors) > 0 && !reflect.DeepEqual(sorted(h), sorted(again)) || !reflect.DeepEqual(h.Metadata, again.Metadata) {
			t.Fatalf("%+v\nwritten again\n%+v", h, again)
		}
	})
}

func sorted(h *Header) map[string]Tensor {
	m := map[string]Tensor{}
	for _, x := range h.Tensors {
		m[x.Name] = x
	}
	return m
}
