//go:build cgo

package verbs_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/verbs"
)

// What a card, its driver or the library can do wrong, and what is made of it.

func TestDevicesSayWhatIsMissing(t *testing.T) {
	for _, tc := range []struct {
		name, library string
		env           [2]string
		devices       []string
		want          []string
	}{
		{name: "no library", library: "libnone.so.1", want: []string{"libnone.so.1", "install libibverbs1"}},
		{name: "not the library", library: "libc.so.6", want: []string{"libc.so.6", "ibv_get_device_list"}},
		{name: "no kernel module", env: [2]string{"FAKE_GET_DEVICE_LIST", "38"}, want: []string{"ibv_get_device_list", "not implemented"}},
		{name: "no driver", env: [2]string{"FAKE_DEVICES", "0"}, want: []string{"no RDMA device", "ibverbs-providers"}},
		{name: "no permission", env: [2]string{"FAKE_OPEN_DEVICE", "13"}, want: []string{"ibv_open_device fake0", "permission denied"}},
		{name: "port down", env: [2]string{"FAKE_PORT_STATE", "1"}, want: []string{"fake0/1", "not active", "fake1/1"}},
		{name: "none of those asked for", devices: []string{"mlx5_0"}, want: []string{`["mlx5_0"]`, "fake0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.env[0] != "" {
				t.Setenv(tc.env[0], tc.env[1])
			}
			v := onFake(t, verbs.Options{Devices: tc.devices})
			if tc.library != "" {
				v = verbs.NewOn(verbs.Options{Library: tc.library}, fakeSysfs(t), fakeAddresses)
			}
			devs, err := v.Devices(context.Background())
			if !errors.Is(err, provider.ErrUnavailable) {
				t.Fatalf("devices %+v, error %v, want unavailable", devs, err)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not say %q", err, want)
				}
			}
		})
	}
}

// Where there is no card, the library is not loaded: it would be missing here.
func TestNoCardNoLibrary(t *testing.T) {
	empty := t.TempDir()
	if err := os.MkdirAll(filepath.Join(empty, "sys/class/infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, sys := range []string{empty, t.TempDir()} {
		_, err := verbs.NewOn(verbs.Options{Library: "libnone.so.1"}, sys, fakeAddresses).Devices(context.Background())
		if !errors.Is(err, provider.ErrUnavailable) || !strings.Contains(err.Error(), "no RDMA device: nothing is in /sys/class/infiniband") {
			t.Errorf("%v, want that there is no device", err)
		}
	}
}

func TestDevices(t *testing.T) {
	devs, err := onFake(t, verbs.Options{Devices: []string{"fake1/1"}}).Devices(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := provider.Device{Provider: "verbs", Name: "fake1/1", Fabric: "roce:v4", LinkBits: 400e9, NUMA: -1}
	if len(devs) != 1 || devs[0] != want {
		t.Fatalf("devices %+v, want %+v", devs, want)
	}
}

// A failing call while a domain or a peer is made leaves nothing behind: the fake aborts when a device is closed before its objects.
func TestOpenFaultsLeaveNothing(t *testing.T) {
	for call, want := range map[string]string{
		"FAKE_CREATE_CQ": "ibv_create_cq", "FAKE_CREATE_SRQ": "ibv_create_srq",
	} {
		t.Run(call, func(t *testing.T) {
			v := onFake(t, verbs.Options{})
			t.Setenv(call, "12")
			_, err := v.Open(context.Background(), provider.Device{Name: "fake0/1"}, provider.Config{Bell: newBell(t)})
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("open returned %v, want an error of %s", err, want)
			}
		})
	}
	for call, want := range map[string]string{"FAKE_CREATE_QP": "ibv_create_qp", "FAKE_MODIFY": "ibv_modify_qp", "FAKE_REG_MR": "ibv_reg_mr"} {
		t.Run(call, func(t *testing.T) {
			p := pairOn(t, onFake(t, verbs.Options{}), provider.Config{MaxPeers: 2})
			for range 5 { // more often than there is room: each gives back what it took
				t.Setenv(call, "12")
				if _, _, err := p.doms[0].Offer(); err == nil || !strings.Contains(err.Error(), want) {
					t.Fatalf("offer returned %v, want an error of %s", err, want)
				}
			}
			t.Setenv(call, "")
			p.join()
			p.another()
		})
	}
}

func TestConnectToAnUnreachablePeerIsRefused(t *testing.T) {
	p := newPair(t, verbs.Options{})
	mine, _, err := p.doms[0].Offer()
	if err != nil {
		t.Fatal(err)
	}
	_, theirs, err := p.doms[1].Offer()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_MODIFY_RTR", "110")
	if err := p.doms[0].Connect(mine, theirs, true); err != nil {
		t.Fatal(err)
	}
	p.until("KindPeerDown", func() bool { return p.count(0, provider.KindPeerDown, mine) == 1 })
	if c := p.last(0, provider.KindPeerDown, mine); c.Status != provider.StatusRefused || c.Detail != uint32(unix.ETIMEDOUT) {
		t.Errorf("a peer whose address nobody answers: %+v", c)
	}
}

func TestMemlockErrorSaysLimitAndRemedy(t *testing.T) {
	p := newPair(t, verbs.Options{})
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
		t.Fatal(err)
	}
	limit := unix.Rlimit{Cur: min(8<<20, old.Max), Max: old.Max}
	if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old) })
	t.Setenv("FAKE_REG_MR", "12")
	_, err := p.doms[0].Register(provider.Memory{Bytes: make([]byte, 64<<10), FD: -1}, 0)
	if !errors.Is(err, provider.ErrLimit) || !errors.Is(err, unix.ENOMEM) {
		t.Fatalf("register returned %v, want ErrLimit and ENOMEM", err)
	}
	for _, want := range []string{"RLIMIT_MEMLOCK is 8192 KiB", "64 KiB", "ulimit -l unlimited"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
}

