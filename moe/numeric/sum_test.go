package numeric

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
)

// sumWeights are ordinary ones, of both signs, and such that products are subnormal, overflow, or are no numbers.
var sumWeights = []float32{1, 0.1, -0.37, 1e-30, 3e38, 0, float32(math.Inf(1)), float32(math.NaN())}

// naiveWeigh rounds every product and every sum of two once: in float64 the product is exact, and the sum rounded twice is harmless.
func naiveWeigh(acc float32, w, x float32) float32 {
	return float32(float64(acc) + float64(float32(float64(w)*float64(x))))
}

// sameSum compares sums; NaN are alike.
func sameSum(a, b float32) bool {
	return math.Float32bits(a) == math.Float32bits(b) || a != a && b != b
}

// Every number of every type, by every weight, in pairs of rows of which the second one is turned around.
func TestWeigh(t *testing.T) {
	for _, typ := range types {
		eachRow(typ, func(row []byte) {
			size := typ.Size()
			n := len(row) / size
			pair := make([]byte, 0, 2*len(row)+size)
			pair = append(append(pair, row...), make([]byte, size)...) // a gap
			for i := n - 1; i >= 0; i-- {
				pair = append(pair, row[i*size:(i+1)*size]...)
			}
			for i := 0; i < len(sumWeights); i += 2 {
				w, v := sumWeights[i], sumWeights[i+1]
				acc := bytes.Repeat([]byte{0xaa}, 4*n+8)
				for i := range n {
					binary.LittleEndian.PutUint32(acc[4*i:], math.Float32bits(float32(i%5)*0.3-0.5))
				}
				Weigh(acc[:4*n], pair, typ, []int{0, len(row) + size}, []float32{w, v})
				for i := range n {
					want := naiveWeigh(naiveWeigh(float32(i%5)*0.3-0.5, w, At(row, typ, i)), v, At(row, typ, n-1-i))
					if got := At(acc, TypeF32, i); !sameSum(got, want) {
						t.Fatalf("%v: number %d of %d, by %v and %v: %v, want %v", typ, i, n, w, v, got, want)
					}
				}
				unharmed(t, acc[4*n:])
			}
		})
	}
}

func TestWeighBounds(t *testing.T) {
	for name, f := range map[string]func(){
		"row":     func() { Weigh(make([]byte, 4*40), make([]byte, 2*80), TypeBF16, []int{0, 81}, []float32{1, 1}) },
		"before":  func() { Weigh(make([]byte, 4*40), make([]byte, 2*80), TypeBF16, []int{-2}, []float32{1}) },
		"weights": func() { Weigh(make([]byte, 4*40), make([]byte, 2*80), TypeBF16, []int{0, 0}, []float32{1}) },
		"sums":    func() { FromSums(make([]byte, 2*39), TypeBF16, make([]byte, 4*40)) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Fatal("did not panic")
				}
			}()
			f()
		})
	}
	Weigh(nil, nil, TypeF32, nil, nil)
	Weigh(make([]byte, 4*64), nil, TypeF32, nil, nil)
}

func TestFromSums(t *testing.T) {
	for _, to := range types {
		eachRow(TypeF32, func(row []byte) {
			n, size := len(row)/4, to.Size()
			dst := bytes.Repeat([]byte{0xaa}, n*size+8)
			FromSums(dst[:n*size], to, row)
			for i := range n {
				f := At(row, TypeF32, i)
				want := put(nil, to, bitsAs(to, f))
				if f != f {
					want = put(nil, to, map[Type]uint32{TypeF32: 0x7fc00000, TypeF16: 0x7e00, TypeBF16: 0x7fc0}[to])
				}
				if !bytes.Equal(dst[i*size:][:size], want) {
					t.Fatalf("%v to %v: %x, want %x (number %d of %d)", f, to, dst[i*size:][:size], want, i, n)
				}
			}
			unharmed(t, dst[n*size:])
		})
	}
}

// The largest number of everything, with NaN anywhere.
func TestMaxAbsNumber(t *testing.T) {
	for _, typ := range types {
		eachRow(typ, func(row []byte) {
			want := float32(0)
			for i := range len(row) / typ.Size() {
				if v := float32(math.Abs(float64(At(row, typ, i)))); v > want {
					want = v
				}
			}
			if got := MaxAbsNumber(row, typ); got != want {
				t.Fatalf("%v: %v of %d, want %v", typ, got, len(row)/typ.Size(), want)
			}
		})
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		typ := types[rng.IntN(3)]
		n := 1 + rng.IntN(130)
		var row []byte
		want := float32(0)
		for range n {
			x := float32(rng.NormFloat64())
			if rng.IntN(3) == 0 {
				x = float32(math.NaN())
			}
			row = put(row, typ, bitsAs(typ, x))
			if v := At(row, typ, len(row)/typ.Size()-1); v == v {
				want = max(want, float32(math.Abs(float64(v))))
			}
		}
		if got := MaxAbsNumber(row, typ); got != want {
			t.Fatalf("%v: %v, want %v of %x", typ, got, want, row)
		}
	}
}

// Both forms give the same bytes, once sums are rounded.
func FuzzSums(f *testing.F) {
	f.Add(uint64(1), uint8(2), uint8(3), uint16(70), []byte{0x80, 0x7f, 0xc0, 0xff, 1, 0})
	f.Add(uint64(7), uint8(1), uint8(1), uint16(33), []byte{0, 0x7c, 1, 0x7c})
	f.Add(uint64(9), uint8(0), uint8(70), uint16(200), []byte{0, 0, 0x80, 0x7f, 0, 0, 0x80, 0xff})
	f.Fuzz(func(t *testing.T, seed uint64, typ, k uint8, n uint16, bits []byte) {
		from, count := types[typ%3], int(n%1024)
		rng := rand.New(rand.NewPCG(seed, 1))
		random := func(size int) []byte {
			b := make([]byte, size)
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			if len(bits) > 0 && size > len(bits) {
				copy(b[rng.IntN(size-len(bits)):], bits)
			}
			return b
		}
		rows := random((int(k) + 1) * (count + 1) * from.Size())
		acc := random(4 * count)
		slow := bytes.Clone(acc)
		at, w := make([]int, k), make([]float32, k)
		for i := range at {
			at[i] = rng.IntN(len(rows) - count*from.Size() + 1)
			w[i] = math.Float32frombits(rng.Uint32())
		}
		Weigh(acc, rows, from, at, w)
		for i := range at {
			weighScalar(slow, rows[at[i]:at[i]+count*from.Size()], from, w[i])
		}
		for _, to := range types {
			a, b := make([]byte, count*to.Size()), make([]byte, count*to.Size())
			FromSums(a, to, acc)
			fromSumsScalar(b, to, slow)
			if !bytes.Equal(a, b) {
				t.Fatalf("%v: %x, scalar %x", to, a, b)
			}
		}
	})
}
