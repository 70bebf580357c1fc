package shm

import (
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

const (
	// batchWrites and batchBytes bound the writes that share one publication: enough to hide its cost, which is that of
	// three locked instructions and of the wait for stores past the caches (40 ns, a fifth of a page of 4 KiB), and little
	// enough that the receiver can start.
	batchWrites = 16
	batchBytes  = 256 << 10

	// chunkSize is copied between two looks at the revoked word; it takes 75 us. Shorter chunks would be slower where place leaves it to
	// copy, which goes past the caches from 1 MiB on only (27 against 20 GB/s); twice that, for copies that are not aligned
	// and lose their edges.
	chunkSize = 2 << 20

	// workBudget is what one Post or Poll copies at most, bytes; jobCost is what a WR counts beside its bytes.
	workBudget = 2 << 20
	jobCost    = 512

	// visitsPerCall bounds the peers that one call looks at.
	visitsPerCall = 64
)

// Post queues and, for as long as the budget lasts, copies.
// hot:
func (d *domain) Post(wrs []provider.WR) (int, error) {
	if d.closed {
		return 0, errPostClosed
	}
	n := 0
	for n < len(wrs) && d.enqueue(&wrs[n]) {
		n++
	}
	d.progress()
	return n, nil
}

var (
	errPostClosed = fmt.Errorf("post to shm: %w", provider.ErrClosed)
	errPollClosed = fmt.Errorf("poll shm: %w", provider.ErrClosed)
)

// enqueue accepts one WR; false means full.
// hot:
func (d *domain) enqueue(wr *provider.WR) bool {
	if wr.Op == provider.OpRecv {
		return d.enqueueRecv(wr)
	}
	p := d.peer(wr.Peer)
	if p == nil || p.state == stateDown {
		if d.strays == peerDepth {
			return false
		}
		d.strays++
		d.complete(nil, wr, provider.StatusFlushed, 0)
		return true
	}
	if p.out == peerDepth {
		return false
	}
	p.out++
	q := &p.writes
	switch {
	case wr.Op == provider.OpSend:
		q = &p.sends
	case wr.Op != provider.OpWrite && wr.Op != provider.OpWriteImm:
		d.complete(p, wr, provider.StatusLocal, 0)
		return true
	}
	if p.state != stateUp {
		d.complete(p, wr, provider.StatusFlushed, 0)
		return true
	}
	j := q.push()
	j.wr, j.done, j.status, j.detail = *wr, 0, provider.StatusOK, 0
	if !p.queued {
		p.queued = true
		*d.active.push() = p
	}
	return true
}

func (d *domain) enqueueRecv(wr *provider.WR) bool {
	if d.recvOut == recvDepth {
		return false
	}
	d.recvOut++
	if _, ok := d.local(wr.LocalKey, wr.LocalAddr, wr.Len); !ok {
		*d.done.push() = result{c: provider.Completion{Token: wr.Token, Kind: provider.KindRecv, Status: provider.StatusLocal}}
		return true
	}
	*d.recvs.push() = *wr
	return true
}

// result is the completion of a WR on its way to the owner, and the connection that it counts for; nil: for none.
type result struct {
	c provider.Completion
	p *peer
}

// complete queues the completion of a write or send.
// hot:
func (d *domain) complete(p *peer, wr *provider.WR, st provider.Status, detail uint32) {
	r := d.done.push()
	r.p = p
	r.c = provider.Completion{Token: wr.Token, Len: wr.Len, Peer: wr.Peer, Kind: provider.KindWrite, Status: st, Detail: detail}
	if wr.Op == provider.OpSend {
		r.c.Kind = provider.KindSend
	}
}

// flush completes a queue that will not be executed any more.
func (d *domain) flush(p *peer, q *fifo[job]) {
	for i := range q.len() {
		d.complete(p, &q.at(i).wr, provider.StatusFlushed, 0)
	}
	q.drop(q.len())
}

// progress gives peers with jobs their turns until the budget is spent, or all have had one in which nothing moved.
// hot:
func (d *domain) progress() {
	left, idle := workBudget, 0
	for left > 0 && idle < min(d.active.len(), visitsPerCall) {
		p := *d.active.at(0)
		d.active.drop(1)
		used := d.run(p)
		left -= used
		idle++
		if used > 0 {
			idle = 0
		}
		if p.writes.len()+p.sends.len() > 0 {
			*d.active.push() = p
		} else {
			p.queued = false
		}
	}
	d.ticks += (workBudget - left) / tickBytes
}

// run gives p one turn and returns what it used of the budget: 0 when nothing moved.
// hot:
func (d *domain) run(p *peer) int {
	used := 0
	if p.state == stateUp && p.writes.len() > 0 {
		used += d.runWrites(p)
	}
	if p.state == stateUp && p.sends.len() > 0 {
		used += d.runSends(p)
	}
	return used
}

// runWrites copies one batch. The order of its steps is the writer's half of the proof in the package's documentation.
// hot:
func (d *domain) runWrites(p *peer) int {
	if p.lend.jobs > 0 {
		return d.lendWrites(p)
	}
	if key := p.writes.at(0).wr.RemoteKey; p.writes.at(0).wr.Len > 0 && p.remote(key) == nil {
		for p.lends(key) == nil && d.readSocket(p) && p.remote(key) == nil { // the grant may be there
		}
		if p.state != stateUp {
			return jobCost
		}
		if p.lends(key) != nil {
			return d.lendWrites(p)
		}
	}
	room, err := p.immOut.Room(batchWrites)
	if err != nil {
		d.breach(p)
		return jobCost
	}
	p.slot = p.firstSlot()
	p.tx.slot.Store(p.slot)
	if p.tx.revoked.Load() != 0 {
		p.tx.slot.Store(0)
		d.end(p, provider.StatusPeerDown)
		return jobCost
	}
	n, bytes := d.copyBatch(p, room)
	d.settle() // before the peer can learn, from the slot or from the ring, that the copies have ended
	if p.tx.revoked.Load() != 0 {
		p.tx.slot.Store(0)
		d.end(p, provider.StatusPeerDown) // the batch is flushed with the rest: nobody will hear of it
		return bytes + jobCost
	}
	if d.looked != nil {
		d.looked()
	}
	publish := d.judgeBatch(p, n)
	if publish {
		p.immOut.Publish()
	}
	// The last look: a reader that revoked before it has perhaps not seen what was published, so none of it may end with ok. One that
	// revokes after it finds everything published when it empties its rings.
	late := p.tx.revoked.Load() != 0
	p.tx.slot.Store(0)
	d.settleBatch(p, n, late)
	if late {
		d.end(p, provider.StatusPeerDown)
	} else if publish {
		d.ring(p)
	}
	return bytes + n*jobCost
}

// firstSlot is what the slot says when a batch begins: the region of the oldest job where it is known, which saves a store.
// hot:
func (p *peer) firstSlot() uint32 {
	if j := p.writes.at(0); j.wr.Len > 0 && p.remote(j.wr.RemoteKey) != nil {
		return 1 + regionIndex(j.wr.RemoteKey)
	}
	return slotBusy
}

// copyBatch copies for the oldest jobs and returns how many are complete, at most room of them with an immediate, and the
// bytes copied. The job behind them may be in progress.
// hot:
func (d *domain) copyBatch(p *peer, room int) (n, bytes int) {
	for most := min(p.writes.len(), batchWrites); n < most && bytes < batchBytes; n++ {
		j := p.writes.at(n)
		if j.wr.Op == provider.OpWriteImm {
			if room == 0 {
				return n, bytes
			}
			room--
		}
		if j.wr.Len > 0 {
			if n > 0 && p.remote(j.wr.RemoteKey) == nil {
				return n, bytes // the next batch begins with a look for its grant
			}
			bytes += d.copyChunk(p, n)
			if j.status == provider.StatusOK && j.done < j.wr.Len {
				return n, bytes
			}
		}
	}
	return n, bytes
}

// copyChunk copies the next chunk of the i-th job, or sets its status.
// hot:
func (d *domain) copyChunk(p *peer, i int) int {
	j := p.writes.at(i)
	wr := &j.wr
	src, ok := d.local(wr.LocalKey, wr.LocalAddr, wr.Len)
	if !ok || wr.Len > maxMsg {
		j.status = provider.StatusLocal
		return 0
	}
	m := p.remote(wr.RemoteKey)
	if m == nil || !p.alive(wr.RemoteKey) {
		j.status = provider.StatusAccess
		return 0
	}
	if size := uint64(len(m.bytes)); wr.RemoteAddr > size || wr.Len > size-wr.RemoteAddr {
		j.status, j.detail = provider.StatusAccess, m.errno
		return 0
	}
	n := min(wr.Len-j.done, chunkSize)
	at := wr.RemoteAddr + j.done
	m.touch(at, n)
	if slot := 1 + regionIndex(wr.RemoteKey); slot != p.slot {
		p.slot = slot
		p.tx.slot.Store(slot)
	}
	dst, next := m.bytes[at:at+n], src[j.done+n:]
	src = src[j.done : j.done+n]
	if len(next) == 0 && n >= streamMin && i+1 < p.writes.len() {
		after := &p.writes.at(i + 1).wr
		next, _ = d.local(after.LocalKey, after.LocalAddr, after.Len)
	}
	if d.midCopy != nil {
		half := copy(dst, src[:n/2])
		d.midCopy()
		dst, src = dst[half:], src[half:]
	}
	d.place(dst, src, next)
	j.done += n
	return int(n)
}

// judgeBatch decides how the n oldest jobs end, now that it is known that the peer did not revoke while they were copied, puts
// their immediates into the ring and reports whether there is something to publish.
// hot:
func (d *domain) judgeBatch(p *peer, n int) bool {
	publish := false
	for i := range n {
		j := p.writes.at(i)
		if j.status == provider.StatusOK && j.wr.Len > 0 && !p.alive(j.wr.RemoteKey) {
			j.status = provider.StatusAccess
		}
		if j.status == provider.StatusOK && j.wr.Op == provider.OpWriteImm {
			p.immOut.Put(ring.Entry{A: j.wr.Len, B: j.wr.Imm})
			publish = true
		}
	}
	return publish
}

// settleBatch completes the n oldest jobs as they were judged; late: what would have ended with ok is flushed. What was refused
// is told in any case, because the reader does not count it.
// hot:
func (d *domain) settleBatch(p *peer, n int, late bool) {
	for i := range n {
		j := p.writes.at(i)
		if late && j.status == provider.StatusOK {
			j.status = provider.StatusFlushed
		}
		d.complete(p, &j.wr, j.status, j.detail)
	}
	p.writes.drop(n)
}

// runSends completes the sends that the peer has taken and puts the next ones into the ring.
// hot:
func (d *domain) runSends(p *peer) int {
	if p.tx.revoked.Load() != 0 {
		d.end(p, provider.StatusPeerDown)
		return jobCost
	}
	used := d.reapSends(p) * jobCost
	put := 0
	for used < batchBytes && p.state == stateUp && p.sent < p.sends.len() {
		j := p.sends.at(p.sent)
		msg, ok := d.local(j.wr.LocalKey, j.wr.LocalAddr, j.wr.Len)
		if !ok || j.wr.Len > maxSend {
			if p.sent > 0 {
				break // it ends after those before it
			}
			d.complete(p, &j.wr, provider.StatusLocal, 0)
			p.sends.drop(1)
			used += jobCost
			continue
		}
		fits, err := p.msgOut.Fits(j.wr.Len)
		if err != nil {
			d.breach(p)
			return jobCost
		}
		if !fits {
			break
		}
		j.done = p.msgOut.Put(msg)
		p.sent++
		put++
		used += int(j.wr.Len) + jobCost
	}
	if put > 0 {
		p.msgOut.Publish()
		d.ring(p)
	}
	return used
}

// reapSends completes the sends that the peer has taken into receives, and returns their number.
// hot:
func (d *domain) reapSends(p *peer) int {
	if p.sent == 0 {
		return 0
	}
	taken, err := p.msgOut.Taken()
	if err != nil {
		d.breach(p)
		return 0
	}
	n := 0
	// Positions wrap, distances do not.
	for n < p.sent && int64(taken-p.sends.at(n).done) >= 0 {
		d.complete(p, &p.sends.at(n).wr, provider.StatusOK, 0)
		n++
	}
	p.sends.drop(n)
	p.sent -= n
	return n
}

// ring wakes the peer's owner if it sleeps, once a sleep.
// hot:
func (d *domain) ring(p *peer) {
	if e := p.theirs.epoch.Load(); e&1 != 0 && e != p.rung {
		p.rung = e
		_, _ = unix.Write(p.bellFD, d.one[:]) // fails only when the bell has rung 2^64-2 times already
	}
}
