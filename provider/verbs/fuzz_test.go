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
