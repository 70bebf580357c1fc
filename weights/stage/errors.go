package stage

import (
	"errors"
	"fmt"
)

// ErrCorrupt: the source has an infinity or a NaN where only numbers can be quantized. [NonFiniteError] says where.
var ErrCorrupt = errors.New("corrupt")

// NonFiniteError names the first element that cannot be quantized. It wraps [ErrCorrupt].
type NonFiniteError struct {
	Tensor string
	Index  []int64 // in the whole tensor, as far as the source's layout says it
	Value  float32
}

func (e *NonFiniteError) Error() string {
	return fmt.Sprintf("quantize: %s%v is %v: %v: only numbers can be quantized, or allow what is none", e.Tensor, e.Index, e.Value, ErrCorrupt)
}

func (e *NonFiniteError) Unwrap() error { return ErrCorrupt }
