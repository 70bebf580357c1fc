package bench

import "fmt"

// fill computes the row from what was measured.
func (s *Session) fill(row *Row) {
	c := s.config
	row.Config, row.Path = c, s.path()
	first := &s.results[0]
	rate := &s.results[len(s.results)-1]
	ops, bytes := s.scenario.measures[len(s.results)-1].count(c), uint64(0)
	if c.Kind != Barrier { // which moves none
		bytes = uint64(ops) * c.Size
	}
	row.Ours.Name, row.Yard.Name = "hawser "+c.Provider, s.scenario.measures[0].yard(c).name
	for which, series := range []*Series{&row.Ours, &row.Yard} {
		series.Samples = rate.samples[which]
		series.finish(bytes, ops)
		series.Latency = first.lat[which].latency()
		if s.scenario.measures[0].latency {
			series.Latency.CPUPerTrip = SpreadOf(cpus(first.samples[which])).Median * 1e6 / float64(s.scenario.measures[0].count(c))
		}
	}
	throughput := SpreadOf(ratios(row.Ours.Samples, row.Yard.Samples))
	row.Ratio, row.RatioOf, row.RatioSpread = throughput.Median, OfThroughput, throughput
	if !s.scenario.measures[0].latency {
		return
	}
	var rs []float64
	for i, mine := range first.lat[ours].rounds {
		rs = append(rs, mine/first.lat[yard].rounds[i])
	}
	row.RatioOf, row.RatioSpread = OfLatency, SpreadOf(rs)
	if len(s.results) > 1 {
		row.RateRatio = row.Ratio
	}
	row.Ratio = row.RatioSpread.Median
}

func cpus(samples []Sample) (all []float64) {
	for _, x := range samples {
		all = append(all, x.CPU)
	}
	return all
}

// path says how the processes were connected.
func (s *Session) path() Path {
	wait := "Counter.Wait"
	switch s.config.Kind {
	case Message:
		wait = "Receive"
	case Barrier:
		wait = "Barrier"
	}
	p := Path{
		Congestion: congestion(s.peers[0].stream),
		Wait:       fmt.Sprintf("%s, engine polls %s; the yardstick blocks", wait, s.config.Poll),
		Devices:    s.site.Host.Devices,
	}
	for _, r := range s.peers {
		if r.machine != nil {
			p.Receivers = append(p.Receivers, *r.machine)
		}
	}
	return p
}