// TestDeviceMemory registers memory by a descriptor, as a driver exports it, and writes from and to it.
func TestDeviceMemory(t *testing.T) {
	const size, off = 64 << 10, 4096
	p := newPair(t, verbs.Options{})
	p.join()
	fd, err := unix.MemfdCreate("device", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, size+off); err != nil {
		t.Fatal(err)
	}
	vram, err := unix.Mmap(fd, off, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(vram) })
	buf := &provider.DMABuf{FD: fd, Offset: off, Addr: addressOf(vram), Len: size}
	if !p.doms[1].Caps().DMABuf {
		t.Fatal("Caps.DMABuf is false, and the library has ibv_reg_dmabuf_mr")
	}
	dst, err := p.doms[1].Register(provider.Memory{FD: -1, DMABuf: buf}, provider.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	bytes0, src := p.memory(0, size, 0)
	for i := range bytes0 {
		bytes0[i] = byte(i * 7)
	}
	p.post(0, p.write(src, p.grant(dst, size), size))
	p.until("the immediate comes", func() bool { return p.count(1, provider.KindImm, p.peers[1]) == 1 })
	if !bytes.Equal(vram, bytes0) {
		t.Error("wrong bytes in the memory of the device")
	}
	// A receive into it has no bytes that the host could put there.
	p.post(1, provider.WR{Token: 9, Op: provider.OpRecv, LocalKey: dst.ID, LocalAddr: dst.Base, Len: 64})
	p.until("the receive is refused", func() bool { return len(p.got[1]) > 0 && p.got[1][len(p.got[1])-1].Kind == provider.KindRecv })
	if c := p.got[1][len(p.got[1])-1]; c.Status != provider.StatusLocal {
		t.Errorf("a receive into a device's memory: %+v", c)
	}
	for errno, want := range map[string]error{"95": provider.ErrUnsupported, "12": provider.ErrLimit} {
		t.Setenv("FAKE_REG_DMABUF_MR", errno)
		if _, err := p.doms[0].Register(provider.Memory{FD: -1, DMABuf: buf}, 0); !errors.Is(err, want) {
			t.Errorf("errno %s of ibv_reg_dmabuf_mr: %v, want %v", errno, err, want)
		}
	}
}

