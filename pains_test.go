package hawser_test

import (
	"testing"

	"github.com/hawser-project/hawser/internal/wire"
)

// A peer whose network address made no sense once is not locked out for ever: its failed session ends, and the next one comes up.
func TestFailedPathDoesNotLockThePeerOut(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		x, e := w.puppetOf(t, nil)
		for _, addr := range []string{"", "nonsense", "sim1 and 16 bytes."} {
			x.greet(e)
			x.prove()
			x.proposal()
			x.send(wire.TypeLinksReply, 0, &wire.LinksReply{Links: []wire.Link{{Addr: []byte(addr)}}})
			x.send(wire.TypeLinksDone, 0, &wire.LinksDone{})
			if _, err := x.tryRead(wire.TypeUp, nil); err == nil {
				t.Fatalf("up with the address %q", addr)
			}
			x.hangUp()
		}
		x.up(e)
		for _, p := range e.Stats().Peers {
			if !p.Up {
				t.Fatalf("the peer is down: %v", p.Down)
			}
		}
	})
}
