package hawser

import "time"

// callerSpin is how long a waiting caller looks before it sleeps: about what a sleep and a wake cost. It is Engine.callerSpin where
// there are processors for it.
const callerSpin = 20 * time.Microsecond

// spin looks at cond for a while and reports whether it became true.
func (e *Engine) spin(cond func() bool) bool {
	if cond() {
		return true
	}
	if e.callerSpin == 0 {
		return false
	}
	for start := time.Now(); time.Since(start) < e.callerSpin; {
		if cond() {
			return true
		}
	}
	return false
}
