package proto

// Pair is an event in a state, of one of the state machines.
type Pair struct{ Of, State, Event string }

// seenByDecoder counts events by the state in which they came, and seenByPrefiller.
type seenByDecoder struct {
	fetch  [fetchStates][fetchEvents]uint64
	writer [writerStates][writerEvents]uint64
}

type seenByPrefiller struct {
	serve [serveStates][serveEvents]uint64
	job   [jobStates][jobEvents]uint64
}

// DecoderPairs are all pairs of the decode side, in the order of Decoder.AddSeen.
func DecoderPairs() []Pair {
	return append(pairs("attempt on D", fetchStates, fetchEvents), pairs("writer", writerStates, writerEvents)...)
}

// PrefillerPairs are all pairs of the prefill side, in the order of Prefiller.AddSeen.
func PrefillerPairs() []Pair {
	return append(pairs("attempt on P", serveStates, serveEvents), pairs("job", jobStates, jobEvents)...)
}

type named interface {
	~uint8
	String() string
}

func pairs[S, E named](of string, states S, events E) (all []Pair) {
	for s := range states {
		for e := range events {
			all = append(all, Pair{of, s.String(), e.String()})
		}
	}
	return all
}

// AddSeen adds to n how often each of DecoderPairs has happened: for coverage reports.
func (d *Decoder) AddSeen(n []uint64) {
	for s := range d.seen.fetch {
		n = add(n, d.seen.fetch[s][:])
	}
	for s := range d.seen.writer {
		n = add(n, d.seen.writer[s][:])
	}
}

// AddSeen adds to n how often each of PrefillerPairs has happened: for coverage reports.
func (p *Prefiller) AddSeen(n []uint64) {
	for s := range p.seen.serve {
		n = add(n, p.seen.serve[s][:])
	}
	for s := range p.seen.job {
		n = add(n, p.seen.job[s][:])
	}
}

func add(n, seen []uint64) []uint64 {
	for i, k := range seen {
		n[i] += k
	}
	return n[len(seen):]
}
