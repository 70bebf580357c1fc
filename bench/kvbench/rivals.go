package kvbench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hawser-project/hawser/bench/versus"
	"github.com/hawser-project/hawser/kv/layout"
)

// Rivals is other libraries that do the same work in the same rounds: B1, B2 and B8 have them. They get the byte ranges that package kv
// writes, from our plan, and move them by explicit lists; cancelling, fencing and page lists are no part of what they do.
type Rivals struct {
	Env   *versus.Env
	Names []string // of versus.Movers
}

// rival is one of them in a row. why: it does not run, or no more.
type rival struct {
	name, why string
	m         *versus.Mover
	whole     bool // it posts everything at the end
	took, cpu []float64
	ratio     []float64 // their time / ours
}

// field is the rivals of a row, and ours among them. Owned by one goroutine.
type field struct {
	rivals []*rival
	bytes  uint64
	round  int
	ours   float64 // of this round
}

// rivals starts them. Every byte range is one of the plan's, at the pages of both sides. ends: one more of each, which posts everything at the end.
func (c Config) rivals(ctx context.Context, s setup, dst shape, pages []uint32, ends bool) (*field, error) {
	f := &field{}
	if len(c.Rivals.Names) == 0 {
		return f, nil
	}
	if c.Network != "shm" && c.Network != "tcp" {
		f.rivals = append(f.rivals, &rival{name: strings.Join(c.Rivals.Names, ", "), why: "they are driven over shm and tcp"})
		return f, nil
	}
	w, err := work(s.Shape, dst, s.Tokens, pages)
	if err != nil {
		return nil, err
	}
	w.Path = c.Network
	for _, r := range w.Ranges {
		f.bytes += r.Len
	}
	for _, name := range c.Rivals.Names {
		c.Tell("preparing " + name)
		r := &rival{name: name}
		f.rivals = append(f.rivals, r)
		if r.m, err = versus.NewMover(ctx, c.Rivals.Env, name, w); err != nil {
			if ctx.Err() != nil {
				f.close()
				return nil, context.Cause(ctx)
			}
			r.why = err.Error()
			continue
		}
		if ends {
			f.rivals = append(f.rivals, &rival{name: name + " at the end", m: r.m, whole: true})
		}
	}
	return f, nil
}

// work is the writes of a prompt's plan: its pages are scattered at the prefiller, and are those named at the decoder.
func work(src, dst shape, tokens int, pages []uint32) (w versus.Work, err error) {
	s, sizes, err := src.build()
	if err != nil {
		return w, err
	}
	d, dstSizes, err := dst.build()
	if err != nil {
		return w, err
	}
	topology := func(g layout.Geometry) *layout.Topology { return &layout.Topology{Members: []layout.Geometry{g}} }
	both, err := layout.NewPair(topology(s), topology(d), layout.Options{AllowSmallWrites: true})
	if err != nil {
		return w, err
	}
	plan, err := both.Plan(both.Spans(0, tokens), 0)
	if err != nil {
		return w, err
	}
	from, to := starts(sizes), starts(dstSizes)
	w.Src, w.Dst = uint64(from[len(sizes)]), uint64(to[len(dstSizes)])
	here, there := scattered(src.Pages), pages
	for layer := range s.Layers {
		for rank := range s.Ranks {
			_, end := plan.Units(s.GroupOf(layer))
			cursor := plan.Cursor(0, rank, layer, 0, end)
			for b := (layout.Batch{}); cursor.Next(&b, 1<<20); {
				for i := range b.N {
					x := b.Write(i)
					w.Ranges = append(w.Ranges, versus.Range{
						Layer: uint64(layer), Len: uint64(x.Len),
						Src: uint64(from[x.Src.Region] + x.Src.Base + int64(here[x.SrcPage])*x.Src.Page + x.SrcOff),
						Dst: uint64(to[x.Dst.Region] + x.Dst.Base + int64(there[x.DstPage])*x.Dst.Page + x.DstOff),
					})
				}
			}
		}
	}
	return w, nil
}

// starts are the places of regions that lie one after the other, and where the last one ends.
func starts(sizes []int64) []int64 {
	at := make([]int64, len(sizes)+1)
	for i, n := range sizes {
		at[i+1] = at[i] + n
	}
	return at
}

// turn is one round: ours, which returns its nanoseconds, and each rival, so many times each; who begins rotates. The first round does not
// count, and in it and in the last one of so many every byte is checked.
func (f *field) turn(ctx context.Context, c Config, times int, layer time.Duration, took func(versus.Moved) time.Duration, ours func() (float64, error)) error {
	last := f.round == c.Rounds
	mine := func() (err error) {
		f.ours, err = ours()
		return err
	}
	steps := []func() error{mine}
	samples := map[*rival]float64{}
	for _, r := range f.rivals {
		if r.why != "" {
			continue
		}
		steps = append(steps, func() error {
			x, cpu, err := r.sample(ctx, times, layer, took, f.round == 0 || last)
			if err != nil && ctx.Err() == nil {
				r.why, err = err.Error(), nil
			}
			if f.round > 0 && r.why == "" {
				samples[r] = x
				r.cpu = append(r.cpu, cpu/(float64(f.bytes)/(1<<30)))
			}
			return err
		})
	}
	for i := range steps {
		if err := steps[(i+f.round)%len(steps)](); err != nil {
			return err
		}
	}
	for r, x := range samples {
		r.took, r.ratio = append(r.took, x/1e3), append(r.ratio, x/f.ours)
	}
	f.round++
	return nil
}

// sample is the median of so many times, nanoseconds, and the processor time of one.
func (r *rival) sample(ctx context.Context, times int, layer time.Duration, took func(versus.Moved) time.Duration, verify bool) (x, cpu float64, err error) {
	var all []float64
	for range times {
		m, err := r.m.Move(ctx, layer, r.whole)
		if err != nil {
			return 0, 0, err
		}
		all, cpu = append(all, float64(took(m))), cpu+m.CPU/float64(times)
	}
	if verify {
		err = r.m.Verify(ctx)
	}
	return quantile(all, 0.5), cpu, err
}

// add puts what the rivals came to into a row; goal is how many times as fast ours should be.
func (f *field) add(row *Row, what string, goal float64) {
	for _, r := range f.rivals {
		if r.why != "" {
			row.Peers = append(row.Peers, r.name+": not run: "+r.why)
			continue
		}
		row.Values = append(row.Values, value(r.name+": "+what, "us", r.took), value("hawser is so many times as fast", "", r.ratio).least(goal), value(r.name+": CPU", "s/GiB", r.cpu))
		if !r.whole {
			row.Peers = append(row.Peers, fmt.Sprintf("%s %s: %s", r.name, r.m.Version, r.m.Settings))
		}
	}
}

// close ends them all.
func (f *field) close() {
	for _, r := range f.rivals {
		if r.m != nil && !r.whole {
			r.m.Close()
		}
	}
}

// CheckRivals says what is wrong with names of rivals.
func CheckRivals(names []string) error {
	var errs []error
	for _, n := range names {
		if !slices.Contains(versus.Movers(), n) {
			errs = append(errs, fmt.Errorf("peer %q: there are %s", n, strings.Join(versus.Movers(), ", ")))
		}
	}
	return errors.Join(errs...)
}
