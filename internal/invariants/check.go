package invariants

import "fmt"

// Broken panics. Callers test the rule themselves, behind Enabled, so that an unbroken rule costs no arguments:
//
//	if invariants.Enabled && n < 0 {
//		invariants.Broken("count is %d", n)
//	}
func Broken(format string, args ...any) {
	panic("invariant broken: " + fmt.Sprintf(format, args...))
}
