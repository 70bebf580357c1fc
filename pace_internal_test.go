package hawser

import (
	"testing"
	"time"
)

func TestPacerAllowsABurstAndThenARate(t *testing.T) {
	p := &pacer{rate: 10, burst: 5}
	now := time.Unix(1, 0)
	take := func(n float64, want time.Duration) {
		t.Helper()
		if got := p.takeAt(now, n); got != want {
			t.Fatalf("wait %v, want %v", got, want)
		}
	}
	for range 5 {
		take(1, 0)
	}
	take(1, 100*time.Millisecond)
	take(1, 200*time.Millisecond)
	now = now.Add(200 * time.Millisecond)
	take(1, 100*time.Millisecond)
	take(1e9, 500*time.Millisecond) // debts have an end
	now = now.Add(time.Hour)
	take(5, 0) // and what is saved, too
	take(1, 100*time.Millisecond)
}
