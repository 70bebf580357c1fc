package proto

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

const (
	// byeTime is how long Close waits for a decoder to say that it has no live attempt.
	byeTime = time.Second
	// A Hello costs more than any other message, and whoever sends it chooses how much: helloBurst at once, then one in helloPause.
	helloBurst = 16
	helloPause = 100 * time.Millisecond
)

// servePeer is an engine that has said Hello. Owned by the Prefiller, as everything below.
type servePeer struct {
	id        Peer
	link      *serveLink // of the newest epoch; it may have ended
	importing *serveLink // Import was called and not answered
	epoch     uint64     // the newest that was seen
	refusal   []byte     // HelloReject that answers this epoch, if it was refused
	pace      Time       // when its Hellos are none too many
	told      bool       // that it speaks garbage
	down      bool       // forget it with its last link

	links  int    // that are not forgotten
	writes int    // posted and not completed, over all links
	bytes  uint64 // of them
}

// serveLink is one epoch of a decoder.
type serveLink struct {
	id       LinkID
	peer     *servePeer
	epoch    uint64 // D's number of the link; the ticket, ours, is id
	up       bool
	ended    bool
	instance string
	member   int
	members  int // of D's instance
	pair     *layout.Pair
	longest  int64 // bytes of the longest write
	slots    int   // of the tail buffer

	lowWater, next uint64
	attempts       map[uint64]*serving // tombs too, until the decoder forgets them
	live           []*serving          // no particular order, but a determined one
	waiting        int                 // jobs that this link made and that wait
	words          int                 // page numbers and token ids that live attempts keep

	work        ordered[*serving] // live attempts with something to post
	dirty       bool              // in Prefiller.dirty
	hungry      bool              // in Prefiller.hungry
	outstanding int               // writes

	credit linkCredit
	beat   alarm
	bye    alarm
	beaten struct { // what the last messages said
		granted uint64
		at      Time
	}
}

// send sends a message, or loses it: the decoder repeats what it waits for.
func (p *Prefiller) send(l *serveLink, b Body) {
	p.out.Send(l.peer.id, Encode(Head{Epoch: l.epoch, Ticket: uint64(l.id)}, b))
}

// Message takes a message of a peer. data may be used again afterwards.
func (p *Prefiller) Message(now Time, from Peer, data []byte) {
	p.enter(now)
	h, b, err := Decode(data)
	if err == nil {
		err = p.handle(from, h, b)
	}
	if err != nil {
		p.complain(from, h, err)
	}
	p.leave()
}

// handle takes one message. The error is the sender's fault and costs it the link.
func (p *Prefiller) handle(from Peer, h Head, b Body) error {
	if m, ok := b.(*Hello); ok {
		return p.hello(from, h, m)
	}
	peer := p.peers[from]
	if peer == nil || peer.link == nil || peer.link.ended || h.Epoch != peer.link.epoch || h.Ticket != uint64(peer.link.id) {
		if broken(mutEpoch) && peer != nil && peer.link != nil && !peer.link.ended {
			return p.linkMessage(peer.link, h, b)
		}
		p.stranger(from, peer, h, b)
		return nil
	}
	return p.linkMessage(peer.link, h, b)
}

// stranger answers a message of a link that has ended: if the decoder still believes in it, the answer tells it.
func (p *Prefiller) stranger(from Peer, peer *servePeer, h Head, b Body) {
	p.stats.Stale++
	current := peer != nil && peer.link != nil && !peer.link.ended && h.Epoch == peer.link.epoch
	if b.Kind() != KindBye && !current {
		p.out.Send(from, Encode(Head{Epoch: h.Epoch}, &Bye{"there is no such link"}))
	}
}

