package hawser_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser"
)

// A test binary started with guestEnv is an engine called "guest" that connects to an address, or listens at host:port, tells where it
// listens, and leaves when its standard input ends.
const guestEnv = "HAWSER_TEST_GUEST"

func guest(what string) error {
	ctx := context.Background()
	o := hawser.Options{Name: "guest"}
	addr, listens := strings.CutPrefix(what, "listen:")
	if listens {
		o.Listen = addr
	}
	e, err := hawser.Open(ctx, o)
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	if !listens {
		if _, err := e.Connect(ctx, addr); err != nil {
			return err
		}
	}
	fmt.Println(e.ListenAddrs()[0])
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// startGuest returns the process and where it listens.
func startGuest(t *testing.T, what string) (*exec.Cmd, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), guestEnv+"="+what)
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
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // however it ended
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return cmd, strings.TrimSpace(line)
}

// A process that was stopped for longer than its peers have patience is down for them, and comes back by itself when it goes on:
// the same identity.
func TestStoppedProcessComesBack(t *testing.T) {
	t.Parallel()
	e := open(t, hawser.Options{})
	events := eventsOf(e)
	cmd, _ := startGuest(t, e.Addr())
	p := expect(t, events, hawser.PeerUp).Peer
	for range 2 {
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		expect(t, events, hawser.PeerDown, hawser.PeerFenced)
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if again := expect(t, events, hawser.PeerUp).Peer; again != p {
			t.Fatalf("%s came back as %s", p, again)
		}
		tr, err := e.Signal(hawser.Signal{To: p, Imm: 1})
		wait(t, tr, err)
	}
}

// A process that was killed and started again at the same port is another peer: the old one is told to be replaced by it.
func TestRestartedProcessReplacesThePeer(t *testing.T) {
	e := open(t, hawser.Options{})
	events := eventsOf(e)
	cmd, at := startGuest(t, "listen:127.0.0.1:0")
	p, err := e.Connect(testContext(t), at)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	startGuest(t, "listen:"+at)
	expect(t, events, hawser.PeerUp, hawser.PeerDown, hawser.PeerFenced)
	ev := expect(t, events, hawser.PeerReplaced)
	next, err := e.Connect(testContext(t), at)
	if err != nil {
		t.Fatal(err)
	}
	if ev.Peer != p || next == p || ev.Successor != next.ID() || next.Name() != p.Name() {
		t.Fatalf("%s is replaced by %s: %v", p, next, ev)
	}
}
