package exec

import (
	"fmt"

	"github.com/hawser-project/hawser"
)

// LimitError: more rows come than there is room for. It wraps ErrLimit.
type LimitError struct {
	What       string // what is too small: "MaxRecv", "rows of the output", "BatchCap"
	Need, Have int    // rows
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%v: %d rows arrive, %s is %d", hawser.ErrLimit, e.Need, e.What, e.Have)
}

// Unwrap is ErrLimit.
func (e *LimitError) Unwrap() error { return hawser.ErrLimit }
