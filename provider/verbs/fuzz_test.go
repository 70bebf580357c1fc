//go:build cgo

package verbs

import (
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// FuzzOffer: any bytes are an address or an error, and an address is laid out in one way.
func FuzzOffer(f *testing.F) {
	o := offer{mtu: 5, immWindow: 100, notifyWindow: notifyWindow, ethernet: true, ctl: 17, inbox: 1 << 40}
	f.Add([]byte(o.addr()))
	f.Add([]byte("v\x01"))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOffer(provider.Addr(b))
		if err != nil {
			return
		}
		if again, err := parseOffer(o.addr()); err != nil || again != o {
			t.Fatalf("%+v became %+v, %v", o, again, err)
		}
	})
}

// FuzzRecords: whatever a peer writes into its inbox, the tables that it fills stay within what it has sent, and a record that cannot be
// ends the connection.
func FuzzRecords(f *testing.F) {
	var b [recordSize]byte
	for k := recHello; k <= recBye; k++ {
		(&record{kind: k, slot: 0, serial: 1, round: 1, qpn: 9, n: 4096}).put(&b)
		f.Add(b[:])
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		d := &domain{}
		p := &peer{phase: up, receives: notifyWindow + immFloor}
		p.remote.notifyWindow = notifyWindow
		records := 0
		for ; len(in) >= recordSize; in = in[recordSize:] {
			r := readRecord((*[recordSize]byte)(in))
			var out [recordSize]byte
			r.put(&out)
			if again := readRecord(&out); again != r {
				t.Fatalf("%+v became %+v", r, again)
			}
			d.heardRecord(p, &r)
			records++
		}
		if len(p.rights) > records || p.control.records.len() > records {
			t.Fatalf("%d records made %d rights and %d answers", records, len(p.rights), p.control.records.len())
		}
		if p.phase == up && d.stats.Violations > 0 {
			t.Fatal("a violation did not end the connection")
		}
	})
}

// TestAckSkipsWhatTheCardNeverSaw: the cursor of what the card has done follows over requests that were refused here, however often the
// ring has gone around.
func TestAckSkipsWhatTheCardNeverSaw(t *testing.T) {
	d, p := &domain{}, &peer{phase: up}
	q := &p.writes
	out := sink{cs: make([]provider.Completion, 1000)}
	for range 100 {
		q.ring.push(q.done, q.tail, &provider.WR{Op: provider.OpWrite})
		q.ring.at(q.tail).status = provider.StatusAccess
		q.tail++
		q.sent++
		q.deliver(p, &out)
	}
	const posted, done = 30, 12
	for range posted {
		q.ring.push(q.done, q.tail, &provider.WR{Op: provider.OpWrite})
		q.ring.at(q.tail).posted = true
		q.tail++
		q.sent++
		q.inflight++
	}
	d.ack(q, q.sent-posted+done)
	if q.inflight != posted-done {
		t.Fatalf("%d of %d writes are at the card after %d were done", q.inflight, posted, done)
	}
}

// TestHelloNeedsItsProof: the sequence numbers of packets keep others out already; the proof is the longer secret.
func TestHelloNeedsItsProof(t *testing.T) {
	for _, right := range []bool{true, false} {
		d, p := &domain{}, &peer{phase: joining}
		p.secret, p.remote.secret = [secretSize]byte{1}, [secretSize]byte{2}
		h := derived(&p.remote.secret, &p.secret, forHello, 0)
		r := record{kind: recHello}
		copy(r.proof[:], h[:])
		if !right {
			r.proof[0] ^= 1
		}
		d.heardRecord(p, &r)
		if p.helloed != right || (p.phase == leaving) == right {
			t.Errorf("proof right %v: heard %v, phase %d", right, p.helloed, p.phase)
		}
	}
}