// TestPostFaultEndsOneConnection: a request that the card does not take costs its own connection, and no other.
func TestPostFaultEndsOneConnection(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	other := p.another()
	_, src := p.memory(0, 4096, 0)
	_, dst := p.memory(1, 4096, provider.AccessRemoteWrite)
	key := p.grant(dst, 4096)
	t.Setenv("FAKE_POST_AFTER", "3")
	wrs := make([]provider.WR, 6)
	for i := range wrs {
		wrs[i] = p.write(src, key, 100)
	}
	p.post(0, wrs...)
	t.Setenv("FAKE_POST_AFTER", "")
	p.until("both sides are down", func() bool {
		return p.count(0, provider.KindPeerDown, p.peers[0])+p.count(1, provider.KindPeerDown, p.peers[1]) == 2
	})
	if c := p.last(0, provider.KindPeerDown, p.peers[0]); c.Status != provider.StatusPeerDown || c.Detail != uint32(unix.EINVAL) {
		t.Errorf("after a failed post: %+v", c)
	}
	if n := p.count(0, provider.KindWrite, p.peers[0]); n != len(wrs) {
		t.Errorf("%d of %d requests completed", n, len(wrs))
	}
	p.post(0, provider.WR{Token: 1000, Op: provider.OpWriteImm, Peer: other[0], Imm: 5})
	p.until("the other connection carries an immediate", func() bool { return p.count(1, provider.KindImm, other[1]) == 1 })
}

// TestCompletionErrors: what a failed completion says decides what becomes of the connection.
func TestCompletionErrors(t *testing.T) {
	for _, tc := range []struct {
		name, status string
		want         provider.Status // of the write
		down         bool
		always       bool // not for one write only
	}{
		{"local protection", "4", provider.StatusLocal, false, false},
		{"remote access", "10", provider.StatusAccess, false, false},
		{"remote operation", "11", provider.StatusAccess, false, false},
		{"invalid once", "9", provider.StatusOK, false, false},
		{"invalid twice", "9", provider.StatusFlushed, true, true},
		{"retries exceeded", "12", provider.StatusFlushed, true, false},
		{"receiver not ready", "13", provider.StatusFlushed, true, false},
		{"fatal", "19", provider.StatusFlushed, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, verbs.Options{})
			p.join()
			_, src := p.memory(0, 4096, 0)
			_, dst := p.memory(1, 4096, provider.AccessRemoteWrite)
			key := p.grant(dst, 4096)
			good := p.write(src, key, 100)
			p.post(0, good)
			p.until("a write completes", func() bool { return p.count(0, provider.KindWrite, p.peers[0]) == 1 })
			t.Setenv("FAKE_WC_STATUS", tc.status)
			if tc.always {
				t.Setenv("FAKE_WC_AGAIN", "1")
			}
			p.post(0, p.write(src, key, 100), p.write(src, key, 200)) // the second fails
			p.until("the writes end", func() bool { return p.count(0, provider.KindWrite, p.peers[0]) == 3 })
			if c := p.last(0, provider.KindWrite, p.peers[0]); c.Status != tc.want {
				t.Errorf("the write ended with %v, want %v", c.Status, tc.want)
			}
			if tc.down {
				p.until("it is down", func() bool { return p.count(0, provider.KindPeerDown, p.peers[0]) == 1 })
				return
			}
			p.post(0, p.write(src, key, 300))
			p.until("the connection goes on", func() bool { return p.count(0, provider.KindWrite, p.peers[0]) == 4 })
			if c := p.last(0, provider.KindWrite, p.peers[0]); c.Status != provider.StatusOK {
				t.Errorf("the next write ended with %v", c.Status)
			}
			if n := p.stats(0).Renewals; n != 1 {
				t.Errorf("%d renewals, want 1", n)
			}
		})
	}
}

// TestDeviceFaultEndsTheDomain: when the card or its driver fails, Poll says so, after what had arrived.
func TestDeviceFaultEndsTheDomain(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	t.Setenv("FAKE_POLL_CQ", "1")
	var cs [8]provider.Completion
	if n, err := p.doms[0].Poll(cs[:]); n != 0 || !errors.Is(err, provider.ErrUnavailable) {
		t.Fatalf("poll of a card that fails: %d, %v", n, err)
	}
	t.Setenv("FAKE_POLL_CQ", "")
	if _, err := p.doms[0].Post([]provider.WR{{Op: provider.OpWriteImm, Peer: p.peers[0]}}); !errors.Is(err, provider.ErrUnavailable) {
		t.Fatalf("post to a card that has failed: %v", err)
	}
	if !p.doms[0].Arm() {
		t.Error("arm of a card that has failed lets its owner sleep")
	}
}

