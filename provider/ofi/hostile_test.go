//go:build cgo

package ofi

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"unsafe"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
)

// openEnd opens a Domain over one of libfabric's providers.
func openEnd(t *testing.T, p provider.Provider) *end {
	t.Helper()
	devs, err := p.Devices(context.Background())
	if errors.Is(err, provider.ErrUnavailable) && os.Getenv("HAWSER_TEST_COUNTS") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	bell, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Open(context.Background(), devs[0], provider.Config{Bell: bell})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), bell.Close()); err != nil {
			t.Error(err)
		}
	})
	return &end{domain: d.(*domain)}
}

// bare is a Domain without libfabric that has one peer, which is up, and memory to send from and to receive into.
func bare() (*domain, *peer) {
	d := &domain{batch: make([]*op, batchLimit), page: make([]byte, 1), now: 1}
	d.notes.out, d.notes.outBufs, d.notes.meta = make([]op, noteBufs), make([]byte, noteBufs*noteLen), make([]noteMeta, noteBufs)
	for i := range noteBufs {
		d.notes.out[i].kind = opSend
		d.notes.free = append(d.notes.free, uint16(i))
	}
	memory := bytes.Repeat([]byte{ours}, maxSend)
	d.regs = []registration{{id: 1 << 32, ptr: unsafe.Pointer(&memory[0]), n: maxSend}}
	p := barePeer(peerDepth)
	p.handle = 1 << provider.PeerIndexBits
	for i := range peerDepth {
		p.free[i] = uint8(peerDepth - 1 - i)
	}
	p.nfree = peerDepth
	d.peers = []*peer{p}
	return d, p
}

// ours is each byte of the memory of a bare Domain.
const ours = 0xA5

func barePeer(ops int) *peer {
	p := &peer{phase: up, to: &target{dest: &dest{}, refs: 1}, ops: make([]op, ops)}
	p.ack.op = &op{}
	return p
}

func (d *domain) sendOf(p *peer, n uint64) bool {
	return d.postSend(&provider.WR{Op: provider.OpSend, Peer: p.handle, LocalKey: 1 << 32, Len: n})
}

// flush has what waits written, as if it were sent at once.
func (d *domain) flush(t *testing.T) {
	t.Helper()
	d.gather()
	for _, o := range d.batch[:d.nbatch] {
		if o.len > noteLen {
			t.Fatalf("a control message of %d bytes", o.len)
		}
		buf := d.notes.outBufs[indexOf(d.notes.out, o)*noteLen:][:o.len]
		if kind := noteKind(buf[0]); (kind == noteSend || kind == noteData) && bytes.Trim(buf[noteHead:], string([]byte{ours})) != nil {
			t.Fatalf("message %d shows memory that was not to be sent: %x", kind, buf)
		}
		d.noteDone(o)
	}
}

// What one gather collects fits the batch, whatever the visits add.
func TestGatherFitsTheBatch(t *testing.T) {
	const full, rest = 12, batchLimit - 12*visitMax - visitMax + 1 // visits, and writes that leave one operation less than a visit's room
	d, _ := bare()
	for i := range full + 2 {
		p := barePeer(perVisit)
		writes := perVisit
		if i == full {
			writes = rest
		} else {
			p.ack.arrived = 1
			for range notesAtOnce {
				p.notes.push(note{kind: noteReady})
			}
		}
		for k := range writes {
			p.ops[k].kind, p.queue[k] = opWrite, uint8(k)
		}
		p.nqueue = writes
		d.activate(p)
	}
	d.gather()
	if d.nbatch != full*visitMax+rest {
		t.Errorf("%d operations were collected, want %d: the last visit has no room", d.nbatch, full*visitMax+rest)
	}
}

// A peer says that it has a message before all of it was sent.
func TestTakenTooEarly(t *testing.T) {
	d, p := bare()
	for range notesAtOnce + 1 {
		d.sendOf(p, 1)
	}
	d.gather()
	if !d.take(p, message{note: note{kind: noteTaken, a: notesAtOnce - 1}}) {
		t.Error("a message that has been announced was not taken")
	}
	if d.take(p, message{note: note{kind: noteTaken, a: notesAtOnce}}) {
		t.Error("a message was taken whose announcement waits")
	}
	d, p = bare()
	d.sendOf(p, maxSend)
	d.flush(t)
	if !d.take(p, message{note: note{kind: noteClear, c: maxSend}}) {
		t.Fatal("the payload was not asked for")
	}
	d.flush(t)
	if d.take(p, message{note: note{kind: noteTaken}}) {
		t.Error("a message was taken of which pieces wait")
	}
	for p.notes.len() > 0 {
		d.flush(t)
	}
	if !d.take(p, message{note: note{kind: noteTaken}}) || d.out.len() != 1 {
		t.Error("a message that was sent was not taken")
	}
}

