package weights

import (
	"testing"
)

// TestPush: two pushes, every byte is right, in place and in a shadow, raw and quantized.
func TestPush(t *testing.T) {
	for name, m := range map[string]toy{"raw": {}, "fp8": {fp8: true}, "straddled": {fp8: true, trainers: 3}} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, func(t *testing.T, open network) {
				for _, shadow := range []bool{false, true} {
					w := newWorld(t, open, m, change{shadow: shadow})
					w.mustPush(1)
					w.mustPush(2)
				}
			})
		})
	}
}
