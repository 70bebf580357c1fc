package kv

import (
	"context"
	"errors"
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// prefillerOut carries out what P's machine wants. All methods need mu, which the machine's caller holds.
type prefillerOut struct{ *Prefiller }

// Import has a goroutine of its own: a slow decoder holds up nobody else.
func (p prefillerOut) Import(l proto.LinkID, from proto.Peer, h *proto.Hello) {
	peer := p.peer(from)
	p.wg.Go(func() {
		ctx, cancel := context.WithTimeout(p.ctx, connectLimit)
		defer cancel()
		m, err := p.resolve(ctx, peer, h)
		p.mu.Lock()
		defer p.unlock()
		if err == nil {
			p.imports[l] = m
		}
		p.m.Imported(p.now(), l, err)
	})
}

// resolve imports a decoder's regions and checks that its views and tails end inside them.
func (p *Prefiller) resolve(ctx context.Context, from *hawser.Peer, h *proto.Hello) (*imported, error) {
	t, err := layout.DecodeTopology(h.Topology)
	if err != nil {
		return nil, err
	}
	if h.Member >= len(t.Members) {
		return nil, fmt.Errorf("%w: member %d of %d", hawser.ErrInvalid, h.Member, len(t.Members))
	}
	sizes := t.Members[h.Member].RegionBytes()
	if h.TailBytes > 0 {
		sizes = append(sizes, int64(h.TailBytes)*int64(h.TailSlots))
	}
	if len(sizes) != len(h.Descriptors) {
		return nil, fmt.Errorf("%w: %d descriptors for %d regions", hawser.ErrInvalid, len(h.Descriptors), len(sizes))
	}
	m := &imported{bytes: uint64(h.TailBytes)}
	for i, b := range h.Descriptors {
		r, err := p.importRegion(ctx, from, b)
		if err != nil {
			return nil, fmt.Errorf("region %d: %w", i, err)
		}
		if r.Len() < uint64(sizes[i]) {
			return nil, fmt.Errorf("region %d: %w: it has %d bytes, the views need %d", i, hawser.ErrInvalid, r.Len(), sizes[i])
		}
		m.regions = append(m.regions, r)
	}
	if h.TailBytes > 0 {
		m.tails = m.regions[len(m.regions)-1]
	}
	return m, nil
}

// importRegion refuses what belongs to another than the peer.
func (p *Prefiller) importRegion(ctx context.Context, from *hawser.Peer, descriptor []byte) (*hawser.Remote, error) {
	var d hawser.Descriptor
	if err := d.UnmarshalBinary(descriptor); err != nil {
		return nil, err
	}
	if d.Owner() != from.ID() {
		return nil, fmt.Errorf("%w: it belongs to engine %s, not to the sender", hawser.ErrAccess, d.Owner())
	}
	return p.eng.Import(ctx, d)
}

func (p prefillerOut) Forget(l proto.LinkID) { delete(p.imports, l) }

// Post submits one batch.
// hot:
func (p prefillerOut) Post(cookie uint64, w *proto.Posting) (uint64, error) {
	b, m := &w.Batch, p.imports[w.Link]
	if m == nil {
		return 0, errNoImport
	}
	if b.N > len(p.src) {
		p.src, p.dst = make([]uint32, b.N), make([]uint32, b.N)
	}
	src, dst, t := p.src[:b.N], p.dst[:b.N], b.Template
	b.Fill(w.Src, w.Dst, src, dst)
	from := p.cfg.Regions[t.SrcRegion]
	err := p.queue.WritePages(hawser.WritePages{
		PageLen: uint64(b.Len),
		Src:     hawser.Pages{Region: from, Indices: src, Stride: uint64(t.SrcStride), Offset: uint64(b.SrcOff)},
		Dst:     hawser.RemotePages{Remote: m.regions[t.DstRegion], Indices: dst, Stride: uint64(t.DstStride), Offset: uint64(b.DstOff)},
		Imm:     hawser.Imm(w.Imm),
	}, cookie)
	if err != nil {
		return 0, roomOr(err)
	}
	if !p.cfg.Verify {
		return 0, nil
	}
	return sumBatch(b, from.Bytes(), src, b.SrcOff, t.SrcStride), nil
}

func (p prefillerOut) PostTail(cookie uint64, w *proto.Posting) (uint64, error) {
	j, m := p.jobs[w.Job], p.imports[w.Link]
	switch {
	case m == nil:
		return 0, errNoImport
	case j == nil || m.tails == nil:
		return 0, fmt.Errorf("tail: %w: none was given", hawser.ErrInvalid)
	case j.tail.Len > m.bytes:
		return 0, fmt.Errorf("tail: %w: %d bytes, the decoder takes %d", hawser.ErrInvalid, j.tail.Len, m.bytes)
	}
	err := p.queue.Write(hawser.Write{
		Src: j.tail, Dst: m.tails.Slice(uint64(w.TailSlot)*m.bytes, j.tail.Len), Imm: hawser.Imm(w.Imm), Parts: 1,
	}, cookie)
	if err != nil {
		return 0, roomOr(err)
	}
	return 0, nil
}

// roomOr tells an engine that has no room now from one that refuses.
func roomOr(err error) error {
	if errors.Is(err, hawser.ErrBusy) || errors.Is(err, hawser.ErrLimit) {
		return proto.ErrRoom
	}
	return err
}

var errNoImport = errors.New("the link's memory is not imported")

func (p prefillerOut) Admit(n proto.JobID, info *proto.JobInfo) proto.Admission {
	j := p.jobs[n]
	if j == nil {
		j = &Job{p: p.Prefiller, number: n, over: make(chan struct{})}
		p.jobs[n] = j
	}
	j.info = *info
	a := p.handler.Admit(j)
	switch a.Verdict {
	case proto.AdmitReady:
		j.sources++
	case proto.AdmitRefused:
		if !info.Expected { // else Stop comes
			delete(p.jobs, n)
		}
	}
	return a
}

func (p prefillerOut) Start(n proto.JobID) { p.handler.Start(p.jobs[n]) }

func (p prefillerOut) Stop(n proto.JobID) {
	j := p.jobs[n]
	j.stopped = true
	p.handler.Stop(j)
	close(j.over)
	p.drop(j)
}

func (p prefillerOut) Unpin(n proto.JobID) {
	j := p.jobs[n]
	j.sources--
	p.handler.Unpin(j)
	p.drop(j)
}

// drop forgets a job of which the machine speaks no more.
func (p *Prefiller) drop(j *Job) {
	if j.stopped && j.sources == 0 {
		delete(p.jobs, j.number)
	}
}

func (p prefillerOut) Note(n proto.ServeNote) {
	switch n.Kind {
	case proto.ServeLinkUp:
		p.log.Info("link up", "peer", p.peer(n.Peer), "path", p.peer(n.Peer).Path())
	case proto.ServeLinkDown:
		p.log.Info("link down", "peer", p.peer(n.Peer), "why", n.Text)
	case proto.ServeUnexpected:
		p.log.Debug("unexpected event", "request", n.Request, "attempt", n.Seq, "state", n.From, "event", n.To)
	}
	if p.cfg.Observer != nil {
		p.cfg.Observer(n)
	}
}
