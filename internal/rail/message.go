package rail

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// sendSlot is one message buffer. The first slot of each chunk holds the chunk's memory.
type sendSlot struct {
	span *mem.Span
	buf  []byte
	next int32
}

// openReceives makes the receive buffers of a rail and posts them.
func (r *railState) openReceives() error {
	n := min(recvSlots, r.caps.RecvDepth)
	span, err := newBuffers(uint64(n) * slotSize)
	if err != nil {
		return fmt.Errorf("receive buffers: %w", err)
	}
	r.recv.span = span
	if r.recv.key, err = r.dom.Register(provider.Memory{Bytes: span.Bytes(), FD: -1}, 0); err != nil {
		return fmt.Errorf("register receive buffers: %w", err)
	}
	r.recv.slots = make([]Message, n)
	for i := range n {
		r.recv.slots[i] = Message{rail: r, slot: i}
		r.postReceive(i)
	}
	return nil
}

func (r *railState) postReceive(slot int) int {
	r.batch = append(r.batch, provider.WR{
		Op: provider.OpRecv, Token: uint64(slot), LocalKey: r.recv.key.ID,
		LocalAddr: r.recv.key.Base + uint64(slot)*slotSize, Len: slotSize,
	})
	return 1
}

// received hands a message to the sink.
func (g *Group) received(r *railState, c *provider.Completion) {
	slot := int(c.Token) // the token of a receive is its slot
	if slot >= len(r.recv.slots) {
		return
	}
	l := r.link(c.Peer)
	if l != nil && (c.Status == provider.StatusOK || c.Status == provider.StatusTruncated) {
		l.rxMsgs++
	}
	if c.Status != provider.StatusOK || l == nil || c.Len > slotSize {
		if c.Status != provider.StatusFlushed {
			r.postReceive(slot)
		}
		return
	}
	m := &r.recv.slots[slot]
	m.Peer = l.peer
	m.Data = r.recv.span.Bytes()[slot*slotSize:][:c.Len:c.Len]
	l.counts.RxMessages++
	g.sink.Message(l.peer, m)
}

// sendBuffer copies data into a free buffer; -1: none is free now.
func (g *Group) sendBuffer(data []byte) int32 {
	if g.sendFree < 0 && (len(g.sends)*slotSize >= maxSendMem || g.moreSends() != nil) {
		return -1
	}
	i := g.sendFree
	s := &g.sends[i]
	g.sendFree = s.next
	copy(s.buf, data)
	return i
}

func (g *Group) freeSend(i int32) {
	g.sends[i].next, g.sendFree = g.sendFree, i
}

// moreSends adds a chunk of buffers, registered on every rail.
func (g *Group) moreSends() error {
	span, err := newBuffers(sendSlots * slotSize)
	if err != nil {
		return fmt.Errorf("send buffers: %w", err)
	}
	mr, err := g.Register(provider.Memory{Bytes: span.Bytes(), FD: -1}, 0)
	if err != nil {
		return errors.Join(fmt.Errorf("send buffers: %w", err), freeBuffers(span))
	}
	for i, r := range g.rails {
		r.sendKeys = append(r.sendKeys, mr.Keys[i])
	}
	for i := range sendSlots {
		s := sendSlot{buf: span.Bytes()[i*slotSize:][:slotSize], next: g.sendFree}
		if i == 0 {
			s.span = span
		}
		g.sendFree = int32(len(g.sends))
		g.sends = append(g.sends, s)
	}
	return nil
}