// A peer announces more than it may: none of the owner's receives is lost.
func TestAnnouncedTooOften(t *testing.T) {
	d, p := bare()
	for range 2 * maxAnnounced {
		d.postRecv(&provider.WR{Op: provider.OpRecv, LocalKey: 1 << 32, Len: maxSend})
	}
	for i := range uint64(maxAnnounced + 1) {
		if ok := d.take(p, message{note: note{kind: noteSend, a: i, b: maxSend}}); ok != (i < maxAnnounced) {
			t.Errorf("announcement %d: %v", i, ok)
		}
	}
	if n := d.recvs.len() + p.underWay(); n != 2*maxAnnounced {
		t.Errorf("%d receives, %d were posted", n, 2*maxAnnounced)
	}
}

// A peer asks and takes no answer, or tells what it was not asked: what is kept for it is bounded.
func TestAnswersAreBounded(t *testing.T) {
	d, p := bare()
	d.acks = true
	const many = 1000
	asked := 0
	for asked < many && d.take(p, message{note: note{kind: noteAsk, a: 1}}) {
		asked++
	}
	for range many {
		d.take(p, message{note: note{kind: noteUngrant, a: 1}})
	}
	if asked != maxAnswers || p.notes.len() > maxAnswers+1 {
		t.Errorf("%d questions were accepted, %d messages wait", asked, p.notes.len())
	}
	p.ack.barrier = many
	if d.take(p, message{note: note{kind: noteUngranted, b: many + 1}}) || !d.take(p, message{note: note{kind: noteUngranted, b: many}}) {
		t.Error("more ends of keys were confirmed than there were, or not those that were")
	}
	grant := message{note: note{kind: noteGrant, a: 1<<slotBits | (maxGrants - 1)}, body: make([]byte, 4*8)}
	if !d.take(p, grant) || len(p.known) > 0 {
		t.Errorf("%d grants were learned that nobody asked for", len(p.known))
	}
	p.asking, p.asked = grant.a, true
	if !d.take(p, grant) || p.lookup(grant.a) == nil {
		t.Error("the answer was not learned")
	}
}

// Whatever a peer says, no memory is shown or overrun, no receive is lost, and nothing grows.
func FuzzNotes(f *testing.F) {
	f.Add([]byte{0x80, 0x82, byte(noteClear), 0, 1, byte(noteTaken), 0, 0})
	f.Add([]byte{0x81, byte(noteSend), 0, 1, 0x82, byte(noteData), 0, 1})
	f.Add([]byte{0x83, 0x83, 0x83, 0x83, 0x83, byte(noteTaken), 4, 0, 0x82})
	f.Fuzz(func(t *testing.T, script []byte) {
		d, p := bare()
		d.acks = len(script)%2 == 0
		sizes := [...]uint32{0, maxSend, 1, noteBody, noteBody + 1, 2 * noteBody, maxSend + 1, 1<<32 - 1}
		recvs, sends := 0, 0
		next := func() (b byte) {
			if len(script) > 0 {
				b, script = script[0], script[1:]
			}
			return b
		}
		for len(script) > 0 && !p.failing {
			switch k := next(); k {
			case 0x80, 0x83:
				if d.sendOf(p, uint64(sizes[1+(k-0x80)&1])) {
					sends++
				}
			case 0x81:
				if d.postRecv(&provider.WR{Op: provider.OpRecv, LocalKey: 1 << 32, Len: maxSend}) {
					recvs++
				}
			case 0x82:
				d.flush(t)
			default:
				m := message{note: note{kind: noteKind(k % byte(lastNote)), a: uint64(next())}}
				x := next()
				m.b, m.c = sizes[x%8], sizes[x/8%8]
				m.body = bytes.Repeat([]byte{ours}, int(min(noteBody, sizes[x/32%8])))
				if m.kind != noteHello && !d.take(p, m) {
					d.fail(p, provider.StatusProtocol, 0)
				}
			}
		}
		for d.out.len() > 0 {
			switch d.out.pop().Kind {
			case provider.KindRecv:
				recvs--
			case provider.KindSend:
				sends--
			}
		}
		if recvs != d.recvs.len()+p.underWay() || sends != peerDepth-p.nfree {
			t.Errorf("%d receives and %d messages are owed, %d and %d are known of", recvs, sends, d.recvs.len()+p.underWay(), peerDepth-p.nfree)
		}
		if most := 2*maxAnswers + maxAnnounced*(maxSend/noteBody+2); p.notes.len() > most {
			t.Errorf("%d messages wait, at most %d should", p.notes.len(), most)
		}
	})
}

