package simllm

import (
	"math"
	"strings"
	"testing"
	"time"
)

// TestLayerTimeFitsPublishedTimes holds the fit to the times that it was made from: the mean over the chunks of a prompt.
func TestLayerTimeFitsPublishedTimes(t *testing.T) {
	const longest = 16384 // tokens of a pass
	for _, c := range []struct {
		tokens int
		ms     float64
	}{{4096, 2.267}, {8192, 4.578}, {16384, 9.860}, {32768, 13.295}, {65536, 20.344}, {131072, 34.895}} {
		var sum time.Duration
		chunks := 0
		for s := 0; s < c.tokens; s += longest {
			sum += fitted.pass(chunk{s, min(longest, c.tokens-s)})
			chunks++
		}
		got := float64(sum) / float64(chunks) / 1e6
		t.Logf("%6d tokens: %6.3f ms a layer, published %6.3f: %+.1f%%", c.tokens, got, c.ms, 100*(got/c.ms-1))
		if math.Abs(got/c.ms-1) > 0.035 {
			t.Errorf("%d tokens: %.3f ms, want %.3f within 3.5%%", c.tokens, got, c.ms)
		}
	}
}

func TestParseLayerTime(t *testing.T) {
	for _, c := range []struct {
		in   string
		want LayerTime
	}{
		{"1ms", LayerTime{A: 1}},
		{"250us", LayerTime{A: 0.25}},
		{"0.593,3.61e-4,2.6e-8", fitted},
		{"0, 1e-3, 0", LayerTime{B: 1e-3}},
	} {
		got, err := ParseLayerTime(c.in)
		if err != nil || got != c.want {
			t.Errorf("%q: got %v, %v; want %v", c.in, got, err, c.want)
		}
		if again, err := ParseLayerTime(got.String()); err != nil || again != got {
			t.Errorf("%q prints %q, which is read as %v, %v", c.in, got, again, err)
		}
	}
	for in, want := range map[string]string{
		"":           "want a duration",
		"1":          "want a duration",
		"1,2":        "got 2 numbers",
		"1,2,x":      "want a duration",
		"-1ms":       "want 0 or more",
		"1,NaN,0":    "want 0 or more",
		"+Inf,0,0":   "want 0 or more",
		"0s":         "layer time is 0",
		"1,2,3,4,5":  "got 5 numbers",
		"1ms,2ms,3s": "want a duration",
	} {
		if got, err := ParseLayerTime(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, %v; want an error with %q", in, got, err, want)
		}
	}
}

func TestMiniTakesATenth(t *testing.T) {
	k := chunk{16384, 4096}
	full := DefaultLayerTime("qwen3-8b").pass(k)
	for _, name := range []string{"mini", "mini/4-of-8-layers"} {
		if got := DefaultLayerTime(name).pass(k); got < full/10-2 || got > full/10+2 {
			t.Errorf("%s: %v, want a tenth of %v", name, got, full)
		}
	}
	if DefaultLayerTime("minimal").pass(k) != full {
		t.Error("a name that only begins like mini is taken for it")
	}
}
