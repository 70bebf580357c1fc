package rail

import (
	"math/bits"
	"slices"

	"github.com/hawser-project/hawser/internal/record"
	"github.com/hawser-project/hawser/provider"
)

// statuses is more than there are values of provider.Status.
const statuses = 16

// Totals are what one rail has done since it was opened.
type Totals struct {
	Counts
	Posts  uint64           // batches that its domain was given
	Short  uint64           // of which it did not take all; the rest is given again
	Failed [statuses]uint64 // WRs by the status that they ended with; not those that ended with StatusOK
	Post   record.Histogram // time in Domain.Post, of batches with a sample
	Wire   record.Histogram // from there to the completion, of samples that ended with StatusOK
}

// Info is Totals, and what there is now.
type Info struct {
	Totals
	Outstanding int // WRs that the domain has
	Held        int // WRs that it has not taken yet
	Dead        bool
}

// Info describes rail i.
func (g *Group) Info(i int) Info {
	r := g.rails[i]
	in := Info{Totals: r.total, Held: len(r.batch), Dead: r.dead}
	for _, l := range r.members {
		in.Add(l.counted())
	}
	for i := range r.flights {
		if r.flights[i].link != nil {
			in.Outstanding++
		}
	}
	in.Outstanding -= in.Held
	for i := range r.batch {
		if r.batch[i].Op == provider.OpRecv {
			in.Outstanding++ // it has no flight
		}
	}
	return in
}

// counted is what l has counted since it joined its rail.
func (l *link) counted() Counts {
	c := l.counts
	c.TxImms += l.ackImms
	c.TxMessages += l.ackMsgs
	return c
}

// join makes l count for r, before a connection of l that starts with an empty account. What moves is counted by links alone: the totals
// of a rail are put together when somebody asks.
func (r *railState) join(l *link) {
	if l.home == r {
		return
	}
	if old := l.home; old != nil {
		old.total.Add(l.counts)
		l.before.Add(l.counts)
		l.counts = Counts{}
		old.members = slices.DeleteFunc(old.members, func(m *link) bool { return m == l })
	}
	l.home = r
	if len(r.members) >= r.prune {
		r.members = slices.DeleteFunc(r.members, r.retire)
		r.prune = 2*len(r.members) + 16
	}
	r.members = append(r.members, l)
}

// retire takes over the counts of a link that has counted for the last time, and reports whether it has.
func (r *railState) retire(l *link) bool {
	over := l.peer.down && l.outstanding == 0 && (r.dead || l.handle == 0 || r.link(l.handle) != l)
	if over {
		r.total.Add(l.counted())
	}
	return over
}

// Waiting is how many operations on p have parts that are not placed.
func (g *Group) Waiting(p *Peer) int { return p.ops.n + p.messages.n }

// Class is the class of the links that carry operations on p.
func (p *Peer) Class() uint8 { return p.class }

// Queue is how long samples waited from their Stamp to the Post that took them.
func (g *Group) Queue() record.Histogram { return g.queued }

// A sample is an operation that its submitter has stamped: its first WR is followed with the clock. There is room for few at a time;
// what finds none is not followed.
type sample struct {
	submitted, posted int64 // of record.Now; posted is 0 before
	at                int   // in the batch, before
}

// samples are those of one rail. A flight knows its sample by index + 1.
type samples struct {
	free, held uint16 // sets of indexes: unused, in the batch
	all        [16]sample
}

// follow begins a sample for the WR that is about to go at the end of the batch; 0: there is no room.
func (r *railState) follow(op *Op) uint8 {
	s := &r.samples
	stamp := op.Stamp
	op.Stamp = 0
	if s.free == 0 {
		return 0
	}
	i := bits.TrailingZeros16(s.free)
	s.free &^= 1 << i
	s.held |= 1 << i
	s.all[i] = sample{submitted: stamp, at: len(r.batch)}
	return uint8(i + 1)
}

// postTimed is Domain.Post for a batch with a sample.
func (g *Group) postTimed(r *railState) (int, error) {
	s := &r.samples
	begin := record.Now()
	n, err := r.dom.Post(r.batch)
	end := record.Now()
	r.total.Post.Add(end - begin)
	for set := s.held; set != 0; set &= set - 1 {
		i := bits.TrailingZeros16(set)
		if x := &s.all[i]; x.at >= n {
			x.at -= n
		} else {
			s.held &^= 1 << i
			x.posted = end
			g.queued.Add(begin - x.submitted)
		}
	}
	return n, err
}

// followed ends a sample.
func (r *railState) followed(f *flight, st provider.Status) {
	s := &r.samples
	i := f.sample - 1
	f.sample = 0
	if at := s.all[i].posted; at != 0 && st == provider.StatusOK {
		r.total.Wire.Add(record.Now() - at)
	}
	s.held &^= 1 << i
	s.free |= 1 << i
}
