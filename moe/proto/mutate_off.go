//go:build !moemutate

package proto

// broken reports whether a guard is taken away: never, and the compiler knows.
func broken(mutation) bool { return false }
