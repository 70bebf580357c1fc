// Package layout says how the KV caches of two instances lie in memory, and plans which bytes of one go where in the other.
// It is pure: no network, no clock, no state. Both sides of a link compute the same plan and compare its digest.
//
// An instance is a [Topology]: members (processes), each with a [Geometry], which says for every rank, layer and plane where
// its pages are and how a page is laid out. NHD and HND are no names here, only strides: in HND the stride from head to head is
// the larger one, in NHD that from token to token. [Build] makes geometries of known models, [ReadJSON] reads others.
//
//	pair, err := layout.NewPair(prefill, decode, layout.Options{}) // once per link: what goes where, in a pattern that repeats
//	plan, err := pair.Plan(pair.Spans(first, n), seq)              // once per attempt: index arithmetic
//	plan.Expected(member)                                          // how many writes, and so immediates, member owes
//
//	c := plan.Cursor(member, rank, layer, from, to)                // the writes of some units of one layer
//	for c.Next(&b, 128) {                                          // each batch is one WritePages: constant length, strides, offsets
//		b.Fill(srcPages, dstPages, src, dst)
//	}
//
// # Units
//
// A unit is the tokens between two neighbouring page boundaries, of either side: with equal page sizes a page, with 16 and 128
// tokens the 16, with 96 and 64 in turn 64, 32, 32 and 64. So a unit lies in one page on both sides. Units are counted from token
// 0 of the prompt, whatever the span. They are the steps of progress (a unit is sent when all its tokens are computed) and
// of striping: where several source ranks hold the same heads, unit b for the destination rank with index j is sent by number
// (b + j + seq) mod r of the r. The unit with the last token of a span is sent whole, so bytes beyond the span are written up to
// the end of that unit, which is never beyond the end of a page that holds tokens of the span. Nothing else is touched.
//
// # Writes
//
// For a unit, a rank pair, a layer and a plane, the bytes that both ranks hold are a box of heads and tokens. Dimensions that are
// contiguous on both sides merge into one write; what remains is repeated with a constant step on each side. Same layout,
// HND: one write per unit, whatever the heads on both sides. NHD with other heads, or HND to NHD: many short writes, which [NewPair]
// refuses below a smallest length unless told otherwise.
//
// # Who holds what
//
// The ranks of a source must hold all that the destination's ranks hold; the destination need not be complete: it is the member
// that asks, and the other members of its instance ask for themselves.
package layout
