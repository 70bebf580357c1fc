package weights

import (
	"context"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
)

// publisherOut carries out what the publisher's machine wants. All methods need mu, which the machine's caller holds.
type publisherOut struct{ *Publisher }

// Grant makes the inbox for the maxima of an epoch.
func (p publisherOut) Grant(e *proto.Epoch, serial uint64, _ []uint64) {
	slice := p.slices[e.Key].slice
	p.do(func(context.Context) func(proto.Time) {
		b, err := p.openInbox(slice, serial)
		return func(now proto.Time) {
			if err != nil {
				p.m.Granted(now, e.Key, nil, nil, err)
				return
			}
			p.inbox = b
			p.m.Granted(now, e.Key, []uint32{b.counter.Imm()}, b.descriptors, nil)
		}
	})
}

// openInbox takes an immediate, and memory if what is there is too short.
func (p *Publisher) openInbox(slice *reshard.Slice, serial uint64) (*inbox, error) {
	in, out := inboxBytes(slice)
	p.mu.Lock()
	b := p.inbox
	p.mu.Unlock()
	x := &inbox{serial: serial}
	if b != nil {
		x.region, x.outbox = b.region, b.outbox
		if b.serial == serial {
			x.descriptors = b.descriptors
		}
	}
	var err error
	if x.region, err = p.roomFor(x.region, in, &x.descriptors); err != nil {
		return nil, err
	}
	if x.outbox, err = p.roomFor(x.outbox, out, nil); err != nil {
		return nil, err
	}
	if x.descriptors == nil {
		if x.descriptors, err = describe([]*hawser.Region{x.region}, []hull{{0, 0, int64(x.region.Len())}}); err != nil {
			return nil, err
		}
	}
	x.counter, err = p.eng.Imms().Take()
	return x, err
}

// roomFor returns r, or a longer region in its place; then descriptors of r mean nothing any more.
func (p *Publisher) roomFor(r *hawser.Region, n int64, descriptors *[][]byte) (*hawser.Region, error) {
	if r != nil && r.Len() >= uint64(n) {
		return r, nil
	}
	if descriptors != nil {
		*descriptors = nil
	}
	if r != nil {
		if err := r.Close(); err != nil {
			return nil, err
		}
	}
	return p.eng.Alloc(uint64(max(2*n, 64<<10)), hawser.MemOptions{})
}

// Put gives the immediate back.
func (p publisherOut) Put(proto.Key) {
	if b := p.inbox; b != nil && b.counter != nil {
		_ = p.eng.Imms().Put(b.counter) // only the inbox gives it back
		b.counter = nil
	}
}

func (p *Publisher) closeInbox() {
	if b := p.inbox; b != nil {
		publisherOut{p}.Put(proto.Key{})
		_ = b.region.Close()
		_ = b.outbox.Close()
		p.inbox = nil
	}
}

// Start writes what Push offers.
func (p publisherOut) Start(e *proto.Epoch, grants []proto.PeerGrant) {
	o := newOutbound(&p.member, e, grants)
	if p.inbox != nil {
		b := *p.inbox // Put changes that of the publisher
		o.inbox = &b
	}
	if x := p.push; x != nil {
		o.ready = x.ready
		o.wrote = func(r memberReport) {
			r.Phases.raise(x.sum.Phases)
			x.sum = memberReport{Phases: r.Phases, Bytes: r.Bytes + x.sum.Bytes, Writes: r.Writes + x.sum.Writes, Staging: max(r.Staging, x.sum.Staging)}
		}
		x.epochs++
	}
	p.write(o)
}

func (p publisherOut) Wanted(v proto.Version) {
	if p.o.Wanted != nil {
		p.o.Wanted(v)
	}
}

func (p publisherOut) Ended(_ proto.Version, e proto.Key, err error) {
	if x := p.push; x != nil {
		x.epoch, x.err = e, err
		p.push = nil
		close(x.over)
	}
}

func (p publisherOut) Note(n proto.Note) {
	p.note(n)
	if n.Kind == proto.NotePhase && n.To == "" {
		signal(p.free)
	}
}
