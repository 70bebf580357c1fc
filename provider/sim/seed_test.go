package sim_test

import (
	"flag"
	"testing"
	"time"
)

var seedFlag = flag.Uint64("sim.seed", 0, "seed of the fabric; 0 takes a new one")

func seed(t *testing.T) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-sim.seed=%d", s)
	return s
}
