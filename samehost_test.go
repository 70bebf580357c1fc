package hawser_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
)

// Two engines are on the same host when boot id, network namespace and user are equal, the unix socket can be reached, and memory
// can be handed over; else they use TCP. Each of these has a test here or near: another boot id in TestAnotherHostIsDialedOverTCP,
// another namespace in TestTwoHostsOverARealAddressAndACutCable, another user in TestAnotherUserIsAnotherHost, a socket that is gone
// in TestUnixSocketThatIsGone, memory that cannot be handed over in TestNextPathIsTaken.

// A test binary started with otherUserEnv, which is an engine's address, is another user of this host.
const otherUserEnv = "HAWSER_TEST_OTHER_USER"

// nobody is a user that owns nothing.
const nobody = 65534

// otherUser dials the unix socket of the engine, where it must be turned away, then connects as an engine does and tells the path.
func otherUser(addr string) error {
	a, err := wire.ParseAddr(addr)
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", "@"+a.Unix)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(hang))
	if n, err := io.Copy(io.Discard, conn); n > 0 || err != nil && !strings.Contains(err.Error(), "reset") {
		return fmt.Errorf("the unix socket of another user says %d bytes: %w", n, err)
	}
	_ = conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	e, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		return err
	}
	p, err := e.Connect(ctx, addr)
	if err != nil {
		return err
	}
	fmt.Printf("user %d: path %s\n", os.Geteuid(), p.Path())
	return e.Close(ctx)
}

// Another user of the same machine is not let in by the unix socket, and is reached over TCP as another host would be.
func TestAnotherUserIsAnotherHost(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	e := open(t, hawser.Options{})
	cmd := exec.Command("/proc/self/exe") // by this name it needs no permission on the directories above it
	cmd.Env = append(os.Environ(), otherUserEnv+"="+e.Addr())
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), fmt.Sprintf("user %d: path tcp", nobody)) {
		t.Fatalf("%v: %s", err, out)
	}
	if n := e.Stats().Refused[hawser.RefusedUser]; n != 1 {
		t.Fatalf("%d refusals of another user, want 1", n)
	}
}

// An address whose unix socket cannot be reached is dialed over TCP.
func TestUnixSocketThatIsGone(t *testing.T) {
	a, b := open(t, hawser.Options{}), open(t, hawser.Options{})
	addr, err := wire.ParseAddr(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	addr.Unix += "-gone"
	c := newCable(t, b.ListenAddrs()[0])
	addr.Listen = []string{c.Addr().String()}
	p, err := a.Connect(testContext(t), addr.String())
	if err != nil {
		t.Fatal(err)
	}
	if c.dials.Load() != 1 {
		t.Fatalf("%d connections over TCP, want 1", c.dials.Load())
	}
	tr, err := a.Signal(hawser.Signal{To: p, Imm: 1})
	wait(t, tr, err)
	reach(t, b.Counter(1), 1)
}

// The address of another boot, or of another user, is dialed over TCP, whatever its unix socket is called.
func TestAnotherHostIsDialedOverTCP(t *testing.T) {
	a, b := open(t, hawser.Options{}), open(t, hawser.Options{})
	addr, err := wire.ParseAddr(b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	c := newCable(t, b.ListenAddrs()[0])
	addr.Listen = []string{c.Addr().String()}
	for i, host := range []string{"", addr.Host + "1", "0" + addr.Host} {
		addr.Host = host
		p, err := a.Connect(testContext(t), addr.String())
		if err != nil {
			t.Fatal(err)
		}
		if n := c.dials.Load(); n != int64(i+1) {
			t.Fatalf("host %q: %d connections over TCP, want %d", host, n, i+1)
		}
		if err := a.Fence(testContext(t), p); err != nil {
			t.Fatal(err)
		}
	}
}
