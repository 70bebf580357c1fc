package layout

import (
	"bytes"
	"errors"
	"reflect"
	"testing"

	"pgregory.net/rapid"
)

// TestCode: what is encoded is decoded, and in no other form.
func TestCode(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawShape(t)
		topo := drawSide(t, s, drawPageTokens(t, len(s.groups), "pages"), false)
		b := topo.AppendBinary([]byte("x"))[1:]
		got, err := DecodeTopology(b)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*got, topo) {
			t.Fatalf("got %+v, want %+v", *got, topo)
		}
		g, err := DecodeGeometry(topo.Members[0].AppendBinary(nil))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(*g, topo.Members[0]) {
			t.Fatalf("got %+v, want %+v", *g, topo.Members[0])
		}
		cut := rapid.IntRange(0, len(b)-1).Draw(t, "cut")
		if _, err := DecodeTopology(b[:cut]); !errors.Is(err, ErrInvalid) {
			t.Fatalf("%d of %d bytes: %v, want ErrInvalid", cut, len(b), err)
		}
		if _, err := DecodeTopology(append(b, 0)); !errors.Is(err, ErrInvalid) {
			t.Fatalf("one byte too many: %v, want ErrInvalid", err)
		}
	})
}

// TestCodeSize: regular arrays take little, so that a Hello is one message.
func TestCodeSize(t *testing.T) {
	for _, m := range Builtin() {
		for _, perLayer := range []bool{false, true} {
			g, _, err := Build(Spec{Model: m, Pages: 1000, LayerRegions: perLayer})
			if err != nil {
				t.Fatal(err)
			}
			if n := len(g.AppendBinary(nil)); n > 600 {
				t.Errorf("%s, a region per layer %v: %d bytes, want at most 600", m.Name, perLayer, n)
			}
		}
	}
}

// TestCodeCanonical: a number that is longer than it need be, and a run that is cut, are refused.
func TestCodeCanonical(t *testing.T) {
	g, _, err := Build(Spec{Model: model(t, "mini", 1)})
	if err != nil {
		t.Fatal(err)
	}
	b := g.AppendBinary(nil)
	long := bytes.Clone(b)
	long = append(long[:1], append([]byte{long[1] | 0x80, 0}, long[2:]...)...)
	if _, err := DecodeGeometry(long); err == nil || err.Error() != "invalid layout: encoding is not canonical" {
		t.Errorf("a long number: %v", err)
	}
	b[0]++
	if _, err := DecodeGeometry(b); !errors.Is(err, ErrInvalid) {
		t.Errorf("another version: %v", err)
	}
}

// FuzzDecode: what is accepted is within the limits, canonical, and can be planned with.
func FuzzDecode(f *testing.F) {
	for _, m := range Builtin() {
		g, _, err := Build(Spec{Model: m, Pages: 10})
		if err != nil {
			f.Fatal(err)
		}
		f.Add((&Topology{Members: []Geometry{g}}).AppendBinary(nil), uint16(300), uint64(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, n uint16, seq uint64) {
		topo, err := DecodeTopology(data)
		if err != nil {
			if !errors.Is(err, ErrInvalid) {
				t.Fatalf("error %v is not ErrInvalid", err)
			}
			return
		}
		if again := topo.AppendBinary(nil); !bytes.Equal(again, data) {
			t.Fatalf("% x was accepted, its topology is % x", data, again)
		}
		pair, err := NewPair(topo, topo, Options{AllowSmallWrites: true})
		if err != nil {
			if !errors.Is(err, ErrInfeasible) {
				t.Fatal(err)
			}
			return
		}
		p, err := pair.Plan(pair.Spans(0, int(n)), seq)
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 && p.Bytes() == 0 {
			t.Fatalf("%d tokens move no byte", n)
		}
	})
}
