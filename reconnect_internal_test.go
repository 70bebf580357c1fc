package hawser

import (
	"slices"
	"testing"
	"time"
)

// Pauses are spread from 0 to a bound that doubles up to a longest one: those who lost the same engine do not come back together.
func TestRedialPausesSpread(t *testing.T) {
	for tries, bound := range map[int]time.Duration{0: redialFirst, 1: 2 * redialFirst, 5: 32 * redialFirst, 7: redialLongest, 100: redialLongest, 1 << 40: redialLongest} {
		var all []time.Duration
		for range 1000 {
			all = append(all, redialPause(tries))
		}
		slices.Sort(all)
		if all[0] < 0 || all[0] > bound/10 || all[len(all)-1] >= bound || all[len(all)-1] < bound*9/10 {
			t.Errorf("after %d tries: %v to %v, want 0 to %v", tries, all[0], all[len(all)-1], bound)
		}
		if mid := all[len(all)/2]; mid < bound*4/10 || mid > bound*6/10 {
			t.Errorf("after %d tries: the middle is %v, want half of %v", tries, mid, bound)
		}
	}
}