// linkMessage takes a message of a link that is up.
func (p *Prefiller) linkMessage(l *serveLink, h Head, b Body) error {
	p.forget(l, h)
	switch m := b.(type) {
	case *Dispatch:
		if fresh, err := l.fresh(h, m.Seq); !fresh {
			return err
		}
		return p.dispatch(l, m)
	case *Cancel:
		if fresh, err := l.fresh(h, m.Seq); !fresh {
			return err
		}
		return p.cancel(l, m)
	case *Query:
		p.query(l, m)
	case *Beat:
		p.wants(l, m.Wants)
	case *Drain:
	case *Bye:
		p.endLink(l, "decoder says: "+m.Text)
	default:
		return fmt.Errorf("%w: %v message from a decoder", ErrProtocol, b.Kind())
	}
	return nil
}

// fresh reports whether a message about an attempt is to be handled: not if the decoder has forgotten the attempt since. The
// error is for an attempt that cannot be.
func (l *serveLink) fresh(h Head, seq uint64) (bool, error) {
	if seq < l.lowWater && !broken(mutLowWater) {
		return false, nil
	}
	if seq >= h.Next || seq >= l.lowWater+seqWindow {
		return false, fmt.Errorf("%w: message about attempt %d, want %d .. %d", ErrProtocol, seq, l.lowWater, min(h.Next, l.lowWater+seqWindow)-1)
	}
	return true, nil
}

// forget drops what the decoder will not ask about again.
func (p *Prefiller) forget(l *serveLink, h Head) {
	l.next = max(l.next, h.Next)
	if h.LowWater <= l.lowWater {
		return
	}
	low := l.lowWater
	l.lowWater = h.LowWater
	if h.LowWater-low > uint64(len(l.attempts)) { // a decoder with many links
		var gone []uint64
		for seq := range l.attempts {
			if seq < h.LowWater {
				gone = append(gone, seq)
			}
		}
		slices.Sort(gone)
		for _, seq := range gone {
			p.bury(l, l.attempts[seq])
		}
		return
	}
	for seq := low; seq < h.LowWater; seq++ {
		if s := l.attempts[seq]; s != nil {
			p.bury(l, s)
		}
	}
}

// bury forgets a tomb.
func (p *Prefiller) bury(l *serveLink, s *serving) {
	if s.step.state.live() {
		return // it is forgotten when it ends
	}
	delete(l.attempts, s.seq)
	if s.detach != nil {
		p.undetach(s)
	}
}

// hello answers a Hello.
func (p *Prefiller) hello(from Peer, h Head, m *Hello) error {
	peer := p.peers[from]
	if peer == nil {
		peer = &servePeer{id: from}
		p.peers[from] = peer
	}
	switch {
	case h.Epoch < peer.epoch:
		return nil
	case h.Epoch == peer.epoch && peer.refusal != nil:
		p.out.Send(from, slices.Clone(peer.refusal))
		return nil
	case h.Epoch == peer.epoch && peer.link != nil:
		if l := peer.link; l.ended {
			p.out.Send(from, Encode(Head{Epoch: h.Epoch}, &Bye{"the link has ended"}))
		} else if l.up {
			p.helloAck(l)
		}
		return nil
	}
	if peer.link != nil && !peer.link.ended {
		p.endLink(peer.link, "a newer hello")
	}
	if peer.importing != nil {
		return nil // for a link that has ended, so not for long: the decoder says hello again
	}
	if peer.pace > p.now+(helloBurst-1)*helloPause {
		return nil // it says hello again
	}
	peer.pace = max(peer.pace, p.now) + helloPause
	peer.epoch, peer.refusal, peer.down = h.Epoch, nil, false
	l, refusal := p.newLink(peer, h, m)
	if refusal != nil {
		p.refuseHello(peer, h.Epoch, refusal)
		return nil
	}
	p.lastLink++
	l.id = p.lastLink
	l.beat.link, l.bye.link = l, l
	peer.link, peer.importing = l, l
	peer.links++
	peer.told = false
	p.links = append(p.links, l)
	p.out.Import(l.id, from, m)
	return nil
}