// TestFenceWithoutProofSaysSo: a queue pair that the card does not destroy may still carry the peer's writes.
func TestFenceWithoutProofSaysSo(t *testing.T) {
	for _, call := range []string{"FAKE_DESTROY_QP", "FAKE_DEREG_MR"} {
		t.Run(call, func(t *testing.T) {
			p := newPair(t, verbs.Options{})
			p.join()
			t.Setenv(call, "5")
			if err := p.doms[0].Fence(p.peers[0]); err != nil {
				t.Fatal(err)
			}
			var err error
			for end := time.Now().Add(hangGuard); err == nil && time.Now().Before(end); {
				var cs [8]provider.Completion
				var n int
				n, err = p.doms[0].Poll(cs[:])
				p.got[0] = append(p.got[0], cs[:n]...)
			}
			t.Setenv(call, "")
			if !errors.Is(err, provider.ErrUnavailable) {
				t.Errorf("poll of a card that does not let go: %v", err)
			}
			if c := p.last(0, provider.KindFenced, p.peers[0]); c.Status != provider.StatusUnfenced {
				t.Errorf("the fence ended with %v, want unfenced", c.Status)
			}
		})
	}
}

// TestArmSeesTheCardFail: what its own look finds must not let the owner sleep.
func TestArmSeesTheCardFail(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	p.until("domain 0 may sleep", func() bool { return !p.doms[0].Arm() })
	t.Setenv("FAKE_POLL_CQ", "1")
	if !p.doms[0].Arm() {
		t.Error("arm has found that the card has failed, and lets its owner sleep")
	}
	t.Setenv("FAKE_POLL_CQ", "")
}

// TestTheLastReceiveIsHeardOf: no end of a queue pair lasts as long as it may when the card tells that nothing comes any more.
func TestTheLastReceiveIsHeardOf(t *testing.T) {
	for _, tc := range []struct {
		name   string
		before func(p *pair)
		fence  int // the domain that fences
	}{
		{"while it is up", func(*pair) {}, 0},
		{"after renewals", func(p *pair) { p.refused(0); p.refused(0) }, 1},
		{"of a peer that has left", func(p *pair) {
			if err := p.doms[1].Disconnect(p.peers[1]); err != nil {
				p.Fatal(err)
			}
			p.until("it is down", func() bool { return p.count(0, provider.KindPeerDown, p.peers[0]) == 1 })
		}, 0},
		{"of a queue pair that had failed before", func(p *pair) {
			_, src := p.memory(0, 4096, 0)
			_, dst := p.memory(1, 4096, provider.AccessRemoteWrite)
			key := p.grant(dst, 4096)
			if err := p.doms[1].Deregister(dst); err != nil {
				p.Fatal(err)
			}
			p.post(0, p.write(src, key, 100)) // before domain 0 hears that the grant has ended
			for end := time.Now().Add(hangGuard); !verbs.Emptied(p.doms[1], p.peers[1]); p.poll(1) {
				p.doms[1].Arm()
				if time.Now().After(end) {
					p.Fatal("the queue pair does not fail")
				}
			}
		}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPair(t, verbs.Options{})
			p.join()
			for _, d := range p.doms {
				verbs.WaitForLast(d)
			}
			tc.before(p)
			if err := p.doms[tc.fence].Fence(p.peers[tc.fence]); err != nil {
				t.Fatal(err)
			}
			p.until("it is fenced", func() bool { return p.count(tc.fence, provider.KindFenced, p.peers[tc.fence]) == 1 })
		})
	}
}

// TestArrivalsOutliveTheCard: what came before one of two completion queues failed is delivered.
func TestArrivalsOutliveTheCard(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	p.until("domain 1 may sleep", func() bool { return !p.doms[1].Arm() })
	p.post(0, provider.WR{Token: 1, Op: provider.OpWriteImm, Peer: p.peers[0], Imm: 5})
	for end := time.Now().Add(hangGuard); p.count(0, provider.KindWrite, p.peers[0]) == 0; p.poll(0) {
		if time.Now().After(end) {
			t.Fatal("the write does not complete")
		}
	}
	t.Setenv("FAKE_POLL_EMPTY", "1")
	p.poll(1)
	if n := p.count(1, provider.KindImm, p.peers[1]); n != 1 {
		t.Errorf("%d immediates were delivered, want 1", n)
	}
	var err error
	for range 3 { // a probe may have ended as well
		var cs [8]provider.Completion
		_, err = p.doms[1].Poll(cs[:])
	}
	t.Setenv("FAKE_POLL_EMPTY", "")
	if !errors.Is(err, provider.ErrUnavailable) {
		t.Errorf("poll of a card that has failed: %v", err)
	}
}

