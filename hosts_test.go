package hawser_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// A test binary started with hostEnv is an engine on a host of its own (a network namespace), driven by lines on standard input:
//
//	offer N        allocates N bytes, prints a descriptor
//	write DESC     imports DESC and writes all of it with immediate 1 in 8 parts, prints "written"
//	await N        waits until immediate 1 was counted N times, prints the sum of the bytes
//	down           waits for the end of the peer, fences it, prints the cause
const hostEnv = "HAWSER_TEST_HOST"

func host(ip string) error {
	ctx := context.Background()
	e, err := hawser.Open(ctx, hawser.Options{
		Name: ip, Listen: ip + ":0", ClusterKey: []byte("two hosts"), Rails: []hawser.Rail{{Provider: "tcp", Device: ip}},
	})
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	downs := make(chan hawser.PeerEvent, 16)
	e.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerDown {
			downs <- ev
		}
	})
	var mem *hawser.Region
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		cmd, arg, _ := strings.Cut(in.Text(), " ")
		var out string
		switch cmd {
		case "offer":
			var n uint64
			if _, err := fmt.Sscan(arg, &n); err != nil {
				return err
			}
			if mem, err = e.Alloc(n, hawser.MemOptions{}); err != nil {
				return err
			}
			text, err := mem.Descriptor(mem.All(), hawser.RightWrite).MarshalText()
			if err != nil {
				return err
			}
			out = string(text)
		case "write":
			if out, err = hostWrite(ctx, e, arg); err != nil {
				out = "error: " + err.Error()
			}
		case "await":
			var n uint64
			if _, err := fmt.Sscan(arg, &n); err != nil {
				return err
			}
			if err := e.Counter(1).Wait(ctx, n); err != nil {
				return err
			}
			sum := 0
			for _, b := range mem.Bytes() {
				sum += int(b)
			}
			out = fmt.Sprint(sum)
		case "down":
			ev := <-downs
			if err := e.Fence(ctx, ev.Peer); err != nil {
				return err
			}
			out = ev.Cause.Error()
		}
		fmt.Println(out)
	}
	return in.Err()
}

func hostWrite(ctx context.Context, e *hawser.Engine, desc string) (string, error) {
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(desc)); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, hang)
	defer cancel()
	rem, err := e.Import(ctx, d)
	if err != nil {
		return "", err
	}
	src, err := e.Alloc(d.Len(), hawser.MemOptions{})
	if err != nil {
		return "", err
	}
	for i := range src.Bytes() {
		src.Bytes()[i] = 1
	}
	tr, err := e.Write(hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(1), Parts: 8})
	if err != nil {
		return "", err
	}
	if err := tr.Wait(ctx); err != nil {
		return "", err
	}
	return "written over " + rem.Peer().Path() + " to " + rem.Peer().Name(), src.Close()
}

// hostProcess is an engine in a network namespace.
type hostProcess struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Scanner
}

func (h *hostProcess) do(format string, args ...any) string {
	h.t.Helper()
	fmt.Fprintf(h.in, format+"\n", args...)
	lines := make(chan string, 1)
	go func() {
		h.out.Scan()
		lines <- h.out.Text()
	}()
	select {
	case line := <-lines:
		return line
	case <-time.After(hang):
		h.t.Fatalf("no answer to %q", fmt.Sprintf(format, args...))
	}
	panic("unreachable")
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
	}
}

// startHosts makes two network namespaces with a cable between them, and an engine in each.
func startHosts(t *testing.T) (ns [2]string, hosts [2]*hostProcess) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("the ip command is missing: apt-get install iproute2")
	}
	for i := range ns {
		ns[i] = fmt.Sprintf("hawser%d-%d", i, os.Getpid())
		if out, err := exec.Command("ip", "netns", "add", ns[i]).CombinedOutput(); err != nil {
			t.Skipf("no network namespaces here: ip netns add: %v: %s", err, out)
		}
		t.Cleanup(func() { ip(t, "netns", "del", ns[i]) })
	}
	ip(t, "-n", ns[0], "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", ns[1])
	for i := range ns {
		addr := fmt.Sprintf("10.77.0.%d", i+1)
		ip(t, "-n", ns[i], "addr", "add", addr+"/24", "dev", "cable")
		ip(t, "-n", ns[i], "link", "set", "cable", "up")
		ip(t, "-n", ns[i], "link", "set", "lo", "up")
		cmd := exec.Command("ip", "netns", "exec", ns[i], os.Args[0])
		cmd.Env = append(os.Environ(), hostEnv+"="+addr)
		cmd.Stderr = os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = in.Close() // the engine closes, and the process ends
			if err := cmd.Wait(); err != nil {
				t.Errorf("host %d: %v", i, err)
			}
		})
		hosts[i] = &hostProcess{t: t, in: in, out: bufio.NewScanner(out)}
	}
	return ns, hosts
}

// Two hosts with their own addresses, a cluster key, and a cable that is cut and mended.
func TestTwoHostsOverARealAddressAndACutCable(t *testing.T) {
	t.Parallel()
	ns, h := startHosts(t)
	const size = 1 << 20
	desc := h[0].do("offer %d", size)
	if got := h[1].do("write %s", desc); got != "written over tcp to 10.77.0.1" {
		t.Fatal(got)
	}
	if got := h[0].do("await 8"); got != fmt.Sprint(size) {
		t.Fatalf("sum of the bytes %s, want %d", got, size)
	}

	ip(t, "-n", ns[0], "link", "set", "cable", "down")
	start := time.Now()
	for i := range h {
		cause := h[i].do("down")
		t.Logf("host %d noticed the cut after %v: %s", i, time.Since(start), cause)
		if !strings.Contains(cause, hawser.ErrPeerDown.Error()) {
			t.Errorf("cause %s", cause)
		}
	}

	ip(t, "-n", ns[0], "link", "set", "cable", "up")
	if got := h[1].do("write %s", desc); !strings.Contains(got, hawser.ErrStale.Error()) {
		t.Errorf("a descriptor from before the fence: %s", got)
	}
	desc = h[0].do("offer %d", size)
	if got := h[1].do("write %s", desc); got != "written over tcp to 10.77.0.1" {
		t.Fatal(got)
	}
	if got := h[0].do("await 16"); got != fmt.Sprint(size) {
		t.Fatalf("sum of the bytes %s, want %d", got, size)
	}
}

var errNoMode = errors.New("no mode")

// child runs the process as what the environment says; errNoMode when it says nothing.
func child() error {
	if network := os.Getenv(childEnv); network != "" {
		return writer(network)
	}
	if addr := os.Getenv(hostEnv); addr != "" {
		return host(addr)
	}
	if addr := os.Getenv(otherUserEnv); addr != "" {
		return otherUser(addr)
	}
	if what := os.Getenv(guestEnv); what != "" {
		return guest(what)
	}
	if network := os.Getenv(wakerEnv); network != "" {
		return waker(network)
	}
	if role := os.Getenv(siegeEnv); role != "" {
		return siegeRole(role)
	}
	return errNoMode
}
