package reshard

// Ranks is how many ranks either side has: arguments of Source and Dest are below these.
func (p *Plan) Ranks() (sources, dests int) { return len(p.src.Buffers), len(p.dst.Buffers) }

// Instance is the inference engine that a destination rank is part of.
func (p *Plan) Instance(dst int) int {
	if p.dst.Topo.Instance == nil {
		return 0
	}
	return p.dst.Topo.Instance[dst]
}
