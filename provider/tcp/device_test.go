package tcp

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

func TestDevicesCanBeOpened(t *testing.T) {
	o := newOwner(t)
	devs, err := New().Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if devs[0].Name != "127.0.0.1" || !devs[0].Loopback {
		t.Errorf("the first device is %+v, want 127.0.0.1", devs[0])
	}
	seen := map[string]bool{}
	for _, dev := range devs {
		if dev.Provider != Name || seen[dev.Name] || dev.Loopback != strings.Contains(dev.Fabric, ":lo:") ||
			strings.HasPrefix(dev.Fabric, "tcp6") != strings.Contains(dev.Name, ":") {
			t.Errorf("device %+v", dev)
		}
		seen[dev.Name] = true
		dom, err := New().Open(t.Context(), dev, provider.Config{Bell: o.bell})
		if err != nil {
			t.Errorf("device %s: %v", dev.Name, err)
			continue
		}
		if c := dom.Caps(); c.Fabric != dev.Fabric || c.CrossHost == dev.Loopback || c.LinkBits != dev.LinkBits {
			t.Errorf("device %+v has caps %+v", dev, c)
		}
		if err := dom.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestOpenRefusesWhatIsNoLocalAddress(t *testing.T) {
	o := newOwner(t)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		name string
		ctx  context.Context
		dev  provider.Device
		cfg  provider.Config
		want error
	}{
		{"no address", t.Context(), provider.Device{Name: "eth0"}, provider.Config{Bell: o.bell}, provider.ErrInvalid},
		{"a port", t.Context(), provider.Device{Name: "127.0.0.1:80"}, provider.Config{Bell: o.bell}, provider.ErrInvalid},
		{"every address", t.Context(), provider.Device{Name: "0.0.0.0"}, provider.Config{Bell: o.bell}, provider.ErrInvalid},
		{"every address", t.Context(), provider.Device{Name: "::"}, provider.Config{Bell: o.bell}, provider.ErrInvalid},
		{"link-local", t.Context(), provider.Device{Name: "fe80::1%lo"}, provider.Config{Bell: o.bell}, provider.ErrUnsupported},
		{"another host", t.Context(), provider.Device{Name: "203.0.113.9"}, provider.Config{Bell: o.bell}, provider.ErrUnavailable},
		{"another provider", t.Context(), provider.Device{Provider: "shm", Name: "127.0.0.1"}, provider.Config{Bell: o.bell}, provider.ErrInvalid},
		{"no bell", t.Context(), provider.Device{Name: "127.0.0.1"}, provider.Config{}, provider.ErrInvalid},
		{"too many peers", t.Context(), provider.Device{Name: "127.0.0.1"}, provider.Config{Bell: o.bell, MaxPeers: maxPeers + 1}, provider.ErrInvalid},
		{"a context that has ended", gone, provider.Device{Name: "127.0.0.1"}, provider.Config{Bell: o.bell}, context.Canceled},
	} {
		before := openDescriptors(t)
		if _, err := New().Open(tc.ctx, tc.dev, tc.cfg); !errors.Is(err, tc.want) {
			t.Errorf("open of %s: %v, want %v", tc.name, err, tc.want)
		}
		if n := openDescriptors(t); n != before {
			t.Errorf("open of %s left %d descriptors", tc.name, n-before)
		}
	}
}

// bbr would pace within the host; see tune.
func TestLocalConnectionsAreNotPaced(t *testing.T) {
	o := newOwner(t)
	c := o.pair()
	probe, err := newSocket(c.a.ip)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(probe)
	tune(probe, c.a.ip, c.a.ip)
	want, err := unix.GetsockoptString(probe, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	if err != nil {
		t.Fatal(err)
	}
	if unix.Geteuid() == 0 && want != "cubic" && want != "reno" {
		t.Errorf("congestion control %q", want)
	}
	for _, s := range []*stream{&c.a.peer(c.pa).stream, &c.b.peer(c.pb).stream} {
		if got, err := unix.GetsockoptString(s.fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION); got != want || err != nil {
			t.Errorf("congestion control %q, %v, want %q", got, err, want)
		}
	}
}

// An owner whose peer does not read sleeps, and is woken when it reads again.
func TestBlockedSenderSleeps(t *testing.T) {
	o := newOwner(t)
	c := o.pair()
	o.doms = []*domain{c.a} // b's owner polls no more
	t.Cleanup(func() { _ = c.b.Close() })
	big := make([]byte, maxMsg)
	local := o.register(c.a, big)
	key := o.grant(c.b, o.register(c.b, make([]byte, maxMsg)), c.pb, maxMsg)
	wrs := make([]provider.WR, 4)
	for i := range wrs {
		wrs[i] = provider.WR{Op: provider.OpWrite, Token: uint64(i), Peer: c.pa, Len: maxMsg, LocalKey: local.ID, RemoteKey: key.ID}
	}
	if n, err := c.a.Post(wrs); n != len(wrs) || err != nil {
		t.Fatal(n, err)
	}
	o.until("the socket is full", func() bool { return c.a.peer(c.pa).stream.blocked && !c.a.Arm() })
	// What the kernel has taken may still move; then all is quiet.
	o.until("nothing wakes the owner", func() bool { return !c.a.Arm() && !o.bell.Park(20*time.Millisecond) })
	o.doms = []*domain{c.a, c.b}
	o.until("the writes complete", func() bool {
		n := 0
		for _, got := range o.got[c.a] {
			if got.Kind == provider.KindWrite && got.Status == provider.StatusOK {
				n++
			}
		}
		return n == len(wrs)
	})
}
