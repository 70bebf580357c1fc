package cpu

import (
	"runtime"
	"sync"
)

// raised is by how much this package has raised GOMAXPROCS.
var raised struct {
	sync.Mutex
	by    int
	procs int // GOMAXPROCS as set here last; when it is not, somebody else has decided
}

// Raise adds a processor to GOMAXPROCS, for a goroutine that occupies one for good, so that the others have as many as before. lower
// takes it away again, once, unless somebody else has set GOMAXPROCS meanwhile. After the first Raise the
// Go runtime follows changes of the machine no more.
func Raise() (lower func()) {
	raised.Lock()
	defer raised.Unlock()
	now := runtime.GOMAXPROCS(0)
	if now != raised.procs {
		raised.by = 0
	}
	raised.by++
	raised.procs = now + 1
	runtime.GOMAXPROCS(raised.procs)
	return sync.OnceFunc(func() {
		raised.Lock()
		defer raised.Unlock()
		if raised.by == 0 || runtime.GOMAXPROCS(0) != raised.procs {
			return
		}
		raised.by--
		raised.procs--
		runtime.GOMAXPROCS(raised.procs)
	})
}