// newLink checks what a Hello says.
func (p *Prefiller) newLink(peer *servePeer, h Head, m *Hello) (*serveLink, *HelloReject) {
	if p.closing {
		return nil, &HelloReject{Code: CodeClosed, Text: "prefiller is closing"}
	}
	x := p.pairing(m)
	if x.theirs == nil {
		return nil, &HelloReject{Code: CodeInvalid, Text: x.err.Error()}
	}
	want := len(x.theirs.Members[m.Member].RegionBytes())
	if m.TailBytes > 0 {
		want++
	}
	if len(m.Descriptors) != want {
		return nil, &HelloReject{Code: CodeInvalid, Text: fmt.Sprintf("%d descriptors, the geometry has %d regions", len(m.Descriptors), want)}
	}
	if x.err != nil {
		return nil, mismatch(x.err)
	}
	l := &serveLink{
		peer: peer, epoch: h.Epoch, instance: m.Instance, member: m.Member, members: len(x.theirs.Members), pair: x.pair, slots: m.TailSlots,
		lowWater: h.LowWater, next: h.Next, attempts: map[uint64]*serving{}, beat: alarm{kind: alarmBeat}, bye: alarm{kind: alarmBye},
	}
	for _, f := range x.pair.Flows() {
		for _, e := range f.Entries {
			l.longest = max(l.longest, e.Len)
		}
	}
	return l, nil
}

func mismatch(err error) *HelloReject {
	var x *layout.MismatchError
	switch {
	case errors.As(err, &x):
		return &HelloReject{Code: CodeMismatch, Field: x.Field, Here: x.Src, There: x.Dst}
	case errors.Is(err, layout.ErrInfeasible):
		return &HelloReject{Code: CodeInfeasible, Text: err.Error()}
	}
	return &HelloReject{Code: CodeInvalid, Text: err.Error()}
}

func (p *Prefiller) refuseHello(peer *servePeer, epoch uint64, m *HelloReject) {
	data := Encode(Head{Epoch: epoch}, m)
	peer.refusal = slices.Clone(data)
	text := m.Text
	if m.Field != "" {
		text = fmt.Sprintf("%s here %s, there %s", m.Field, m.Here, m.There)
	}
	p.out.Note(ServeNote{Kind: ServeLinkDown, Peer: peer.id, Code: m.Code, Text: text})
	p.out.Send(peer.id, data)
}

// Imported answers Import. An error refuses the Hello; its text goes to the decoder.
func (p *Prefiller) Imported(now Time, id LinkID, err error) {
	p.enter(now)
	if l := p.findLink(id); l != nil && l.peer.importing == l {
		l.peer.importing = nil
		switch {
		case l.ended:
		case err != nil:
			p.refuseHello(l.peer, l.epoch, &HelloReject{Code: CodeInvalid, Text: err.Error()})
			l.ended = true
		default:
			l.up = true
			p.welcome(l)
			p.out.Note(ServeNote{Kind: ServeLinkUp, Link: l.id, Peer: l.peer.id})
			p.helloAck(l)
			if p.draining {
				p.part(l)
			}
		}
		p.mayForget(l)
	}
	p.leave()
}

func (p *Prefiller) helloAck(l *serveLink) {
	l.beaten.granted = l.credit.granted
	p.send(l, &HelloAck{Instance: p.cfg.Instance, Member: p.cfg.Member, Topology: p.topology, Granted: l.credit.granted})
}

func (p *Prefiller) findLink(id LinkID) *serveLink {
	i, ok := slices.BinarySearchFunc(p.links, id, func(l *serveLink, id LinkID) int { return int(l.id) - int(id) })
	if !ok {
		return nil
	}
	return p.links[i]
}

// endLink stops every attempt of a link without an answer.
func (p *Prefiller) endLink(l *serveLink, why string) {
	if l.ended {
		return
	}
	l.ended = true
	p.out.Note(ServeNote{Kind: ServeLinkDown, Link: l.id, Peer: l.peer.id, Text: why})
	p.alarms.clear(&l.beat)
	p.alarms.clear(&l.bye)
	for i := len(l.live) - 1; i >= 0; i-- {
		p.step(l.live[i], serveEvent{kind: svLinkEnded})
	}
	p.buryAll(l)
	p.closeCredit(l)
	p.mayForget(l)
}

