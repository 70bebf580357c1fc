package reshard

// Ranks is how many ranks either side has: arguments of Source and Dest are below these.
func (p *Plan) Ranks() (sources, dests int) { return len(p.src.Buffers), len(p.dst.Buffers) }
