package simllm

import (
	"math"
	"slices"
	"sync"
	"time"
)

// keptLayers is how many of the last layers' times are kept: some minutes of a busy engine, 256 KiB.
const keptLayers = 1 << 14

// layerTimes keeps what the last layers took, and what they should have taken.
type layerTimes struct {
	mu                sync.Mutex // guards the rest
	measured, nominal []float64  // ms
	next              int
}

func (l *layerTimes) add(measured, nominal time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.measured) < keptLayers {
		l.measured = append(l.measured, ms(measured))
		l.nominal = append(l.nominal, ms(nominal))
		return
	}
	l.measured[l.next], l.nominal[l.next] = ms(measured), ms(nominal)
	l.next = (l.next + 1) % keptLayers
}

func (l *layerTimes) quantiles() (measured, nominal Quantiles) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return quantilesOf(slices.Clone(l.measured)), quantilesOf(slices.Clone(l.nominal))
}

// Quantiles of times in milliseconds; 0 where there was nothing to measure.
type Quantiles struct{ P50, P90, P99, Max float64 }

func quantilesOf(values []float64) Quantiles {
	return Quantiles{quantile(values, 0.5), quantile(values, 0.9), quantile(values, 0.99), quantile(values, 1)}
}

// quantile sorts values and returns one of them; 0 when there are none.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[int(math.Ceil(q*float64(len(values))))-1]
}