// buryAll forgets the tombs of a link that has ended.
func (p *Prefiller) buryAll(l *serveLink) {
	var detached []uint64
	for seq, s := range l.attempts {
		if s.detach != nil {
			detached = append(detached, seq)
		}
	}
	slices.Sort(detached)
	for _, seq := range detached {
		p.undetach(l.attempts[seq])
	}
	l.attempts = map[uint64]*serving{}
	for _, s := range l.live {
		l.attempts[s.seq] = s
	}
}

// mayForget gives up a link of which nothing is left.
func (p *Prefiller) mayForget(l *serveLink) {
	if !l.ended || l.outstanding > 0 || len(l.live) > 0 || l.peer.importing == l {
		return
	}
	i := slices.Index(p.links, l)
	if i < 0 {
		return
	}
	p.links = slices.Delete(p.links, i, i+1)
	p.out.Forget(l.id)
	if l.peer.links--; l.peer.links == 0 && l.peer.down {
		delete(p.peers, l.peer.id)
	}
}

// complain ends the link of a peer that speaks garbage and tells it why, once.
func (p *Prefiller) complain(from Peer, h Head, err error) {
	p.stats.Protocol++
	peer := p.peers[from]
	if peer == nil {
		peer = &servePeer{id: from}
		p.peers[from] = peer
	}
	epoch := h.Epoch
	if l := peer.link; l != nil && !l.ended {
		epoch = l.epoch
		p.endLink(l, err.Error())
	}
	if !peer.told {
		peer.told = true
		p.out.Send(from, Encode(Head{Epoch: epoch}, &Bye{err.Error()}))
	}
}

// PeerDown ends the link of a peer: its engine has gone, or lost the connection.
func (p *Prefiller) PeerDown(now Time, from Peer) {
	p.enter(now)
	if peer := p.peers[from]; peer != nil {
		if peer.link != nil {
			p.endLink(peer.link, "peer is down")
		}
		peer.told, peer.down = false, true
		if peer.links == 0 {
			delete(p.peers, from)
		}
	}
	p.leave()
}

// Knows reports whether a number of a peer still means something here. The caller may forget one that does not, and is down.
func (p *Prefiller) Knows(n Peer) bool { return p.peers[n] != nil }

// partAll tells all decoders that no new job is taken, and ends the links of those that have nothing live.
func (p *Prefiller) partAll() {
	for _, l := range slices.Clone(p.links) {
		if l.up && !l.ended {
			p.part(l)
		}
	}
}

func (p *Prefiller) part(l *serveLink) {
	p.send(l, &Drain{})
	if p.closing {
		p.alarms.set(&l.bye, p.closed+byeTime)
	}
	p.changed(l)
}

// mayPart ends a link of a prefiller that drains, once the decoder has said that it has no live attempt, and none of its members
// can attach to a job that is here. A goodbye may overtake the last writes; a decoder that still waits for them would have to fence.
func (p *Prefiller) mayPart(l *serveLink) {
	if !p.draining || l.ended || !l.up || len(l.live) > 0 || l.lowWater != l.next && !broken(mutBye) {
		return
	}
	for _, j := range p.jobs {
		if j.instance == l.instance {
			return
		}
	}
	p.bye(l)
}

func (p *Prefiller) bye(l *serveLink) {
	text := "prefiller is draining"
	if p.closing {
		text = "prefiller closed"
	}
	p.send(l, &Bye{text})
	p.endLink(l, text)
}

// farewell is the end of a prefiller's patience with a decoder, when it closes. Writes that are outstanding are waited for.
func (p *Prefiller) farewell(l *serveLink) {
	if l.outstanding > 0 || len(l.live) > 0 {
		p.alarms.set(&l.bye, p.now+byeTime/10)
		return
	}
	p.bye(l)
}
