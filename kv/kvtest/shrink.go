package kvtest

import (
	"slices"
	"time"
)

// Shrink looks for a smaller scenario that breaks the same invariant, with at most so many runs.
func Shrink(sc *Scenario, broken *Failure, runs int) (*Scenario, *Failure) {
	return shrink(sc, broken, runs, func(s *Scenario) *Failure {
		_, f := Run(s, nil)
		return f
	})
}

func shrink(sc *Scenario, broken *Failure, runs int, run func(*Scenario) *Failure) (*Scenario, *Failure) {
	try := func(s *Scenario) bool {
		if runs <= 0 {
			return false
		}
		// A scenario with less in it has other delays: some seeds near give the failure another chance.
		for k := range uint64(3) {
			if runs--; runs < 0 {
				return false
			}
			t := s.clone()
			t.Seed += k << 40
			if f := run(t); f != nil && f.Invariant == broken.Invariant {
				sc, broken = t, f
				return true
			}
		}
		return false
	}
	for again := true; again && runs > 0; {
		again = false
		for _, smaller := range reductions(sc) {
			if try(smaller) {
				again = true
				break
			}
		}
	}
	return sc, broken
}

func (s *Scenario) clone() *Scenario {
	c := *s
	c.Requests, c.Faults = slices.Clone(s.Requests), slices.Clone(s.Faults)
	return &c
}

// reductions are scenarios with one thing less, the largest things first.
func reductions(s *Scenario) []*Scenario {
	var all []*Scenario
	add := func(change func(c *Scenario)) {
		c := s.clone()
		change(c)
		all = append(all, c)
	}
	if n := len(s.Requests); n > 2 {
		add(func(c *Scenario) { c.Requests = c.Requests[:n/2] })
		add(func(c *Scenario) { c.Requests = c.Requests[n/2:] })
	}
	for i := range s.Faults {
		add(func(c *Scenario) { c.Faults = slices.Delete(c.Faults, i, i+1) })
	}
	for i := range s.Requests {
		add(func(c *Scenario) { c.Requests = slices.Delete(c.Requests, i, i+1) })
	}
	for _, of := range []func(c *Scenario) *float64{
		func(c *Scenario) *float64 { return &c.Net.Loss }, func(c *Scenario) *float64 { return &c.Net.Slow },
		func(c *Scenario) *float64 { return &c.Net.WriteError }, func(c *Scenario) *float64 { return &c.Net.Unknown },
		func(c *Scenario) *float64 { return &c.Net.EarlyDone }, func(c *Scenario) *float64 { return &c.Net.LateCount },
		func(c *Scenario) *float64 { return &c.Net.NoRoom }, func(c *Scenario) *float64 { return &c.Net.NoImm },
		func(c *Scenario) *float64 { return &c.Net.LateTick }, func(c *Scenario) *float64 { return &c.Net.Import }, func(c *Scenario) *float64 { return &c.Net.Corrupt },
		func(c *Scenario) *float64 { return &c.Engine.Abort }, func(c *Scenario) *float64 { return &c.Engine.Preempt },
		func(c *Scenario) *float64 { return &c.Engine.Fail }, func(c *Scenario) *float64 { return &c.Engine.Refuse },
	} {
		if *of(s) > 0 {
			add(func(c *Scenario) { *of(c) = 0 })
		}
	}
	for _, of := range []func(c *Scenario) *bool{
		func(c *Scenario) *bool { return &c.Digests }, func(c *Scenario) *bool { return &c.Engine.Words }, func(c *Scenario) *bool { return &c.Engine.Cache },
		func(c *Scenario) *bool { return &c.Bring }, func(c *Scenario) *bool { return &c.Warm }, func(c *Scenario) *bool { return &c.Close },
	} {
		if *of(s) {
			add(func(c *Scenario) { *of(c) = false })
		}
	}
	if s.Shape != shapes[0].name {
		add(func(c *Scenario) { c.Shape = shapes[0].name })
	}
	if s.Prefillers > 1 {
		add(func(c *Scenario) { c.Prefillers-- })
	}
	if s.Decoders > 1 {
		add(func(c *Scenario) { c.Decoders-- })
	}
	for i := range s.Requests {
		all = append(all, simpler(s, i)...)
	}
	return all
}

// simpler are scenarios in which one request asks for less.
func simpler(s *Scenario, i int) []*Scenario {
	var all []*Scenario
	r := &s.Requests[i]
	for _, c := range []struct {
		has    bool
		change func(r *Request)
	}{
		{r.Cancel > 0, func(r *Request) { r.Cancel = 0 }},
		{r.Deadline > 0, func(r *Request) { r.Deadline = 0 }},
		{r.Tail, func(r *Request) { r.Tail = false }},
		{r.Alias, func(r *Request) { r.Alias = false }},
		{r.Skip, func(r *Request) { r.Skip = false }},
		{r.Meet != ByIDs, func(r *Request) { r.Meet, r.Expect = ByIDs, 0 }},
		{r.Priority != 0, func(r *Request) { r.Priority = 0 }},
		{len(r.Sources) > 1, func(r *Request) { r.Sources = r.Sources[:1] }},
		{r.Tokens > 4, func(r *Request) { r.Tokens /= 2; r.Shared = min(r.Shared, r.Tokens) }},
		{r.Hold > time.Millisecond, func(r *Request) { r.Hold = 0 }},
	} {
		if c.has {
			t := s.clone()
			c.change(&t.Requests[i])
			all = append(all, t)
		}
	}
	return all
}
