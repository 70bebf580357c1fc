package moetest

import "slices"

// Tally checks a step of a rank that comes in chunks: each row is one of the step, for its expert, and each comes as often as it must.
type Tally struct {
	ref     *Ref
	routing *Routing
	step    uint64
	rank    int
	seen    map[copyOf]int
}

// copyOf is a token of a rank for an expert: a record, or several if ids are alike.
type copyOf struct{ rank, token, expert int }

// NewTally begins a step.
func (f *Ref) NewTally(r *Routing, step uint64, rank int) *Tally {
	return &Tally{ref: f, routing: r, step: step, rank: rank, seen: map[copyOf]int{}}
}

// Chunk takes the rows of one chunk.
func (t *Tally) Chunk(counts, offsets []uint32, x []byte) (w Wrong) {
	f := t.ref
	bytes := f.Hidden * size(f.In)
	for local, n := range counts {
		for row := int(offsets[local]); row < int(offsets[local]+n); row++ {
			got := x[row*bytes : (row+1)*bytes]
			rank, token, ok := t.identify(got)
			if !ok {
				w.note(bytes, "dispatch of step %d: rank %d: row %d of a chunk begins with %s, and is no row of the step", t.step, t.rank, row, f.Tell(f.get(got, 0)))
				continue
			}
			t.seen[copyOf{rank, token, t.rank*f.Local() + local}]++
		}
	}
	return w
}

// identify says which token a row is of.
func (t *Tally) identify(row []byte) (rank, token int, ok bool) {
	f := t.ref
	f.grow()
	want := f.row[:len(row)]
	is := func(rank, token int) bool {
		f.putRow(want, t.step, rank, token)
		return string(want) == string(row)
	}
	if place, world, ok := f.find(f.get(row, 0)); ok {
		at := int(place%world) / f.Hidden
		rank, token = at/f.Tokens, at%f.Tokens
		return rank, token, token < t.routing.N[rank] && is(rank, token)
	}
	for rank := range f.Ranks {
		for token := range t.routing.N[rank] {
			if is(rank, token) {
				return rank, token, true
			}
		}
	}
	return 0, 0, false
}

// Done ends the step. outside: these are no members. Of who is missing there may be less than all.
func (t *Tally) Done(outside Gone, missing []int) (w Wrong) {
	want := map[copyOf]int{}
	for src := range t.ref.Ranks {
		ids, _ := t.routing.Row(src)
		for i, e := range ids {
			if e >= 0 && t.routing.RankOf(int(e)) == t.rank && !outside.has(src) {
				want[copyOf{src, i / t.ref.TopK, int(e)}]++
			}
		}
	}
	check := func(c copyOf) {
		if n := t.seen[c]; n > want[c] || n < want[c] && !slices.Contains(missing, c.rank) {
			w.note(t.ref.Hidden*size(t.ref.In), "dispatch of step %d: rank %d: token %d of rank %d came %d times for expert %d, want %d",
				t.step, t.rank, c.token, c.rank, n, c.expert, want[c])
		}
	}
	for c := range want {
		check(c)
	}
	for c := range t.seen {
		if want[c] == 0 {
			check(c)
		}
	}
	return w
}
