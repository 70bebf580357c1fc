package hawser

import (
	"runtime"
	"time"
)

// callerSpin is how long a waiting caller looks before it sleeps: about what a sleep and a wake cost.
const callerSpin = 20 * time.Microsecond

// spinCores is the number of processors from which on a caller may spin: below it, it would hold up the worker that it waits for.
const spinCores = 4

// spin looks at cond for a while and reports whether it became true.
func spin(cond func() bool) bool {
	if cond() {
		return true
	}
	if runtime.GOMAXPROCS(0) < spinCores {
		return false
	}
	for start := time.Now(); time.Since(start) < callerSpin; {
		if cond() {
			return true
		}
	}
	return false
}
