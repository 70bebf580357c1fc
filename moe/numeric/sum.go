package numeric

// Weigh adds weighted rows to sums, which are float32: acc[i] += w[j] * row j[i] for j ascending, where row j begins at rows[at[j]]. Each
// product and each sum is rounded, none is fused. It panics if a row reaches beyond rows. What NaN it makes is not the same on every
// machine: [FromSums] is for that.
//
// hot: no allocation.
func Weigh(acc, rows []byte, t Type, at []int, w []float32) {
	n := len(acc) / 4
	acc, w = acc[:4*n], w[:len(at)]
	for _, a := range at {
		_ = rows[a : a+n*t.Size()]
	}
	done := weighFast(acc, rows, t, at, w)
	for j, a := range at {
		weighScalar(acc[4*done:], rows[a+done*t.Size():a+n*t.Size()], t, w[j])
	}
}

// FromSums rounds sums to a type, float32 too. Every NaN becomes the quiet one without sign and payload. It panics if dst is too short.
//
// hot: no allocation.
func FromSums(dst []byte, to Type, acc []byte) {
	n := len(acc) / 4
	dst, acc = dst[:n*to.Size()], acc[:4*n]
	done := fromSumsFast(dst, to, acc)
	fromSumsScalar(dst[done*to.Size():], to, acc[4*done:])
}
