package weightsim

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/schedule"
)

// shape is a plan in which each source sends runs runs of size bytes to each destination in each stage, each run staged from twice its
// bytes. The destinations are rotated, unless same.
type shape struct {
	sources, dests, stages, runs int
	size                         int64
	same                         bool
	only                         func(src, dst, stage int) bool // nil: all
	maxima                       bool                           // sources 2i and 2i+1 share blocks
}

func (x shape) slices() (sources, dests []*reshard.Slice) {
	var names []string
	for range x.stages {
		names = append(names, "layer")
	}
	for i := range x.dests {
		dests = append(dests, &reshard.Slice{Rank: i, Stages: names, Buffers: []int64{int64(x.sources*x.stages*x.runs) * x.size}})
	}
	for i := range x.sources {
		s := &reshard.Slice{Source: true, Rank: i, Stages: names, Buffers: []int64{int64(x.stages*x.dests*x.runs) * x.size * 2}}
		for stage := range x.stages {
			if x.maxima {
				s.Amax = append(s.Amax, reshard.Amax{Stage: stage, Table: 4, Peers: []reshard.Exchange{{Rank: i ^ 1, Blocks: []reshard.BlockRange{{First: 0, Len: 4}}}}})
			}
			for k := range x.dests * x.runs {
				to := (k/x.runs + i*x.dests/x.sources) % x.dests
				if x.same {
					to = k / x.runs
				}
				if x.only != nil && !x.only(i, to, stage) {
					continue
				}
				r := reshard.Run{Peer: to, Stage: stage, Offset: int64((stage*x.sources+i)*x.runs+k%x.runs) * x.size, Len: x.size}
				s.Tasks = append(s.Tasks, reshard.Task{
					Stage: stage, Size: x.size, Runs: []reshard.Run{r},
					Pieces: []reshard.Piece{{From: reshard.BF16, To: reshard.F8E4M3, Shape: []int64{x.size}}},
				})
				r.Peer, r.From = i, 0
				dests[to].Runs = append(dests[to].Runs, r)
			}
		}
		sources = append(sources, s)
	}
	return sources, dests
}

func (x shape) simulate(t testing.TB, o Options) *Timeline {
	t.Helper()
	s, d := x.slices()
	begin := time.Now()
	r, err := Simulate(t.Context(), s, d, x.repair, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d -> %d: start %v, first byte %v, last byte %v, total %v, %.3f of the floor %v; %d events in %v", x.sources, x.dests, r.Start,
		r.FirstByte, r.LastByte, r.Total, r.share(), r.Floor, r.Events, time.Since(begin).Round(time.Millisecond))
	return r
}

// repair has the neighbour of each lost source send its runs, too.
func (x shape) repair(lost []int, verified func(dst, stage int) bool) (Repaired, error) {
	x.only = func(_, dst, stage int) bool { return !verified(dst, stage) }
	sources, dests := x.slices()
	for _, l := range lost {
		heir := sources[(l+1)%len(sources)]
		heir.Tasks = append(heir.Tasks, sources[l].Tasks...)
		slices.SortStableFunc(heir.Tasks, func(a, b reshard.Task) int { return a.Stage - b.Stage })
		for _, d := range dests {
			for i := range d.Runs {
				if d.Runs[i].Peer == l {
					d.Runs[i].Peer = heir.Rank
				}
			}
		}
	}
	sources = slices.DeleteFunc(sources, func(s *reshard.Slice) bool { return slices.Contains(lost, s.Rank) })
	return Repaired{Sources: sources, Dests: dests, Bytes: 1 << 20}, nil
}

// small is a push of 16 sources to 8 destinations that takes some 40 ms at 400 Gbit/s.
func small() shape { return shape{sources: 16, dests: 8, stages: 8, runs: 2, size: 8 << 20} }

func onGPU() Options { return Options{CopyRate: -1} }

