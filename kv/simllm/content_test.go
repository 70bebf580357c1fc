package simllm

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

var someKey = Key{Request: RequestKey("request-17"), Layer: 3, Plane: 1, Page: 9}

func TestContentVerifiesAtEveryLength(t *testing.T) {
	for n := range 300 {
		b := make([]byte, n)
		Fill(b, someKey)
		if c := Corrupt(b, someKey); c != 0 {
			t.Fatalf("%d bytes: %d corrupt, want 0", n, c)
		}
		for i := range b {
			b[i] ^= 0x10
			if c := Corrupt(b, someKey); c != 1 {
				t.Fatalf("%d bytes, byte %d flipped: %d corrupt, want 1", n, i, c)
			}
			b[i] ^= 0x10
		}
	}
}

func TestContentDiffersByKeyAndPlace(t *testing.T) {
	const n = 32 << 10
	b := make([]byte, n)
	Fill(b, someKey)
	for _, other := range []Key{
		{someKey.Request + 1, 3, 1, 9},
		{RequestKey("request-18"), 3, 1, 9},
		{someKey.Request, 4, 1, 9},
		{someKey.Request, 3, 0, 9},
		{someKey.Request, 3, 1, 8},
		{someKey.Request, 9, 1, 3},
		{someKey.Request, 1, 3, 9},
	} {
		if c := Corrupt(b, other); c < n*9/10 {
			t.Errorf("content of %+v under %+v: %d corrupt bytes of %d, want nearly all", someKey, other, c, n)
		}
	}
	if c := Corrupt(make([]byte, n), someKey); c < n*9/10 {
		t.Errorf("zeros: %d corrupt bytes of %d, want nearly all", c, n)
	}
	for _, shift := range []int{1, 8, 64, 4096} {
		// Words at a distance that is a multiple of 256 have the same lowest byte.
		if c := Corrupt(append(bytes.Clone(b[shift:]), b[:shift]...), someKey); c < n*8/10 {
			t.Errorf("shifted by %d: %d corrupt bytes of %d, want most", shift, c, n)
		}
	}
	swapped := bytes.Clone(b)
	copy(swapped[64:128], b[128:192])
	if c := Corrupt(swapped, someKey); c < 50 || c > 64 {
		t.Errorf("64 bytes from another offset: %d corrupt, want about 64", c)
	}
}

func TestRequestKeyUsesAllOfTheID(t *testing.T) {
	seen := map[uint64]string{}
	for _, id := range []string{"", "a", "b", "aa", "a\x00", "12345678", "12345679", "123456781", "1234567812345678", "1234567912345678", "1234567812345679"} {
		k := RequestKey(id)
		if other, ok := seen[k]; ok {
			t.Errorf("ids %q and %q have one key", id, other)
		}
		seen[k] = id
	}
}

func TestDifferingBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 10000 {
		x := r.Uint64()
		for range r.IntN(9) {
			x &^= 0xff << (8 * r.IntN(8))
		}
		want := 0
		for y := x; y != 0; y >>= 8 {
			if y&0xff != 0 {
				want++
			}
		}
		if got := differingBytes(x); got != want {
			t.Fatalf("differingBytes(%#x) is %d, want %d", x, got, want)
		}
	}
}

func TestContentDoesNotAllocate(t *testing.T) {
	b := make([]byte, 4096)
	if n := testing.AllocsPerRun(100, func() { Fill(b, someKey); Corrupt(b, someKey) }); n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

// The benchmarks walk over 64 MiB, more than the caches hold, in pages of 32 KiB, as Prefill and Decode do.
func benchmarkContent(b *testing.B, f func([]byte, Key)) {
	const page = 32 << 10
	all := make([]byte, 64<<20)
	for i := range len(all) / page {
		Fill(all[i*page:][:page], Key{Request: 1, Page: i})
	}
	b.SetBytes(page)
	i := 0
	for b.Loop() {
		f(all[i*page:][:page], Key{Request: 1, Page: i})
		i = (i + 1) % (len(all) / page)
	}
}

func BenchmarkFill(b *testing.B) { benchmarkContent(b, Fill) }

func BenchmarkCorrupt(b *testing.B) {
	benchmarkContent(b, func(p []byte, k Key) {
		if Corrupt(p, k) != 0 {
			b.Fatal("corrupt")
		}
	})
}
