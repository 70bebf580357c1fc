package simllm

import "runtime"

// yielder lets other goroutines run after every yieldBytes of work. Without it one that wakes up, to take a message for
// example, waits until the runtime preempts this one: 10 ms.
type yielder struct{ bytes uint64 }

// yieldBytes take some tens of microseconds to make or check.
const yieldBytes = 256 << 10

func (y *yielder) did(bytes uint64) {
	if y.bytes += bytes; y.bytes >= yieldBytes {
		y.bytes = 0
		runtime.Gosched()
	}
}
