package simllm

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// LayerTime is the compute time of one layer for c new tokens on s that came before: A + B*c + G*c*(s + c/2), in
// milliseconds. The last term is attention.
type LayerTime struct{ A, B, G float64 }

// fitted is a fit (error at most 3.4%) of published times of a 235-billion-parameter model on four GPUs, prompts of 4K to 128K tokens.
var fitted = LayerTime{A: 0.593, B: 3.61e-4, G: 2.60e-8}

// miniShare is how much of that time a layer of the mini geometry takes: small enough for a test, and still in proportion
// to the bytes that it makes.
const miniShare = 0.1

// DefaultLayerTime is the fitted time, a tenth of it for geometry mini, whatever part of its layers it keeps.
func DefaultLayerTime(fingerprint string) LayerTime {
	if fingerprint == "mini" || strings.HasPrefix(fingerprint, "mini/") {
		return LayerTime{fitted.A * miniShare, fitted.B * miniShare, fitted.G * miniShare}
	}
	return fitted
}

// ParseLayerTime reads a duration ("1ms": constant) or three numbers "A,B,G" in milliseconds, milliseconds per token and
// milliseconds per token squared ("0.593,3.61e-4,2.6e-8").
func ParseLayerTime(s string) (LayerTime, error) {
	bad := func(err error) (LayerTime, error) {
		return LayerTime{}, fmt.Errorf("layer time %q: want a duration like 1ms, or three numbers a,b,g in ms: %w", s, err)
	}
	parts := strings.Split(s, ",")
	if len(parts) == 1 {
		d, err := time.ParseDuration(s)
		if err != nil {
			return bad(err)
		}
		t := LayerTime{A: float64(d) / 1e6}
		return t, t.check()
	}
	if len(parts) != 3 {
		return bad(fmt.Errorf("got %d numbers", len(parts)))
	}
	var v [3]float64
	for i, p := range parts {
		f, err := strconv.ParseFloat(strings.TrimSpace(p), 64)
		if err != nil {
			return bad(err)
		}
		v[i] = f
	}
	t := LayerTime{v[0], v[1], v[2]}
	return t, t.check()
}

// longestLayer is the most that a layer takes, and that a term may be, in milliseconds: an hour, which nobody waits for.
const longestLayer = 3.6e6

func (t LayerTime) check() error {
	for _, v := range []float64{t.A, t.B, t.G} {
		if !(v >= 0 && v <= longestLayer) {
			return fmt.Errorf("layer time %g,%g,%g: a term is %v, want 0 or more and at most %g", t.A, t.B, t.G, v, longestLayer)
		}
	}
	if t == (LayerTime{}) {
		return fmt.Errorf("layer time is 0: want more, 1ns is allowed")
	}
	return nil
}

// String is what ParseLayerTime reads.
func (t LayerTime) String() string {
	if d := time.Duration(math.Round(t.A * 1e6)); t.B == 0 && t.G == 0 && float64(d)/1e6 == t.A {
		return d.String()
	}
	return fmt.Sprintf("%g,%g,%g", t.A, t.B, t.G)
}

// chunk is the part of one prompt that one pass computes: c new tokens on s that came before.
type chunk struct{ s, c int }

// pass is the time of one layer of a pass that computes several chunks.
func (t LayerTime) pass(chunks ...chunk) time.Duration {
	ms := t.A
	for _, k := range chunks {
		s, c := float64(k.s), float64(k.c)
		ms += t.B*c + t.G*c*(s+c/2)
	}
	return time.Duration(min(ms, longestLayer) * float64(time.Millisecond))
}
