package proto

// Regions are the bytes of one lane's memory.
type Regions struct {
	Heads   int64 // a header and the first records, of each source
	Pool    int64 // the chunks that are granted
	Results int64 // combine results, a slot for each record sent
	Send    int64 // headers and records to send
	Small   int64 // grants, cancel records, and the sources of grants
	Y       int64 // results to send back
}

// Total is the sum.
func (r Regions) Total() int64 { return r.Heads + r.Pool + r.Results + r.Send + r.Small + r.Y }

// SizeReport says what a Config costs, before anything is allocated.
type SizeReport struct {
	Layout  Layout
	Regions Regions // of one lane
	Parked  int64   // bytes of one lane beside, while somebody who may yet write cannot be fenced: at most one set of what peers write
	Output  int64   // bytes that the caller needs for what it receives in one piece, without padding
	Why     string  // why MaxRecv is what it is
}

// recordBytes are those of the grants and the cancel record of one rank.
const recordBytes = Window*GrantBytes + CancelBytes

// Sizes is a pure function of its argument.
func Sizes(c Config) (SizeReport, error) {
	l, err := NewLayout(c)
	if err != nil {
		return SizeReport{}, err
	}
	meta := 0
	if l.Meta {
		meta = metaBytes
	}
	r := SizeReport{Layout: l, Regions: l.regions(), Output: int64(l.MaxRecv) * int64(l.Dispatch-meta)}
	r.Parked = r.Regions.Heads + int64(l.MaxRanks)*recordBytes + r.Regions.Pool + r.Regions.Results
	switch {
	case c.MaxRecv > 0:
		r.Why = "as configured"
	case l.Streamed:
		r.Why = "streamed: the most there can be does not fit the budget"
	default:
		r.Why = "the most there can be fits the budget"
	}
	return r, nil
}

func (l *Layout) regions() Regions {
	ranks, head, sd, sc := int64(l.MaxRanks), int64(l.HeadBytes), int64(l.Dispatch), int64(l.Combine)
	return Regions{
		Heads:   ranks * (head + int64(l.FirstChunk)*sd),
		Pool:    int64(l.PoolChunks) * int64(l.ChunkRecords) * sd,
		Results: int64(l.Records()) * sc,
		Send:    ranks*head + int64(l.Records())*sd,
		Small:   3 * ranks * lineBytes,
		Y:       int64(l.YRows) * sc,
	}
}
