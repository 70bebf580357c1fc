package compare

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hawser-project/hawser/bench"
)

// pagesRow has samples of the given GB/s for ours and a yardstick of 10 GB/s.
func pagesRow(size uint64, gbs ...float64) bench.Row {
	r := bench.Row{Config: bench.Config{Kind: bench.Pages, Provider: "shm", Size: size, Bytes: 1e9, Rounds: len(gbs), Cold: true}, RatioOf: bench.OfThroughput}
	for _, g := range gbs {
		r.Ours.Samples = append(r.Ours.Samples, bench.Sample{Seconds: 1 / g})
		r.Yard.Samples = append(r.Yard.Samples, bench.Sample{Seconds: 1. / 10})
	}
	return r
}

func TestReports(t *testing.T) {
	imm := bench.Row{Config: bench.Config{Kind: bench.Imm, Provider: "shm", Size: 8, Bytes: 8e6}, RatioOf: bench.OfLatency, RateRatio: 3}
	imm.Ours.Latency.Rounds = []float64{1, 1.01, 1.02, 1.03, 1.04, 1.05, 1.06}
	imm.Yard.Latency.Rounds = []float64{9, 9, 9, 9, 9, 9, 9}
	faster := imm
	faster.Ours.Latency.Rounds = []float64{0.5, 0.51, 0.52, 0.53, 0.54, 0.55, 0.56}
	a := bench.Report{Rows: []bench.Row{
		pagesRow(4096, 8, 8.1, 8.2, 8.3, 8.4, 8.5, 8.6), pagesRow(65536, 8, 9, 10, 11, 12, 13, 14), pagesRow(1<<20, 8, 8, 8), imm,
		pagesRow(32, 1),
	}}
	b := bench.Report{Machine: bench.Machine{CPU: "other"}, Rows: []bench.Row{
		faster, pagesRow(65536, 8.5, 9.5, 10, 11, 12, 13, 14), pagesRow(4096, 7, 7.1, 7.2, 7.3, 7.4, 7.5, 7.6), pagesRow(1<<20, 4, 4, 4),
		pagesRow(16, 1),
	}}
	// As the tool does: through JSON.
	var rs [2]bench.Report
	for i, r := range []bench.Report{a, b} {
		r.Schema = bench.Schema
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if rs[i], err = bench.ReadReport(bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
	}
	c := Reports(rs[0], rs[1])
	want := map[string]Verdict{
		"pages 4096 GB/s": Worse, "pages 4096 ratio": Worse,
		"pages 65536 GB/s": Same, "pages 65536 ratio": Same,
		"pages 1048576 GB/s": Same, "pages 1048576 ratio": Same, // half as fast, but three rounds prove nothing
		"imm 8 latency us": Better, "imm 8 ratio": Better,
	}
	for _, ch := range c.Changes {
		key := strings.Join([]string{string(ch.Config.Kind), itoa(ch.Config.Size), ch.Name}, " ")
		if v, ok := want[key]; !ok || v != ch.Verdict {
			t.Errorf("%s: %s (change %g, p %g), want %q", key, ch.Verdict, ch.Change, ch.P, v)
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("%s is missing", key)
	}
	if len(c.OnlyA) != 1 || c.OnlyA[0].Size != 32 || len(c.OnlyB) != 1 || c.OnlyB[0].Size != 16 {
		t.Errorf("rows without a counterpart: %v and %v, want the one of 32 bytes and the one of 16", c.OnlyA, c.OnlyB)
	}
	if c.Note == "" {
		t.Error("no note says that the machines differ")
	}
	if ch := c.Changes[0]; ch.Change > -0.11 || ch.Change < -0.13 || ch.A.Median != 8.3 && ch.A.Median-8.3 > 1e-9 {
		t.Errorf("median %g, change %g, want 8.3 and -12 %%", ch.A.Median, ch.Change)
	}
}

func itoa(n uint64) string {
	text, _ := json.Marshal(n) // a number has a text
	return string(text)
}
