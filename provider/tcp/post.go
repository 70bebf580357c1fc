package tcp

import "github.com/hawser-project/hawser/provider"

// Post implements [provider.Domain]. It hands the first requests of a peer that was idle to the kernel at once, because nothing would be
// gained by waiting; the others share the calls of the next Poll.
//
// hot:
func (d *domain) Post(wrs []provider.WR) (int, error) {
	if d.closed {
		return 0, d.errorf("post: %w", provider.ErrClosed)
	}
	n := 0
	for n < len(wrs) && d.post(&wrs[n]) {
		n++
	}
	for i, p := range d.kicked {
		p.kicked = false
		d.kicked[i] = nil
		if p.phase == up && p.stream.sendable() {
			d.transmit(p)
		}
	}
	d.kicked = d.kicked[:0]
	return n, nil
}

// post takes one WR and reports false when there is no room for it.
//
// hot:
func (d *domain) post(wr *provider.WR) bool {
	if d.errs.len() == errorDepth {
		return false
	}
	switch wr.Op {
	case provider.OpWrite, provider.OpWriteImm:
		return d.postTo(wr, provider.KindWrite, maxMsg)
	case provider.OpSend:
		return d.postTo(wr, provider.KindSend, maxSend)
	case provider.OpRecv:
		if d.recvs.len() == recvDepth {
			return false
		}
		buf, ok := d.local(wr)
		if !ok {
			d.reject(wr, provider.KindRecv, provider.StatusLocal)
			return true
		}
		d.recvs.push(posted{buf: buf, token: wr.Token}, recvDepth)
		if d.recvs.len() == 1 { // else they have been told
			for _, p := range d.earlyPeers {
				d.activate(p)
			}
		}
		return true
	}
	d.reject(wr, provider.KindWrite, provider.StatusLocal)
	return true
}

// postTo queues a write or a message.
//
// hot:
func (d *domain) postTo(wr *provider.WR, kind provider.Kind, limit uint64) bool {
	p := d.peer(wr.Peer)
	if p == nil || p.phase != up {
		d.reject(wr, kind, provider.StatusFlushed)
		return true
	}
	data, ok := d.local(wr)
	if !ok || wr.Len > limit {
		d.reject(wr, kind, provider.StatusLocal)
		return true
	}
	s := &p.stream
	held := s.writes.held() + s.msgs.held()
	if held == peerDepth {
		return false
	}
	q := &s.writes
	if kind == provider.KindSend {
		q = &s.msgs
	}
	r := q.push()
	r.data, r.token, r.key, r.addr, r.imm, r.op = data, wr.Token, wr.RemoteKey, wr.RemoteAddr, wr.Imm, wr.Op
	r.status = provider.StatusOK
	if len(data) == 0 {
		r.key, r.addr = 0, 0
	}
	if held == 0 && !p.kicked {
		p.kicked = true
		d.kicked = append(d.kicked, p)
	}
	d.activate(p)
	return true
}

// reject completes a WR that is not executed.
//
// hot:
func (d *domain) reject(wr *provider.WR, kind provider.Kind, status provider.Status) {
	d.errs.push(provider.Completion{Token: wr.Token, Peer: wr.Peer, Kind: kind, Status: status}, errorDepth)
}
