//go:build kvmutate

package kvtest

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/hawser-project/hawser/kv/proto"
)

var mutateTime = flag.Duration("kvsim.mutate", time.Minute, "for how long a machine without one of its guards is tried")

// TestMutations takes one guard after the other away from the machines: each time some scenario must fail, or the simulator would
// not notice if the guard were lost.
func TestMutations(t *testing.T) {
	defer proto.Mutate("none")
	for _, name := range proto.Mutations() {
		proto.Mutate(name)
		began := time.Now()
		var f *Failure
		n := uint64(0)
		for f == nil && time.Since(began) < *mutateTime {
			n++
			_, f = Run(Random(n), nil)
		}
		if f == nil {
			t.Errorf("without the guard %q %d schedules pass", name, n)
			continue
		}
		text := f.Text
		if len(text) > 150 {
			text = text[:150]
		}
		fmt.Printf("kvmutate: %-16s seed %6d  %.1f s  %s: %s\n", name, n, time.Since(began).Seconds(), f.Invariant, text)
	}
}
