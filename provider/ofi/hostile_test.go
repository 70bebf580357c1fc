//go:build cgo

package ofi

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"

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

// What one gather collects fits the batch, whatever the visits add.
func TestGatherFitsTheBatch(t *testing.T) {
	const full, rest = 12, batchLimit - 12*visitMax - visitMax + 1 // visits, and writes that leave one operation less than a visit's room
	d := &domain{batch: make([]*op, batchLimit), page: make([]byte, 1)}
	bufs := (full + 3) * notesAtOnce
	d.notes.out, d.notes.outBufs, d.notes.meta = make([]op, bufs), make([]byte, bufs*noteLen), make([]noteMeta, bufs)
	for i := range bufs {
		d.notes.free = append(d.notes.free, uint16(i))
	}
	for i := range full + 2 {
		p := &peer{phase: up, to: &target{}, ops: make([]op, perVisit)}
		p.ack.op = &op{}
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