// A connection whose end is due only after the queue was read is not ended before its grants have been closed and the queue was read again.
func TestSettleDecidesOnce(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	c := openBySource(t)
	ha, hb := connected(t, a, b)
	hc, _ := connected(t, a, c)
	immediates(t, b, hb, 1)
	for range 100 { // until it is with a, which is not polled
		b.poll(t)
	}
	late, due := a.peer(ha), a.peer(hc)
	a.fail(late, provider.StatusPeerDown, 0)
	a.now, late.grace = 1, 2 // reading the queue brings the time, which is later
	a.fail(due, provider.StatusPeerDown, 0)
	a.settle()
	if a.now <= late.grace || due.phase != down {
		t.Fatalf("time %d, the other connection is in phase %d: nothing was settled", a.now, due.phase)
	}
	if late.phase != up || !slices.Contains(a.dying, late) {
		t.Errorf("ended in phase %d by the turn that had not closed its grants", late.phase)
	}
	until(t, a, b, "the end by the next turn", func() bool { _, ok := a.has(ha, provider.KindPeerDown); return ok })
}

// A destination that others share is tried again when the connection that found it stuck has ended.
func TestStuckOutlivesAConnection(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	ha, _ := connected(t, a, b)
	p := a.peer(ha)
	t1 := p.to
	t1.refs++
	p.data.stuck = 1
	a.noteStuck(p.data)
	a.fail(p, provider.StatusPeerDown, 0)
	a.settle()
	if p.phase != down {
		t.Fatalf("phase %d", p.phase)
	}
	a.gather()
	a.rail.step(a.batch[:a.nbatch], a.flags, a.entries, nil, 0)
	a.settleBatch()
	if t1.dest.stuck != 0 {
		t.Error("stuck for ever")
	}
	a.leave(t1)
}

// An immediate that comes when its connection has ended is not placed: its writer does not see it end well.
func TestScratchEndsWithItsConnection(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	ha, hb := connected(t, a, b)
	if err := b.Disconnect(hb); err != nil {
		t.Fatal(err)
	}
	b.poll(t)
	immediates(t, a, ha, 1)
	for range 2000 {
		b.poll(t)
	}
	until(t, a, b, "the end", func() bool { _, ok := a.has(ha, provider.KindPeerDown); return ok })
	if c, ok := a.has(ha, provider.KindWrite); !ok || c.Status == provider.StatusOK {
		t.Errorf("the immediate ended as %+v, %v", c, ok)
	}
	if n := b.Stats().Unknown; n > 0 {
		t.Errorf("%d immediates were dropped", n)
	}
}

// Greetings of strangers leave the buffers for control messages to the peers, and have names of this network.
func TestRefusalsAreBounded(t *testing.T) {
	a, b := openBySource(t), openBySource(t)
	hello := func(name []byte) { a.hear(nil, message{body: append(make([]byte, 2*secretSize), name...)}) }
	hello(append(slices.Clone(b.ctlName), 0))
	hello(b.ctlName[:len(b.ctlName)-1])
	if a.Stats().Unknown != 2 || a.notes.unsent() > 0 {
		t.Errorf("names of another length: %d dropped, %d answers", a.Stats().Unknown, a.notes.unsent())
	}
	for range 2 * noteBufs {
		hello(b.ctlName)
	}
	if n := a.notes.unsent(); n != maxRefusals {
		t.Errorf("%d refusals are under way, want %d", n, maxRefusals)
	}
	until(t, a, b, "the refusals have been sent", func() bool { return a.notes.unsent() == 0 })
	if a.notes.refusals != 0 {
		t.Errorf("%d refusals are counted", a.notes.refusals)
	}
}
