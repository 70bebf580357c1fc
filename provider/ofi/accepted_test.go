//go:build cgo

package ofi

import (
	"errors"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// A socket that libfabric has accepted for an endpoint, and on which no request has come, ends before the endpoint is closed: libfabric would go on
// with a pointer to it.
func TestAcceptedSocketsEndWithTheirEndpoint(t *testing.T) {
	for name, closes := range map[string]func(t *testing.T, d *end, h provider.Peer){
		"connection": func(t *testing.T, d *end, h provider.Peer) {
			if err := d.Disconnect(h); err != nil {
				t.Fatal(err)
			}
			d.poll(t)
		},
		"nothing": func(_ *testing.T, d *end, h provider.Peer) { d.forget(d.peer(h).name) }, // libfabric has forgotten it when forget returns
		"Domain": func(t *testing.T, d *end, _ provider.Peer) {
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := openEnd(t, New(Options{Provider: "tcp"}))
			h, _, err := d.Offer()
			if err != nil {
				t.Fatal(err)
			}
			at := socketName(d.peer(h).name)
			c, err := net.Dial("tcp", at.String())
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = c.Close() }()
			own := map[netip.AddrPort]bool{at: true}
			until(t, d, d, "the socket is accepted", func() bool { return len(unanswered(own)) == 1 })
			closes(t, d, h)
			if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) { // io.EOF: what forget says that libfabric may not notice
				t.Errorf("the socket was not reset: %v", err)
			}
			if n := len(unanswered(own)); n != 0 {
				t.Errorf("%d sockets are left", n)
			}
		})
	}
}

// A stranger that connects and goes without a word leaves no descriptor behind, whatever other calls of the thread left in errno.
func TestStrangersLeaveNoSockets(t *testing.T) {
	d, other := openEnd(t, New(Options{Provider: "tcp"})), openEnd(t, New(Options{Provider: "udp;ofi_rxd"}))
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	at := socketName(d.ctlName)
	own := map[netip.AddrPort]bool{at: true}
	for range 3 {
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		until(t, d, d, "the socket is accepted", func() bool { return len(unanswered(own)) == 1 })
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		until(t, other, d, "the socket is closed", func() bool { return len(unanswered(own)) == 0 }) // other's socket has nothing: EAGAIN
	}
}
