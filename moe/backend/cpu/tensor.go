package cpu

import (
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/numeric"
)

// view is a tensor whose bounds were checked.
type view struct {
	data []byte
	n, s [3]int
	size int // of an element
}

// at is where the element with these indices begins.
func (v *view) at(i, j, k int) int { return i*v.s[0] + j*v.s[1] + k*v.s[2] }

// row is the row with indices i, j, whose elements are adjacent.
func (v *view) row(i, j int) []byte {
	at := v.at(i, j, 0)
	return v.data[at : at+v.n[2]*v.size]
}

func (v *view) there() bool { return v.size > 0 }

func sizeOf(t backend.DType) int {
	switch t {
	case backend.F32, backend.I32, backend.U32:
		return 4
	case backend.BF16, backend.F16:
		return 2
	case backend.I64:
		return 8
	case backend.None:
		return 0
	}
	return 1
}

// number is the type of rows that can be computed with.
func number(t backend.DType) (numeric.Type, bool) {
	switch t {
	case backend.F32:
		return numeric.TypeF32, true
	case backend.F16:
		return numeric.TypeF16, true
	case backend.BF16:
		return numeric.TypeBF16, true
	}
	return 0, false
}

// look checks that all elements of a tensor with dims dimensions, of size bytes each, lie in its memory, and that the last dimension is
// last.
func look(name string, t *backend.Tensor, dims, last, size int) (view, error) {
	v := view{data: t.Data, n: t.Shape, s: t.Stride, size: size}
	for d := range 3 - dims {
		v.n[d] = 1
	}
	if v.s == [3]int{} {
		v.s = [3]int{v.n[1] * v.n[2] * size, v.n[2] * size, size}
	}
	end, empty := size, false
	for d, n := range v.n {
		if n < 0 || n > len(t.Data) || v.s[d] < 0 || v.s[d] > len(t.Data) {
			return v, fmt.Errorf("%w: %s has shape %v and strides %v in %d bytes", hawser.ErrInvalid, name, t.Shape, t.Stride, len(t.Data))
		}
		end += (n - 1) * v.s[d]
		empty = empty || n == 0
	}
	switch {
	case v.n[2] != last:
		return v, fmt.Errorf("%w: %s has rows of %d, want %d", hawser.ErrInvalid, name, v.n[2], last)
	case !empty && end > len(t.Data):
		return v, fmt.Errorf("%w: %s ends at byte %d of %d", hawser.ErrInvalid, name, end, len(t.Data))
	}
	return v, nil
}

// lookRows is look for a tensor with dims dimensions whose rows are moved whole.
func lookRows(name string, t *backend.Tensor, dims, last, size int) (view, error) {
	v, err := look(name, t, dims, last, size)
	if err == nil && v.s[2] != size && last > 1 {
		err = fmt.Errorf("%w: %s has elements %d bytes apart, want %d", hawser.ErrInvalid, name, v.s[2], size)
	}
	return v, err
}

func wrongType(name string, t backend.DType) error {
	return fmt.Errorf("%w: %s has type %d, which it cannot be here", hawser.ErrInvalid, name, t)
}
