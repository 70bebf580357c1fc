package shm

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

const (
	// pullEntries bounds the loans that one system call serves, which costs some 300 ns and, for each page, its pin.
	pullEntries = 64

	// pullChunk is what is read between two looks at the revoked word, in one system call or several copies, bytes: the owner
	// does nothing else meanwhile, and the end of the connection waits for it. 100 to 300 us.
	pullChunk = chunkSize

	// pullBudget is what one Poll reads at most, bytes.
	pullBudget = workBudget
)

// vectors are the arguments of one process_vm_readv: pieces of the writer's memory, then its proof.
type vectors struct {
	local  [pullEntries + 1]unix.Iovec
	remote [pullEntries + 1]unix.RemoteIovec
	nl, nr int
	bytes  uint64
	moved  uint64          // bytes, and those that were copied beside
	found  [proofSize]byte // what lies where the proof should be
}

// reset empties v.
// hot:
func (v *vectors) reset() { v.nl, v.nr, v.bytes = 0, 0, 0 }

// add adds a piece: dst is where it goes, addr where it comes from. Pieces that follow each other on a side are one there. There is
// room for pullEntries.
// hot:
func (v *vectors) add(dst []byte, addr uint64) {
	n := uint64(len(dst))
	v.bytes += n
	if last := v.nl - 1; last >= 0 && endOf(&v.local[last]) == address0(dst) {
		v.local[last].Len += n
	} else {
		v.local[v.nl] = unix.Iovec{Base: &dst[0], Len: n}
		v.nl++
	}
	if last := v.nr - 1; last >= 0 && uint64(v.remote[last].Base)+uint64(v.remote[last].Len) == addr {
		v.remote[last].Len += int(n)
	} else {
		v.remote[v.nr] = unix.RemoteIovec{Base: uintptr(addr), Len: int(n)}
		v.nr++
	}
}

// endOf is the address behind a piece.
// hot:
func endOf(v *unix.Iovec) uint64 {
	return uint64(uintptr(unsafe.Pointer(v.Base))) + v.Len // safe: compared, never read through
}

// read reads all pieces and the proof from p's process in one system call, so that all are of one process. n is what was read.
// hot:
func (v *vectors) read(p *peer) (n uint64, errno unix.Errno) {
	v.found = [proofSize]byte{}
	v.local[v.nl] = unix.Iovec{Base: &v.found[0], Len: proofSize}
	v.remote[v.nr] = unix.RemoteIovec{Base: uintptr(p.pull.proof.addr), Len: proofSize}
	// safe: the kernel writes to the pieces, which gather has checked against our regions, and to found, during the call.
	r, _, errno := unix.Syscall6(unix.SYS_PROCESS_VM_READV, uintptr(p.pull.pid),
		uintptr(unsafe.Pointer(&v.local)), uintptr(v.nl+1), uintptr(unsafe.Pointer(&v.remote)), uintptr(v.nr+1), 0)
	clear(v.local[:v.nl+1]) // pointers to memory that its owner may unmap
	if errno != 0 {
		return 0, errno
	}
	return uint64(r), 0
}

// whole reports whether read has read everything, of the process that it should be.
// hot:
func (v *vectors) whole(p *peer, n uint64) bool {
	return n == v.bytes+proofSize && v.found == p.pull.proof.value
}

// takeLoans takes entries out of the ring, of which e is the first, and queues them. False: the peer broke the protocol.
// hot:
func (d *domain) takeLoans(p *peer, e ring.Entry) bool {
	for ok := true; ok; {
		var l loan
		if e.A&loanBit != 0 {
			l = p.pull.loans[p.pull.next%peerDepth]
			p.pull.next++
		}
		if !p.pull.queue.push().decode(e, l) {
			return false
		}
		if p.pull.queue.len() == pullEntries {
			break
		}
		var err error
		if e, ok, err = p.immIn.Next(); err != nil {
			return false
		}
	}
	if p.immIn.Release() {
		d.ring(p)
	}
	return true
}

// pull reads for the oldest loans of p, once, and delivers the immediates of those that are complete. The slot and the revoked word
// are used as in runWrites: whoever takes a source back sets revoked, then waits for the slot.
// hot:
func (d *domain) pull(p *peer, cs []provider.Completion) int {
	if p.state != stateUp {
		p.pull.cut = true // they did not arrive whole; those behind them end as flushed at the writer, too
		return 0
	}
	if len(cs) == 0 || d.pullLeft <= 0 {
		return 0
	}
	p.tx.slot.Store(slotPull)
	if p.tx.revoked.Load() != 0 {
		p.tx.slot.Store(0)
		d.end(p, provider.StatusPeerDown)
		return 0
	}
	if d.midPull != nil {
		d.midPull(false)
	}
	jobs := d.pullBatch(p, min(len(cs), pullEntries))
	d.settle()
	if d.midPull != nil {
		d.midPull(true)
	}
	if jobs < 0 || p.state != stateUp || p.tx.revoked.Load() != 0 { // what was read may not be the source any more
		p.tx.slot.Store(0)
		d.end(p, provider.StatusPeerDown)
		return 0
	}
	n := d.settlePull(p, jobs, cs)
	p.tx.slot.Store(0)
	d.pullLeft -= int(d.pulling.moved) + jobs*jobCost
	d.ticks += int(d.pulling.moved) / tickBytes
	return n
}

