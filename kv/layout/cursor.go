package layout

// Pages says where logical pages are: page First+i is physical page Index[i].
type Pages struct {
	First int
	Index []uint32
}

// Cursor goes over the writes of some units of one layer of one source rank, once. It is a value: a copy goes on from the same
// place. The zero value has none.
type Cursor struct {
	pair     *Pair
	lanes    []Lane
	seq      uint64
	from, to int

	entry, rep int
	unit, step int // step 0: the entry has not been begun
}

// Batch is writes that are one WritePages: the same length, strides and offsets, one page index per unit.
type Batch struct {
	Lane     *Lane
	Template *Template // of the lane
	Len      int64
	SrcOff   int64 // offsets in the regions, for index 0
	DstOff   int64
	N        int

	pair       *Pair
	flow       *flow
	grid       *grid
	unit, step int
	rep        int
	entry      *Entry
}

// Cursor goes over units [from, to) of a layer of the model on a rank of a source member, numbered as in the member. Units that the
// plan does not move are left out.
func (p *Plan) Cursor(member, rank, layer, from, to int) Cursor {
	u := p.units[p.pair.src.Members[0].GroupOf(layer)]
	return Cursor{pair: p.pair, lanes: p.pair.Lanes(member, rank, layer), seq: p.seq, from: max(from, u.First), to: min(to, u.N)}
}

// Next puts the next writes into b, at most so many, and reports false when there are none. It never allocates.
// hot:
func (c *Cursor) Next(b *Batch, most int) bool {
	for len(c.lanes) > 0 && c.from < c.to {
		f := &c.pair.flows[c.lanes[0].flow]
		if c.step == 0 {
			unit, step, ok := f.align(c.from, c.entry, f.turn(c.seq))
			if !ok || unit >= c.to {
				c.nextEntry(f)
				continue
			}
			c.unit, c.step = unit, step
		}
		if c.unit < c.to {
			n := min((c.to-c.unit+c.step-1)/c.step, most)
			c.fill(b, f, n)
			c.unit += n * c.step
			return n > 0
		}
		c.step = 0
		if c.rep++; c.rep == f.entries[c.entry].Repeat() {
			c.nextEntry(f)
		}
	}
	return false
}

// hot:
func (c *Cursor) nextEntry(f *flow) {
	c.rep, c.step = 0, 0
	if c.entry++; c.entry == len(f.entries) {
		c.entry = 0
		c.lanes = c.lanes[1:]
	}
}

// hot:
func (c *Cursor) fill(b *Batch, f *flow, n int) {
	l, e := &c.lanes[0], &f.entries[c.entry]
	src, dst := c.pair.views(l)
	srcOff, dstOff := e.at(c.rep)
	*b = Batch{
		Lane: l, Template: &c.pair.templates[l.Template], Len: e.Len, SrcOff: src.Base + srcOff, DstOff: dst.Base + dstOff, N: n,
		pair: c.pair, flow: f, grid: c.pair.grids[f.group], unit: c.unit, step: c.step, rep: c.rep, entry: e,
	}
}

// Group is the group of the batch's layer: whose pages Fill wants.
func (b *Batch) Group() int { return b.flow.group }

// Fill puts the page indices of the batch's writes into srcIndex and dstIndex, which have room for N. It panics when src or dst
// lack a page of Plan.SrcPages or DstPages.
// hot:
func (b *Batch) Fill(src, dst Pages, srcIndex, dstIndex []uint32) {
	g := b.grid
	k := len(g.cells)
	srcPer, dstPer := g.period/g.srcPage, g.period/g.dstPage
	period, phase := b.unit/k, b.unit%k
	periods, phases := b.step/k, b.step%k
	srcFold, dstFold := uint32(b.flow.srcFold), uint32(b.flow.dstFold)
	srcIndex, dstIndex = srcIndex[:b.N], dstIndex[:b.N]
	for i := range srcIndex {
		c := &g.cells[phase]
		s, d := src.Index[period*srcPer+c.src.page-src.First], dst.Index[period*dstPer+c.dst.page-dst.First]
		if srcFold > 1 {
			s = s*srcFold + uint32(c.src.sub)
		}
		if dstFold > 1 {
			d = d*dstFold + uint32(c.dst.sub)
		}
		srcIndex[i], dstIndex[i] = s, d
		period += periods
		if phase += phases; phase >= k {
			phase -= k
			period++
		}
	}
}

// FillDst is Fill for the destination's side alone.
func (b *Batch) FillDst(dst Pages, index []uint32) {
	g := b.grid
	for i := range index[:b.N] {
		unit := b.unit + i*b.step
		c := &g.cells[unit%len(g.cells)]
		d := dst.Index[unit/len(g.cells)*(g.period/g.dstPage)+c.dst.page-dst.First]
		if b.flow.dstFold > 1 {
			d = d*uint32(b.flow.dstFold) + uint32(c.dst.sub)
		}
		index[i] = d
	}
}

// Write is one write, for those who look at each.
type Write struct {
	Layer, Plane, Unit int
	Rep                int // number of the write among those of its lane and unit
	SrcMember, SrcRank int // ranks are numbered within their member
	DstMember, DstRank int
	Src, Dst           *View
	SrcPage, DstPage   int   // logical
	SrcOff, DstOff     int64 // from the page's beginning
	Len                int64
}

// Write is write i of the batch.
func (b *Batch) Write(i int) Write {
	p := b.pair
	unit := b.unit + i*b.step
	c := &b.grid.cells[unit%len(b.grid.cells)]
	period := unit / len(b.grid.cells)
	s, d := &p.srcRanks[b.flow.src], &p.dstRanks[b.flow.dst]
	w := Write{
		Layer: int(b.Lane.Layer), Plane: int(b.Lane.Plane), Unit: unit, Rep: b.rep, SrcMember: s.member, SrcRank: s.rank, DstMember: d.member, DstRank: d.rank,
		SrcPage: period*(b.grid.period/b.grid.srcPage) + c.src.page, DstPage: period*(b.grid.period/b.grid.dstPage) + c.dst.page, Len: b.Len,
	}
	w.Src, w.Dst = p.views(b.Lane)
	w.SrcOff, w.DstOff = b.entry.at(b.rep)
	if b.flow.srcFold > 1 {
		w.SrcOff += int64(c.src.sub) * (w.Src.Page / int64(b.flow.srcFold))
	}
	if b.flow.dstFold > 1 {
		w.DstOff += int64(c.dst.sub) * (w.Dst.Page / int64(b.flow.dstFold))
	}
	return w
}
