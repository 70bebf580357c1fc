package stage

import (
	"bytes"
	"testing"

	"github.com/cespare/xxhash/v2"
)

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*i>>3 ^ i>>11)
	}
	return b
}

// The digest is the sum of seeded hashes of cells, so that neither the order of runs nor where cells are hashed matters.
func TestDigestIsTheSumOfCells(t *testing.T) {
	b := pattern(3*Cell + 100)
	want := uint64(0)
	for at := 0; at < len(b); at += Cell {
		h := xxhash.NewWithSeed(uint64(777 + at))
		_, _ = h.Write(b[at:min(len(b), at+Cell)])
		want += h.Sum64()
	}
	if got := Digest(All, 5, 777, b); got != want {
		t.Fatalf("%#x, want %#x", got, want)
	}
	if Digest(Off, 5, 777, b) != 0 || Digest(All, 5, 777, nil) != 0 {
		t.Fatal("a digest of nothing")
	}
}

// Sixteen versions in a row look at every cell once.
func TestSampledCoversAll(t *testing.T) {
	for _, offset := range []int64{0, 100, 5 * Cell, 123456789} {
		b := pattern(40*Cell + 4711)
		sum := uint64(0)
		for v := range uint64(16) {
			sum += Digest(Sampled, 1000+v, offset, b)
		}
		if want := Digest(All, 0, offset, b); sum != want {
			t.Fatalf("at %d: %#x, want %#x", offset, sum, want)
		}
	}
}

// What goes wrong changes the sum: a flipped bit, a run in another's place, two exchanged runs.
func TestDigestSees(t *testing.T) {
	a, b := pattern(Cell), pattern(2 * Cell)[Cell:]
	good := Digest(All, 0, 0, a) + Digest(All, 0, Cell, b)
	if Digest(All, 0, 0, b)+Digest(All, 0, Cell, a) == good {
		t.Fatal("exchanged runs are not seen")
	}
	if Digest(All, 0, 0, a)+Digest(All, 0, 2*Cell, b) == good {
		t.Fatal("another place is not seen")
	}
	for _, bit := range []int{0, 1, 8*Cell - 1} {
		a[bit/8] ^= 1 << (bit % 8)
		if Digest(All, 0, 0, a)+Digest(All, 0, Cell, b) == good {
			t.Fatalf("bit %d is not seen", bit)
		}
		a[bit/8] ^= 1 << (bit % 8)
	}
}

func TestDigestDoesNotAllocate(t *testing.T) {
	b := pattern(4 * Cell)
	if n := testing.AllocsPerRun(20, func() { Digest(All, 0, 3, b) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func root(parts ...any) [32]byte {
	r := NewRoot()
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			r.Begin(p)
		case []byte:
			r.Add(p)
		}
	}
	return r.Sum()
}

// The root depends on names and bytes, not on how they are added.
func TestRoot(t *testing.T) {
	b := pattern(5*RootCell + 33)
	want := root("a", b, "b", b[:100])
	if root("a", b[:1], b[1:RootCell+7], b[RootCell+7:], "b", b[:50], b[50:100]) != want {
		t.Fatal("depends on how bytes are added")
	}
	c := bytes.Clone(b)
	c[5*RootCell+32] ^= 1
	seen := map[[32]byte]string{want: "all"}
	for name, other := range map[string][32]byte{
		"bit": root("a", c, "b", b[:100]), "name": root("a", b, "c", b[:100]), "border": root("a", b, b[:1], "b", b[1:100]),
		"empty": root("a", b, "b", b[:100], "c"), "none": root(), "less": root("a", b), "order": root("b", b[:100], "a", b),
	} {
		if was := seen[other]; was != "" {
			t.Fatalf("%s and %s have one root", name, was)
		}
		seen[other] = name
	}
}

func BenchmarkDigest(b *testing.B) {
	data := pattern(16 << 20)
	for v, name := range []string{"sampled", "all"} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				Digest(Verify(v), 0, 0, data)
			}
		})
	}
	b.Run("root", func(b *testing.B) {
		b.SetBytes(int64(len(data)))
		for b.Loop() {
			root("a", data)
		}
	})
}
