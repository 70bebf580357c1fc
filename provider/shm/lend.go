package shm

import (
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

// lender is the writer's half of the loans to a peer. Owned by the domain.
type lender struct {
	foreign []foreign       // memory of the peer that only it can write, by region index
	shown   []uint32        // generations of our regions that the peer can map, by index
	jobs    int             // the oldest of peer.writes: lent, or found to be wrong
	put     uint64          // loans put into the ring
	taken   uint64          // answers seen
	until   int64           // when a source that the peer still reads is given up; 0: the connection is not ending
	loans   []loan          // of the page
	from    []atomic.Uint32 // outcomes, of the page
}

// foreign is memory of a peer that it has granted to us without a memfd.
type foreign struct {
	key, size uint64
}

// openLoans finds the loans of both directions in the pair page.
func (p *peer) openLoans(out, in int) {
	p.lend.loans, p.lend.from = p.pair.loans[out][:], p.pair.outcomes[out][:]
	p.pull.loans, p.pull.to = p.pair.loans[in][:], p.pair.outcomes[in][:]
}

// noteForeign notes a grant of memory that the peer fills by itself.
func (p *peer) noteForeign(pkt *packet) {
	i := int(regionIndex(pkt.region)) // decode has checked it
	if n := i + 1 - len(p.lend.foreign); n > 0 {
		p.lend.foreign = append(p.lend.foreign, make([]foreign, n)...)
	}
	p.lend.foreign[i] = foreign{pkt.region, pkt.size}
}

// lends finds memory that the peer fills by itself; nil for any other key.
// hot:
func (p *peer) lends(key uint64) *foreign {
	i := regionIndex(key)
	if i >= uint32(len(p.lend.foreign)) || p.lend.foreign[i].key != key || key == 0 {
		return nil
	}
	return &p.lend.foreign[i]
}

// lendWrites publishes the oldest jobs as loans, and completes those that the peer has answered. A write whose bytes are copied here
// waits until all before it are answered: it must not end with ok when an immediate before it does not arrive.
// hot:
func (d *domain) lendWrites(p *peer) int {
	moved := d.reapLoans(p)
	if p.state != stateUp {
		return jobCost
	}
	if p.tx.revoked.Load() != 0 {
		d.end(p, provider.StatusPeerDown)
		return jobCost
	}
	room, err := p.immOut.Room(batchWrites)
	if err != nil {
		d.breach(p)
		return jobCost
	}
	put := 0
	for put < min(room, batchWrites) && p.lend.jobs < p.writes.len() {
		j := p.writes.at(p.lend.jobs)
		f := p.lends(j.wr.RemoteKey)
		if j.wr.Len == 0 && p.lend.jobs == 0 || j.wr.Len > 0 && f == nil {
			break
		}
		if j.status = d.judgeLoan(p, j, f); j.status == provider.StatusOK {
			d.lendWrite(p, &j.wr)
			put++
		}
		p.lend.jobs++
		moved++
	}
	if put > 0 {
		p.immOut.Publish()
		d.ring(p)
	}
	return moved * jobCost
}

// judgeLoan looks at a write as copyChunk does. The receiver looks again.
// hot:
func (d *domain) judgeLoan(p *peer, j *job, f *foreign) provider.Status {
	wr := &j.wr
	if _, ok := d.local(wr.LocalKey, wr.LocalAddr, wr.Len); !ok || wr.Len > maxMsg {
		return provider.StatusLocal
	}
	if wr.Len > 0 && (!p.alive(f.key) || wr.RemoteAddr > f.size || wr.Len > f.size-wr.RemoteAddr) {
		return provider.StatusAccess
	}
	return provider.StatusOK
}

// lendWrite puts one loan. There is room: it holds as many as a peer may have outstanding.
// hot:
func (d *domain) lendWrite(p *peer, wr *provider.WR) {
	l := loan{key: wr.RemoteKey, at: wr.RemoteAddr}
	if src, _ := d.local(wr.LocalKey, wr.LocalAddr, wr.Len); len(src) > 0 {
		l.addr = address0(src)
		if p.hasShown(wr.LocalKey) || d.show(p, wr.LocalKey) {
			l.src, l.off = wr.LocalKey, wr.LocalAddr
		}
	}
	p.lend.loans[p.lend.put%peerDepth] = l
	p.lend.put++
	e := ring.Entry{A: wr.Len | loanBit, B: wr.Imm}
	if wr.Op == provider.OpWrite {
		e.A |= plainBit
	}
	p.immOut.Put(e)
}

// reapLoans completes the loans that the peer has answered, and returns their number. Bytes of an answered one are read no more.
// hot:
func (d *domain) reapLoans(p *peer) int {
	if p.lend.jobs == 0 {
		return 0
	}
	answers := p.tx.answered.Load() - p.lend.taken
	if answers > p.lend.put-p.lend.taken {
		d.breach(p)
		return 0
	}
	n, bad := 0, false
	for ; n < p.lend.jobs; n++ {
		j := p.writes.at(n)
		if j.status == provider.StatusOK {
			if answers == 0 {
				break
			}
			o := outcome(p.lend.from[p.lend.taken%peerDepth].Load())
			if !o.possible() {
				bad = true
				break
			}
			j.status, j.detail = o.status(), o.errno()
			answers--
			p.lend.taken++
		}
		d.complete(p, &j.wr, j.status, j.detail)
	}
	p.writes.drop(n)
	p.lend.jobs -= n
	if bad { // not before: it ends what is left
		d.breach(p)
	}
	return n
}

// lendable reports whether lendWrites could move something; if it is for want of room that it could not, the peer is asked to ring.
func (p *peer) lendable() bool {
	if p.lend.jobs > 0 && (p.tx.answered.Load() != p.lend.taken || p.writes.at(0).status != provider.StatusOK) {
		return true // answered, or refused on this side
	}
	if p.lend.jobs == p.writes.len() {
		return false
	}
	if wr := &p.writes.at(p.lend.jobs).wr; wr.Len > 0 && p.lends(wr.RemoteKey) == nil {
		return false // it waits for the answers
	}
	room, err := p.immOut.Room(1)
	return err != nil || room > 0 || p.immOut.Wait()
}

// flushWrites ends the writes of a connection that is ending. Sources that the peer is reading stay until it has stopped: it looks at
// our revoked word, which is set, before and after each chunk.
func (d *domain) flushWrites(p *peer) {
	d.reapLoans(p)
	for i := p.lend.jobs; i < p.writes.len(); i++ {
		d.complete(p, &p.writes.at(i).wr, provider.StatusFlushed, 0)
	}
	p.writes.keep(p.lend.jobs)
	if p.lend.jobs > 0 {
		p.lend.until = d.after(fenceBound)
		d.flushLoans(p)
	}
}

// flushLoans ends the loans of a connection that is ending, when the peer reads no source any more. A peer that was stopped in the middle
// of a chunk is waited for until the bound: should it go on after that, it reads at most that chunk, into its own memory, finds
// that the connection has ended, and counts nothing.
func (d *domain) flushLoans(p *peer) {
	if !p.sourcesQuiet() && d.now() < p.lend.until {
		return
	}
	d.reapLoans(p) // what it answered before it was quiet
	for i := range p.lend.jobs {
		j := p.writes.at(i)
		if j.status == provider.StatusOK {
			j.status = provider.StatusFlushed
		}
		d.complete(p, &j.wr, j.status, j.detail)
	}
	p.writes.drop(p.lend.jobs)
	p.lend.jobs, p.lend.until = 0, 0
}

// sourcesQuiet reports whether the peer reads none of our memory. It stays so once revoked is set.
func (p *peer) sourcesQuiet() bool { return p.eof || p.rx.slot.Load() != slotPull }

// sourcesDue reports whether flushLoans would do something.
func (d *domain) sourcesDue(p *peer) bool { return p.sourcesQuiet() || d.now() >= p.lend.until }

// closePoll is how often Close looks whether a peer still reads from this process.
const closePoll = 50 * time.Microsecond

// awaitSources waits until no peer reads memory of this process, with the bound of flushLoans. Close is the only one that may wait.
func (d *domain) awaitSources() {
	end := d.now() + int64(fenceBound)
	for _, p := range d.peers {
		for p.lend.jobs > 0 && p.pair != nil && !p.sourcesQuiet() && d.now() < end {
			time.Sleep(closePoll)
		}
	}
}