// A push moves what the plan says, takes longer than the floor, and not much longer.
func TestPushIsNearItsFloor(t *testing.T) {
	x := small()
	r := x.simulate(t, Options{})
	want := int64(x.sources*x.stages*x.runs) * x.size
	if r.MaxIn != want || r.Bytes != want*int64(x.dests) || r.MaxOut != want/2 || r.Writes != int64(x.sources*x.dests*x.stages*x.runs) {
		t.Errorf("%d bytes in, %d out, %d in all, %d writes", r.MaxIn, r.MaxOut, r.Bytes, r.Writes)
	}
	if floor := took(want*8, 400e9); r.Floor != floor || r.LastByte < floor || r.share() > 1.10 {
		t.Errorf("floor %v, want %v; last byte %v; %.3f of it", r.Floor, floor, r.LastByte, r.share())
	}
	if r.Start <= 0 || r.FirstByte < r.Start/2 || r.LastByte <= r.FirstByte || r.Total <= r.LastByte || r.Stale != 0 {
		t.Errorf("%+v", r)
	}
	for _, p := range r.Publishers {
		if p.Copied != 2*p.Bytes || p.Copies != p.Stages || p.Peak > 1<<30 || p.End <= p.First || p.End > r.Total {
			t.Errorf("publisher %+v", p)
		}
	}
}

// Depth repairs order: with the same order everywhere one destination at a time is everybody's, and many at once are not.
func TestWindowRepairsOrder(t *testing.T) {
	x := small()
	x.same = true
	var last float64
	for i, w := range []int{1, 4, 16} {
		o := onGPU()
		o.Same, o.Limits = true, schedule.Limits{Window: w, PerDest: 1}
		s := x.simulate(t, o).share()
		if i > 0 && s >= last {
			t.Errorf("window %d: %.3f of the floor, %.3f with a smaller one", w, s, last)
		}
		last = s
	}
	o := onGPU()
	o.Limits = schedule.Limits{Window: 1, PerDest: 1}
	if s := small().simulate(t, o).share(); s > 1.1 {
		t.Errorf("rotated, one at a time: %.3f of the floor", s)
	}
}

// Twice the line is half the time; what copies and staging take is hidden, until it is the longest.
func TestTimesFollowTheOptions(t *testing.T) {
	x := small()
	slow, fast := x.simulate(t, onGPU()), x.simulate(t, Options{CopyRate: -1, NICs: []sim.NIC{Line(800e9)}})
	if q := float64(slow.Total) / float64(fast.Total); q < 1.85 || q > 2.05 {
		t.Errorf("twice the line: %.2f times as fast", q)
	}
	copies := x.simulate(t, Options{CopyRate: 10e9})
	if want := took(2*x.bytesOut(), 10e9); copies.Total < want || float64(copies.Total) > 1.05*float64(want) {
		t.Errorf("copies take %v, the push %v", want, copies.Total)
	}
	tight := x.simulate(t, Options{Watermark: 1, Limits: schedule.Limits{Window: 1, PerDest: 1}})
	if p := tight.Mean().Peak; p > 2*x.size+schedule.Align {
		t.Errorf("%d bytes of staging, room for two tasks of %d", p, x.size)
	}
	half := x.simulate(t, Options{Hosts: map[string][]sim.NIC{"infer-3": {Line(200e9)}}})
	if q := float64(half.Total) / float64(slow.Total); q < 1.85 || q > 2.05 {
		t.Errorf("one slow receiver: %.2f times as long", q)
	}
}

func (x shape) bytesOut() int64 { return int64(x.dests*x.stages*x.runs) * x.size }

// Stages whose blocks straddle shards wait for the partner's maxima, in one order, and nobody waits for ever.
func TestMaximaAreExchanged(t *testing.T) {
	x := shape{sources: 4, dests: 4, stages: 5, runs: 2, size: 4 << 20}
	plain := x.simulate(t, Options{})
	x.maxima = true
	r := x.simulate(t, Options{})
	if r.Total <= plain.Total || r.Mean().Amax == 0 || plain.Mean().Amax != 0 {
		t.Errorf("%v with maxima (%v), %v without", r.Total, r.Mean().Amax, plain.Total)
	}
	x.only = func(src, _, stage int) bool { return src != 2 || stage != 1 } // has a share of the blocks, and nothing to send
	x.simulate(t, Options{})
}

