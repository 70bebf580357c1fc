package invariants

import "fmt"

// Check panics when ok is false. Callers on a hot path guard it with Enabled, so that arguments cost nothing.
func Check(ok bool, format string, args ...any) {
	if Enabled && !ok {
		panic("invariant broken: " + fmt.Sprintf(format, args...))
	}
}