// TestMessagesOutliveTheConnection: what has arrived when a connection ends is delivered, as immediates are.
func TestMessagesOutliveTheConnection(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	_, dst := p.memory(1, 4096, 0)
	for i := range uint64(2) { // the third message waits, and goes with the connection
		p.post(1, provider.WR{Token: i, Op: provider.OpRecv, LocalKey: dst.ID, LocalAddr: dst.Base, Len: 64})
		p.post(0, provider.WR{Token: i, Op: provider.OpSend, Peer: p.peers[0]})
	}
	p.post(0, provider.WR{Token: 2, Op: provider.OpSend, Peer: p.peers[0]})
	for end := time.Now().Add(hangGuard); !verbs.Sent(p.doms[0], p.peers[0]); p.poll(0) {
		if time.Now().After(end) {
			t.Fatal("the messages are not sent")
		}
	}
	if err := p.doms[1].Fence(p.peers[1]); err != nil {
		t.Fatal(err)
	}
	p.until("it is fenced", func() bool { return p.count(1, provider.KindFenced, p.peers[1]) == 1 })
	if n := p.count(1, provider.KindRecv, p.peers[1]); n != 2 {
		t.Errorf("%d messages were delivered, want 2: %+v", n, p.got[1])
	}
}

// TestGlobalHeaderOnInfiniBand: the kernel refuses a queue pair without one where a port needs it.
func TestGlobalHeaderOnInfiniBand(t *testing.T) {
	t.Setenv("FAKE_LINK_LAYER", "1")
	for _, card := range []string{"", "0", "1"} {
		t.Setenv("FAKE_GRH", card)
		newPair(t, verbs.Options{}).join()
	}
}

// TestOfferFollowsTheAddress: the address of an interface moves while a domain is open, and is away for a while.
func TestOfferFollowsTheAddress(t *testing.T) {
	old := netip.MustParseAddr("10.88.0.1")
	for event, from := range map[string]string{"gid": "18", "lid": "11", "client": "17", "active": "9"} {
		t.Run(event, func(t *testing.T) {
			sys, now := fakeSysfs(t), []netip.Addr{old}
			p := pairOn(t, onFakeAt(t, verbs.Options{}, sys, func(string) []netip.Addr { return now }), provider.Config{})
			offers := func(want netip.Addr) {
				t.Helper()
				_, addr, err := p.doms[0].Offer()
				if err != nil {
					t.Fatal(err)
				}
				if gid := want.As16(); !bytes.Contains(addr, gid[:]) {
					t.Errorf("the address that is offered does not lead to %v", want)
				}
			}
			now = nil
			t.Setenv("FAKE_EVENT", from)
			p.memory(0, 4096, 0)
			t.Setenv("FAKE_EVENT", "")
			offers(old)
			now = []netip.Addr{netip.MustParseAddr("10.88.7.7")}
			writeGID(t, sys, "fake0", 3, "0000:0000:0000:0000:0000:ffff:0a58:0707", "RoCE v2", "eth0")
			offers(now[0])
		})
	}
}

func TestOptionsAreChecked(t *testing.T) {
	index := 300
	bad := verbs.Options{GIDIndex: &index, ServiceLevel: 16, PKeyIndex: -1, MTU: 1500, Timeout: 32, Retries: 7}
	_, err := verbs.New(bad).Devices(context.Background())
	if !errors.Is(err, provider.ErrInvalid) {
		t.Fatalf("error %v, want invalid", err)
	}
	for _, want := range []string{"GIDIndex", "ServiceLevel", "PKeyIndex", "MTU", "Timeout", "Retries"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

func newBell(t *testing.T) *cpu.Parker {
	t.Helper()
	b, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// addressOf is where b begins.
func addressOf(b []byte) uint64 {
	// safe: the number names the place to the fake card.
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
}