// Equal pushes are equal.
func TestSimulationRepeats(t *testing.T) {
	x := shape{sources: 5, dests: 3, stages: 3, runs: 3, size: 3 << 20}
	a, b := x.simulate(t, Options{Seed: 4}), x.simulate(t, Options{Seed: 4})
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%+v\n%+v", a, b)
	}
}

// On networks without order one write of each stage is in flight to each destination, and several rails share what there is.
func TestOtherNetworks(t *testing.T) {
	x := small()
	for name, nics := range map[string][]sim.NIC{"efa": sim.EFA2x200(), "eight": Split(400e9, 8)} {
		if s := x.simulate(t, Options{NICs: nics}).share(); s > 1.25 {
			t.Errorf("%s: %.3f of the floor", name, s)
		}
	}
}

// When a card dies its writes go over the others: nothing is lost, and nothing counted twice.
func TestRailLoss(t *testing.T) {
	x := small()
	whole := x.simulate(t, Options{NICs: Split(400e9, 8)})
	for _, place := range []string{"infer-3/nic2", "train-7/nic0"} {
		notes := 0
		r := x.simulate(t, Options{
			NICs: Split(400e9, 8), Faults: []Fault{{Place: place, Share: 0.4}}, RetryTimeout: 5 * time.Millisecond,
			Note: func(time.Duration, string) { notes++ },
		})
		if q := float64(r.Total) / float64(whole.Total); q < 1 || q > 1.5 || notes == 0 {
			t.Errorf("%s: %.2f times as long, %d notes", place, q, notes)
		}
	}
}

// When a trainer dies the others stop, what is missing is planned again, and stages that are complete are not sent again.
func TestTrainerDeath(t *testing.T) {
	x := small()
	whole := x.simulate(t, Options{})
	o := Options{Faults: []Fault{{Place: "train-7", Share: 0.5}}, Detect: time.Millisecond, Replan: 2 * time.Millisecond}
	r := x.simulate(t, o)
	if r.Repaired == 0 || r.Repaired >= r.LastByte || r.Total <= whole.Total || r.Resent <= 0 || r.Resent >= r.Bytes*3/4 || r.Stale != 0 {
		t.Errorf("%+v", r)
	}
	if q := float64(r.Total) / float64(whole.Total); q > 1.8 {
		t.Errorf("%.2f times as long", q)
	}
}

func TestRunFails(t *testing.T) {
	x := small()
	s, d := x.slices()
	over, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	cancel(cause)
	for name, c := range map[string]struct {
		ctx  context.Context
		o    Options
		text string
	}{
		"cancelled":         {over, Options{}, "enough"},
		"no such host":      {t.Context(), Options{Faults: []Fault{{Place: "train-99"}}}, `"train-99": there is no such host`},
		"no repair":         {t.Context(), Options{Faults: []Fault{{Place: "train-1", Share: 0.1}}}, "no plan to repair"},
		"death of receiver": {t.Context(), Options{Faults: []Fault{{Place: "infer-1", Share: 0.1}}}, "only the death of trainers"},
	} {
		if _, err := Simulate(c.ctx, s, d, nil, c.o); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %q", name, err, c.text)
		}
	}
	none := func([]int, func(int, int) bool) (Repaired, error) { return Repaired{}, cause }
	o := Options{Faults: []Fault{{Place: "train-1", Share: 0.1}}}
	if _, err := Simulate(t.Context(), s, d, none, o); !errors.Is(err, cause) {
		t.Errorf("no replica: %v", err)
	}
	d[3].Runs = d[3].Runs[1:] // a destination that expects less than it gets
	if _, err := Simulate(t.Context(), s, d, nil, Options{}); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("a write too many: %v", err)
	}
	if _, err := Simulate(t.Context(), s, d[:5], nil, Options{}); err == nil || !strings.Contains(err.Error(), "no slice") {
		t.Errorf("a destination is missing: %v", err)
	}
}

func (t *Timeline) share() float64 { return float64(t.Total) / float64(t.Floor) }
