package reshard

import (
	"cmp"
	"slices"
)

// part is one piece on its way from one source to one destination.
type part struct {
	class, member, pair, piece int32
	stage, peer                int32 // peer: the other rank
	mold                       *moldPiece
	buffer, scaleBuffer        int32 // destination's
	srcBuffer                  int32
	to, scaleTo, from          int64 // offsets of the tensor: in the destination, of its scales there, in the source
}

// at is where the part begins in the destination.
func (x *part) at() int64 { return x.to + x.mold.values.spans[0].to }

// same says that two parts stage the same bytes.
func (x *part) same(y *part) bool {
	return x.mold == y.mold && x.member == y.member
}

// region names what a part is a piece of.
type region struct{ class, member, pair int32 }

// unit is parts of one source, destination and stage that go together: neighbours in the destination become one run. Both sides make the
// same units: a source from its parts, a destination from those of each source.
type unit struct {
	parts  []part
	direct bool
	size   int64 // of staging
	values []int64
	scales []int64 // where each part's are in staging
	runs   []Run
}

// units cuts sorted parts of one stage and peer into units.
func (p *Plan) units(out []unit, parts []part, mem *unitMemory) []unit {
	for i := 0; i < len(parts); {
		n, direct := p.reach(parts[i:])
		u := unit{parts: parts[i : i+n], direct: direct}
		u.lay(p.opts.MaxWrite, mem)
		out = append(out, u)
		i += n
	}
	return out
}

// unitMemory is where the lists of many units lie, a few large blocks instead of many small ones.
type unitMemory struct {
	places chunked[int64]
	runs   chunked[Run]
	order  []int
}

// chunked hands out pieces of large blocks.
type chunked[T any] struct{ free []T }

func (c *chunked[T]) take(n int) []T {
	if n > len(c.free) {
		c.free = make([]T, max(n, 1<<12))
	}
	out := c.free[:n:n]
	c.free = c.free[n:]
	return out
}

// reach is how many parts from the first on make a unit, and whether it needs no staging.
func (p *Plan) reach(parts []part) (n int, direct bool) {
	x := &parts[0]
	direct, n = x.mold.direct, 1
	total := x.mold.values.size
	stageable := !direct || total < p.opts.SmallTensor
	if len(x.mold.values.spans) > 1 {
		return 1, direct
	}
	for ; n < len(parts); n++ {
		y := &parts[n]
		size := y.mold.values.size
		if y.buffer != x.buffer || len(y.mold.values.spans) > 1 || y.at() != x.at()+total || total+size > p.opts.MaxWrite {
			break
		}
		s := y.mold.values.spans[0].source + y.from
		if direct && y.mold.direct && y.srcBuffer == x.srcBuffer && s == x.from+x.mold.values.spans[0].source+total {
			total += size
			stageable = total < p.opts.SmallTensor
			continue
		}
		if !stageable || y.mold.direct && size >= p.opts.SmallTensor {
			break
		}
		direct = false
		total += size
	}
	return n, direct
}

// align of what begins anew in staging.
const align = 16

// lay gives the parts their places in staging, and makes the runs.
func (u *unit) lay(most int64, mem *unitMemory) {
	u.values, u.scales = mem.places.take(len(u.parts)), mem.places.take(len(u.parts))
	spans := 0
	for i := range u.parts {
		spans += len(u.parts[i].mold.values.spans) + len(u.parts[i].mold.scales.spans)
	}
	u.runs = mem.runs.take(spans)[:0]
	for i := range u.parts {
		x := &u.parts[i]
		u.values[i] = u.size
		for _, s := range x.mold.values.spans {
			from := u.size + s.at
			if u.direct {
				from = x.from + s.source
			}
			u.put(Run{Peer: int(x.peer), Stage: int(x.stage), Buffer: int(x.buffer), Offset: x.to + s.to, Len: s.n, From: from}, most)
		}
		u.size += x.mold.values.size
	}
	if u.direct {
		u.size = 0
		return
	}
	u.layScales(most, mem)
}

// layScales puts scales behind the values, in the order of the destination.
func (u *unit) layScales(most int64, mem *unitMemory) {
	order := mem.order[:0]
	for i := range u.parts {
		if len(u.parts[i].mold.scales.spans) > 0 {
			order = append(order, i)
		}
	}
	mem.order = order
	if len(order) == 0 {
		return
	}
	slices.SortStableFunc(order, func(a, b int) int {
		x, y := &u.parts[a], &u.parts[b]
		return cmp.Or(cmp.Compare(x.scaleBuffer, y.scaleBuffer), cmp.Compare(x.scaleTo+x.mold.scales.spans[0].to, y.scaleTo+y.mold.scales.spans[0].to))
	})
	u.size = ceil(u.size, align) * align
	for _, i := range order {
		x := &u.parts[i]
		u.scales[i] = u.size
		for _, s := range x.mold.scales.spans {
			u.put(Run{Peer: int(x.peer), Stage: int(x.stage), Buffer: int(x.scaleBuffer), Offset: x.scaleTo + s.to, Len: s.n, From: u.size + s.at}, most)
		}
		u.size += x.mold.scales.size
	}
}

// put appends a run: to the one before if it goes on, both in the destination and in the source; cut at most bytes.
func (u *unit) put(r Run, most int64) {
	if n := len(u.runs); n > 0 {
		l := &u.runs[n-1]
		if l.Buffer == r.Buffer && l.Offset+l.Len == r.Offset && l.From+l.Len == r.From && l.Len+r.Len <= most {
			l.Len += r.Len
			return
		}
	}
	for r.Len > most {
		head := r
		head.Len = most
		u.runs = append(u.runs, head)
		r.Offset, r.From, r.Len = r.Offset+most, r.From+most, r.Len-most
	}
	u.runs = append(u.runs, r)
}
