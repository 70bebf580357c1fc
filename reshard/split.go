package reshard

// largePart is the part of the average egress above which Split cuts a region.
const largePart = 64

// split cuts large regions that have several sources into as many parts as there are sources, or as make them small: between rows of
// blocks where there are blocks.
func (p *Plan) split() {
	total := int64(0)
	for _, c := range p.classes {
		for i := range c.pairs {
			total += c.pairs[i].bytes * int64(p.moving(c, &c.pairs[i]))
		}
	}
	large := total / int64(len(p.src.Buffers)) / largePart
	for _, c := range p.classes {
		if c.split(max(large, 1)) {
			c.shared = nil
			c.finish(p.dst.Tensors[c.link.dst].Shape)
		}
	}
}

func (c *class) split(large int64) bool {
	var out []pair
	byDst := make([]int32, 1, len(c.byDst))
	for d := range c.dst {
		for _, x := range c.pairs[c.byDst[d]:c.byDst[d+1]] {
			n := min(int64(len(c.src[x.src].holders)), ceil(x.bytes, large))
			for _, b := range c.cutInto(box{x.lo, x.hi}, n) {
				out = append(out, pair{src: x.src, dst: x.dst, lo: b.lo, hi: b.hi})
			}
		}
		byDst = append(byDst, int32(len(out)))
	}
	if len(out) == len(c.pairs) {
		return false
	}
	c.pairs, c.byDst = out, byDst
	return true
}

// cutInto cuts a box into about n in its first dimension that can be cut.
func (c *class) cutInto(b box, n int64) []box {
	if n < 2 {
		return []box{b}
	}
	for d := range b.lo {
		step := int64(1)
		if i := d - (len(b.lo) - 2); c.codec.Kind == fp8Kind && i >= 0 {
			step = int64(c.codec.Block[i])
		}
		if b.lo[d]/step == (b.hi[d]-1)/step {
			continue
		}
		return cutBoxes([]box{b}, d, ceil(ceil(b.hi[d]-b.lo[d], n), step)*step)
	}
	return []box{b}
}
