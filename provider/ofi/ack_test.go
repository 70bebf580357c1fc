//go:build cgo

package ofi

import (
	"slices"
	"testing"
	"unsafe"

	"github.com/hawser-project/hawser/provider"
)

// coveredEnd is a Domain without libfabric whose writes are covered, and n of them that have been gathered, with what libfabric is to make of each.
func coveredEnd(n int, becomes ...outcome) (*domain, *peer, []*op) {
	d, p := bare()
	d.covers, d.plainKind, p.data = true, opWriteData, &dest{}
	for i := range n {
		d.postWrite(&provider.WR{Op: provider.OpWriteImm, Peer: p.handle, Token: uint64(i)})
	}
	d.gather()
	ops := slices.Clone(d.batch[:d.nbatch])
	for i, o := range ops {
		if o.outcome = posted; i < len(becomes) {
			o.outcome = becomes[i]
		}
		if o.outcome == waits {
			p.data.stuck = 1
		}
	}
	d.settleBatch()
	return d, p, ops
}

// ends has libfabric report that it is done with writes.
func (d *domain) ends(ops ...*op) {
	for _, o := range ops {
		d.entry(&entry{context: unsafe.Pointer(o)}, 0)
	}
}

// statuses are those of the completions by token; -1 where there is none.
func (d *domain) statuses(n int) []int {
	all := slices.Repeat([]int{-1}, n)
	for d.out.len() > 0 {
		if c := d.out.pop(); c.Kind == provider.KindWrite {
			all[c.Token] = int(c.Status)
		}
	}
	return all
}

const (
	none = -1
	ok   = int(provider.StatusOK)
)

// A write that has no acknowledgement of its own completes with the next that has.
func TestCoveredWritesCompleteWithTheirCover(t *testing.T) {
	d, p, ops := coveredEnd(4)
	for i, o := range ops {
		if want := i == 3; (o.kind == opCover) != want {
			t.Errorf("write %d asks for an acknowledgement: %v", i, !want)
		}
	}
	d.ends(ops[0], ops[1], ops[2])
	if got := d.statuses(4); !slices.Equal(got, []int{none, none, none, none}) {
		t.Errorf("before the cover: %v", got)
	}
	d.ends(ops[3])
	if got := d.statuses(4); !slices.Equal(got, []int{ok, ok, ok, ok}) || p.nfree != peerDepth || p.inflight != 0 {
		t.Errorf("after the cover: %v; %d free, %d under way", got, p.nfree, p.inflight)
	}
}

// Long writes ask each for itself.
func TestLongWritesCoverThemselves(t *testing.T) {
	d, p := bare()
	d.covers, d.plainKind, p.data = true, opWriteData, &dest{}
	for i := range 3 {
		o := &p.ops[i]
		o.kind, o.len, p.queue[i] = opWriteData, coverLen-1, uint8(i)
	}
	p.ops[0].len = coverLen
	p.nqueue = 3
	d.activate(p)
	d.gather()
	if a, b, c := p.ops[0].kind, p.ops[1].kind, p.ops[2].kind; a != opCover || b == opCover || c != opCover {
		t.Errorf("kinds %d, %d, %d", a, b, c)
	}
}

// Writes that libfabric took without the one that was to cover them are never called delivered.
func TestCoverThatWasNotTaken(t *testing.T) {
	_, p, ops := coveredEnd(3, posted, posted, waits)
	if !p.failing || p.status != provider.StatusPeerDown {
		t.Errorf("the connection goes on; write 2 is of kind %d", ops[2].kind)
	}
	_, p, _ = coveredEnd(3, waits, waits, waits)
	if p.failing || p.nqueue != 3 {
		t.Errorf("failing %v, %d wait, of a connection that was only not ready", p.failing, p.nqueue)
	}
}

// What the receiver says with the end of a key tells the writes that came before from those that did not, whatever libfabric acknowledged.
func TestEndOfAKeyCountsCoveredWrites(t *testing.T) {
	d, p, ops := coveredEnd(6)
	for _, o := range ops {
		o.len, o.rkey = 8, 77
	}
	p.learn(known{id: 1, n: 8, rkey: 77})
	d.ends(ops[0], ops[1], ops[3])
	if !d.take(p, message{note: note{kind: noteUngrant, a: 1, b: 3}}) {
		t.Fatal("the end of a key broke the protocol")
	}
	if got := d.statuses(6); !slices.Equal(got, []int{ok, ok, none, none, none, none}) {
		t.Errorf("two of three were sent, and one more: %v", got)
	}
	d.ends(ops[2], ops[4])
	p.status, p.data = provider.StatusPeerDown, nil
	d.end(p)
	const access = int(provider.StatusAccess)
	if got := d.statuses(6); !slices.Equal(got, []int{none, none, ok, access, access, access}) {
		t.Errorf("at the end: %v", got)
	}
}

// A count that a later one has overtaken says nothing new, and breaks no protocol.
func TestOlderCountIsIgnored(t *testing.T) {
	d, p, ops := coveredEnd(3)
	d.ends(ops...)
	if !d.count(p, 2) || p.ack.counted != 3 {
		t.Errorf("an older count: counted %d, want 3", p.ack.counted)
	}
	if d.count(p, 4) {
		t.Error("a count of more than was posted is taken")
	}
}

// One count for some writes, and none is owed once no more of them come.
func TestCountsArePutOff(t *testing.T) {
	d, p := bare()
	d.acks, p.data, p.remote.handle = true, &dest{}, 1
	arrive := func(n int) {
		for range n {
			d.entry(&entry{flags: flagRemoteData, data: uint64(p.handle)<<32 | uint64(markPlain)<<32}, 0)
		}
	}
	told := func() uint32 {
		d.gather()
		for _, o := range d.batch[:d.nbatch] {
			o.outcome = posted
		}
		d.settleBatch()
		return p.ack.told
	}
	arrive(1)
	if got := told(); got != 0 || !d.put {
		t.Errorf("told %d while more may follow; the owner may sleep: %v", got, !d.put)
	}
	arrive(1)
	if got := told(); got != 0 {
		t.Errorf("told %d while more came", got)
	}
	if got := told(); got != 2 || d.put {
		t.Errorf("told %d, want 2, when no more came", got)
	}
	arrive(countsAtOnce)
	if got := told(); got != 2+countsAtOnce {
		t.Errorf("told %d, want %d: enough for a count", got, 2+countsAtOnce)
	}
}

// Where the receiver counts short writes, libfabric is not asked for their ends, and is for those of long ones.
func TestCountedWritesAreQuiet(t *testing.T) {
	d, p := bare()
	d.acks, d.plainKind, p.data = true, opWriteData, &dest{}
	for i, n := range []uint32{0, ackMax, ackMax + 1} {
		o := &p.ops[i]
		o.kind, o.len, o.token, p.queue[i] = opWriteData, n, uint64(i), uint8(i)
	}
	p.nqueue, p.nfree = 3, peerDepth-3
	d.activate(p)
	d.gather()
	for _, o := range d.batch[:d.nbatch] {
		o.outcome = posted
	}
	d.settleBatch()
	if a, b, c := p.ops[0].kind, p.ops[1].kind, p.ops[2].kind; a != opQuiet || b != opQuiet || c != opWriteData || p.inflight != 1 {
		t.Errorf("kinds %d, %d, %d; %d completions are waited for, want 1", a, b, c, p.inflight)
	}
	d.count(p, 2)
	d.ends(&p.ops[2])
	if got := d.statuses(3); !slices.Equal(got, []int{ok, ok, ok}) {
		t.Errorf("after the count and the completion: %v", got)
	}
}
