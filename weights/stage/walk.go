package stage

// MaxDims is how many dimensions a piece may have.
const MaxDims = 8

// walk goes through a box, innermost dimension fastest, and keeps offsets in up to three memories, each with strides of its own.
type walk struct {
	dims   int
	shape  [MaxDims]int64
	stride [MaxDims][3]int64
	index  [MaxDims]int64
	at     [3]int64
}

// push adds a dimension inside those there are.
func (w *walk) push(n, a, b, c int64) {
	w.shape[w.dims], w.stride[w.dims] = n, [3]int64{a, b, c}
	w.dims++
}

// next goes to the next element, and reports false after the last, when it is at the first again.
//
// hot: no allocation.
func (w *walk) next() bool {
	for d := w.dims - 1; d >= 0; d-- {
		s := &w.stride[d]
		w.index[d]++
		for k := range w.at {
			w.at[k] += s[k]
		}
		if w.index[d] < w.shape[d] {
			return true
		}
		for k := range w.at {
			w.at[k] -= s[k] * w.shape[d]
		}
		w.index[d] = 0
	}
	return false
}

// gather copies n elements that are stride apart into a row.
//
// hot: no allocation.
func gather(row, src []byte, n int, stride, size int64) {
	at := int64(0)
	for i := range int64(n) {
		copy(row[i*size:(i+1)*size], src[at:at+size])
		at += stride
	}
}

// scatter is the inverse of gather.
//
// hot: no allocation.
func scatter(dst, row []byte, n int, stride, size int64) {
	at := int64(0)
	for i := range int64(n) {
		copy(dst[at:at+size], row[i*size:(i+1)*size])
		at += stride
	}
}
