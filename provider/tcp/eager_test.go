package tcp

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// A domain that is eager for the next bytes of one peer, who always has some, still hears the others and those who come new.
func TestATalkativePeerHidesNobody(t *testing.T) {
	o := newOwner(t)
	d := o.open()
	talker, other := o.impostor(d), o.impostor(d)
	nothing := encode(header{kind: frameAck})
	var cs [16]provider.Completion
	polls := func(what string, kind provider.Kind, p provider.Peer) {
		t.Helper()
		for deadline := time.Now().Add(hangGuard); ; {
			talker.write(nothing)
			n, err := d.Poll(cs[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cs[:n] {
				if c.Kind == kind && c.Peer == p {
					return
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("not within %v: %s", hangGuard, what)
			}
		}
	}
	talker.write(encode(header{kind: frameWriteImm, imm: 1}))
	polls("the talker's immediate", provider.KindImm, talker.p)
	for range 100 {
		other.write(encode(header{kind: frameWriteImm, imm: 2}))
		polls("the other's immediate", provider.KindImm, other.p)
	}
	e := o.open()
	_, addr := o.offer(e)
	p, ours := o.offer(d)
	theirs, err := parseOffer(addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Connect(p, addr, true); err != nil {
		t.Fatal(err)
	}
	if err := e.Connect(theirs.handle, ours, false); err != nil {
		t.Fatal(err)
	}
	up := make(chan error, 1)
	go func() {
		var cs [1]provider.Completion
		for deadline := time.Now().Add(hangGuard); time.Now().Before(deadline); {
			if n, err := e.Poll(cs[:]); n > 0 || err != nil {
				up <- err
				return
			}
		}
		up <- nil
	}()
	polls("a new peer", provider.KindPeerUp, p)
	if err := <-up; err != nil {
		t.Fatal(err)
	}
}

// The end of a connection is met by the eager look, without its event: what came before it is delivered first.
func TestAnEagerLookMeetsTheEnd(t *testing.T) {
	for range 50 {
		o := newOwner(t)
		d := o.open()
		r := o.impostor(d)
		r.write(encode(header{kind: frameWriteImm, imm: 1}))
		o.until("an immediate", func() bool { _, ok := o.find(d, provider.KindImm, r.p); return ok })
		r.write(encode(header{kind: frameWriteImm, imm: 2}))
		if err := unix.Shutdown(r.fd, unix.SHUT_WR); err != nil {
			t.Fatal(err)
		}
		o.until("the end", func() bool { _, ok := o.find(d, provider.KindPeerDown, r.p); return ok })
		var imms []uint32
		for _, c := range o.got[d] {
			if c.Kind == provider.KindImm {
				imms = append(imms, c.Imm)
			}
		}
		if len(imms) != 2 || imms[1] != 2 {
			t.Fatalf("immediates %d before the end, want 1 and 2", imms)
		}
	}
}