// pullBatch reads for up to most of the oldest loans and returns for how many; -1: the peer's process has gone.
// hot:
func (d *domain) pullBatch(p *peer, most int) int {
	jobs := d.gather(p, most, pullEntries)
	if jobs < 0 || d.pulling.bytes == 0 {
		return jobs
	}
	if n, _ := d.pulling.read(p); d.pulling.whole(p, n) {
		return jobs
	}
	return d.pullOne(p, most)
}

// pullOne reads for the first loan alone after something went wrong, to see whose fault it is.
func (d *domain) pullOne(p *peer, most int) int {
	jobs := d.gather(p, most, 1)
	if jobs < 0 {
		return jobs
	}
	n, errno := d.pulling.read(p)
	if d.pulling.whole(p, n) {
		return jobs
	}
	j := p.pull.queue.at(jobs - 1) // the one that has bytes
	j.part = 0
	switch fault := d.proveProcess(p); {
	case fault == nil: // the source, or our own memory, is not there
		j.status, j.errno = provider.StatusLocal, unix.EFAULT
		if errno != 0 {
			j.errno = errno
		}
	case errno == unix.EPERM: // it was allowed when the peer connected
		j.status, j.errno = provider.StatusAccess, errno
	default:
		return -1
	}
	return jobs
}

// gather prepares the pieces of up to most of the oldest jobs, of which up to lent have bytes that only the system call reaches, and returns
// their number; -1: the connection has ended. Those that it can copy it copies. The last one may be in part.
// hot:
func (d *domain) gather(p *peer, most, lent int) int {
	d.pulling.reset()
	n, moved := 0, uint64(0)
	for most = min(most, p.pull.queue.len()); n < most && moved < pullChunk && lent > 0; n++ {
		j := p.pull.queue.at(n)
		j.part = 0
		if !j.lent || j.status != provider.StatusOK || j.len == 0 {
			continue
		}
		dst, ok := d.granted(p, j)
		if !ok {
			j.status = provider.StatusAccess
			continue
		}
		j.part = min(j.len-j.done, pullChunk-moved)
		moved += j.part
		dst = dst[j.done : j.done+j.part]
		m := d.source(p, j)
		if p.state != stateUp { // the socket has ended, and the writer may have its sources back
			return -1
		}
		if m != nil {
			d.copySource(j, dst, m)
			continue
		}
		d.pulling.add(dst, j.addr+j.done)
		lent--
	}
	d.pulling.moved = moved
	return n
}

// granted is the memory that a loan is for, if it was granted to the peer and still is there.
// hot:
func (d *domain) granted(p *peer, j *pulled) ([]byte, bool) {
	i := regionIndex(j.key)
	if i >= uint32(len(p.granted)) || p.granted[i] != regionGen(j.key) || i >= uint32(len(d.regions)) {
		return nil, false
	}
	r := &d.regions[i]
	if size := uint64(len(r.bytes)); r.key != j.key || j.at > size || j.len > size-j.at {
		return nil, false
	}
	return r.bytes[j.at : j.at+j.len], true
}

// settlePull answers those of the oldest jobs that are complete and delivers their immediates. One answer is published for all.
// hot:
func (d *domain) settlePull(p *peer, jobs int, cs []provider.Completion) int {
	n, k := 0, 0
	answered := p.pull.done
	for ; k < jobs; k++ {
		j := p.pull.queue.at(k)
		j.done += j.part
		if j.lent && j.status == provider.StatusOK && j.done < j.len {
			break
		}
		if j.lent {
			p.pull.to[p.pull.done%peerDepth].Store(uint32(makeOutcome(j.status, j.errno)))
			p.pull.done++
		}
		if j.status == provider.StatusOK && !j.plain {
			cs[n] = provider.Completion{Len: j.len, Peer: p.handle, Imm: j.imm, Kind: provider.KindImm}
			n++
		}
	}
	p.pull.queue.drop(k)
	if p.pull.done != answered {
		p.rx.answered.Store(p.pull.done) // releases the outcomes to the writer's load
		d.ring(p)
	}
	return n
}
