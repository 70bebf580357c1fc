package safetensors

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/hawser-project/hawser/reshard"
)

// saved is a checkpoint of three tensors whose bytes are all their number, in files of at most so many bytes.
func saved(t *testing.T, most int64) string {
	t.Helper()
	dir := t.TempDir()
	tensors := []Tensor{
		{Name: "a", DType: reshard.BF16, Shape: []int64{4, 4}},
		{Name: "b", DType: reshard.F32, Shape: []int64{5}},
		{Name: "c", DType: reshard.U8, Shape: []int64{3}},
	}
	err := Save(dir, tensors, most, func(w io.Writer, i int) error {
		n, _ := Bytes(tensors[i].DType, tensors[i].Shape)
		_, err := w.Write(bytes.Repeat([]byte{byte(i)}, int(n)))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCheckpoint(t *testing.T) {
	for most, files := range map[int64]int{1 << 20: 1, 40: 2, 1: 3} {
		c, err := Open(os.DirFS(saved(t, most)))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if len(c.Files) != files {
			t.Errorf("%d files of at most %d bytes, want %d", len(c.Files), most, files)
		}
		for i, name := range []string{"a", "b", "c"} {
			x, ok := c.Tensor(name)
			b := make([]byte, x.End-x.Begin-1)
			if err := c.ReadAt(b, name, 1); !ok || err != nil || !bytes.Equal(b, bytes.Repeat([]byte{byte(i)}, len(b))) {
				t.Errorf("%s: %v, %v, %v", name, ok, err, b)
			}
			if err := c.ReadAt(b, name, 2); err == nil {
				t.Errorf("%s: read beyond its end", name)
			}
		}
		l := c.Layout()
		if len(l.Tensors) != 3 || len(l.Fragments) != 3 || len(l.Buffers[0]) != files {
			t.Errorf("layout %+v", l)
		}
		for _, f := range l.Fragments {
			b := make([]byte, 1)
			if _, err := c.Files[f.Buffer].at.ReadAt(b, f.Offset); err != nil || b[0] != l.Tensors[f.Tensor].Name[0]-'a' {
				t.Errorf("fragment %+v is not where its tensor is: %v %v", f, b, err)
			}
		}
	}
}

func TestCheckpointRefused(t *testing.T) {
	good := func() fstest.MapFS {
		m := fstest.MapFS{}
		dir := saved(t, 40)
		entries, err := fs.Glob(os.DirFS(dir), "*")
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range entries {
			b, err := fs.ReadFile(os.DirFS(dir), name)
			if err != nil {
				t.Fatal(err)
			}
			m[name] = &fstest.MapFile{Data: b}
		}
		return m
	}
	if c, err := Open(good()); err != nil {
		t.Fatal(err)
	} else if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	const one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
	index := func(total int, weights string) func(fstest.MapFS) {
		return func(m fstest.MapFS) {
			m[IndexName].Data = fmt.Appendf(nil, `{"metadata":{"total_size":%d},"weight_map":{%s}}`, total, weights)
		}
	}
	const both = `"a":"` + one + `","b":"` + two + `","c":"` + two + `"`
	for _, c := range []struct {
		name   string
		change func(fstest.MapFS)
		want   string
	}{
		{"file missing", func(m fstest.MapFS) { delete(m, two) }, "not exist"},
		{"file cut short", func(m fstest.MapFS) { m[two].Data = m[two].Data[:len(m[two].Data)-1] }, "cut short"},
		{"total", index(54, both), "total_size 54, the tensors have 55"},
		{"no total", index(-1, both), "total_size"},
		{"tensor of no file", index(55, both+`,"d":"`+two+`"`), `"d" is not in`},
		{"tensor of another file", index(55, `"a":"`+one+`","b":"`+one+`","c":"`+two+`"`), `"b" is in`},
		{"tensor not named", index(55, `"a":"`+one+`","b":"`+two+`"`), `"c" of`},
		{"parent directory", index(55, `"a":"../`+one+`"`), "no *.safetensors file in this directory"},
		{"absolute", index(55, `"a":"/`+one+`"`), "no *.safetensors file in this directory"},
		{"backslash", index(55, `"a":"..\\`+one+`"`), "no *.safetensors file in this directory"},
		{"not safetensors", index(55, `"a":"a.bin"`), "no *.safetensors file in this directory"},
		{"name twice", index(55, both+`,"c":"`+two+`"`), "twice"},
		{"no map", func(m fstest.MapFS) { m[IndexName].Data = []byte(`{}`) }, "no weight_map"},
		{"more after it", func(m fstest.MapFS) { m[IndexName].Data = append(m[IndexName].Data, '1') }, "follows"},
		{"no index, same tensor", func(m fstest.MapFS) { delete(m, IndexName); m["x.safetensors"] = m[one] }, "is in"},
		{"nothing", func(m fstest.MapFS) { clear(m) }, "no *.safetensors file"},
		{"directory", func(m fstest.MapFS) { delete(m, two); m[two+"/x"] = m[one] }, "regular"},
	} {
		m := good()
		c.change(m)
		if _, err := Open(m); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":5},"weight_map":{"a":"m.safetensors"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../m.safetensors"},"weight_map":{}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := parseIndex(bytes.NewReader(b))
		if err != nil {
			return
		}
		for _, name := range x.files() {
			if strings.ContainsAny(name, `/\`) {
				t.Fatalf("%q leaves the directory", name)
			}
		}
	})
}
