package hawser_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// A test binary started with childEnv is a writer: it reads a descriptor from standard input and writes to it for ever.
const childEnv = "HAWSER_TEST_WRITER"

func TestMain(m *testing.M) {
	switch err := child(); {
	case errors.Is(err, errNoMode):
		os.Exit(m.Run())
	case errors.Is(err, errCutOff):
		os.Exit(exitCutOff)
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// errCutOff ends a writer that was fenced: nothing that it knows is of any use any more.
var errCutOff = errors.New("cut off")

const exitCutOff = 3

func writer(network string) error {
	ctx := context.Background()
	e, err := hawser.Open(ctx, hawser.Options{Require: network})
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	in := bufio.NewScanner(os.Stdin)
	if !in.Scan() {
		return errors.New("no descriptor")
	}
	var d hawser.Descriptor
	if err := d.UnmarshalText(in.Bytes()); err != nil {
		return err
	}
	rem, err := e.Import(ctx, d)
	if err != nil {
		return err
	}
	src, err := e.Alloc(d.Len(), hawser.MemOptions{})
	if err != nil {
		return err
	}
	for i := range src.Bytes() {
		src.Bytes()[i] = 1
	}
	for err == nil {
		err = write(ctx, e, src, rem)
	}
	// It tries again, with all that it has.
	for range 20 {
		if write(ctx, e, src, rem) == nil {
			return errors.New("a write through a remote of before the fence")
		}
		if _, stale := e.Import(ctx, d); !errors.Is(stale, hawser.ErrStale) {
			return fmt.Errorf("import of a descriptor of before the fence: %w", stale)
		}
	}
	return fmt.Errorf("%w: %w", errCutOff, err)
}

func write(ctx context.Context, e *hawser.Engine, src *hawser.Region, rem *hawser.Remote) error {
	tr, err := e.Write(hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(1), Parts: 16})
	if err != nil {
		return err
	}
	return tr.Wait(ctx)
}

// victim is a writer process and the engine that it writes to.
type victim struct {
	e      *hawser.Engine
	dst    *hawser.Region
	peer   *hawser.Peer
	proc   *exec.Cmd
	events chan hawser.PeerEvent
}

func startVictim(t *testing.T, network string) *victim {
	t.Helper()
	return startVictimOn(t, network, false, hawser.Options{})
}

// startVictimOn is startVictim with memory of Alloc or foreign memory, and options of the engine that is written to.
func startVictimOn(t *testing.T, network string, foreign bool, o hawser.Options) *victim {
	t.Helper()
	const size = 4 << 20
	v := &victim{e: open(t, o), events: make(chan hawser.PeerEvent, 10)}
	var err error
	if foreign {
		v.dst, err = v.e.Register(mapped(t, size), hawser.RegisterOptions{})
	} else {
		v.dst, err = v.e.Alloc(size, hawser.MemOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	text, err := v.dst.Descriptor(v.dst.All(), hawser.RightWrite).MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	v.e.OnPeer(func(ev hawser.PeerEvent) { v.events <- ev })
	v.proc = exec.Command(os.Args[0])
	v.proc.Env = append(os.Environ(), childEnv+"="+network)
	v.proc.Stdin = strings.NewReader(string(text) + "\n")
	v.proc.Stderr = os.Stderr
	v.proc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := v.proc.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = v.proc.Process.Kill()
		_ = v.proc.Wait() // it was killed, or has ended with an error of its own: either is fine here
	})
	v.peer = v.event(t, hawser.PeerUp).Peer
	if v.peer.Path() != network {
		t.Fatalf("path %s, want %s", v.peer.Path(), network)
	}
	reach(t, v.e.Counter(1), 100)
	return v
}

func (v *victim) event(t *testing.T, kind hawser.PeerEventKind) hawser.PeerEvent {
	t.Helper()
	select {
	case ev := <-v.events:
		if ev.Kind != kind {
			t.Fatalf("event %v (%v), want %v", ev.Kind, ev.Cause, kind)
		}
		return ev
	case <-time.After(hang):
		t.Fatalf("no %v event", kind)
	}
	panic("unreachable")
}

func (v *victim) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := v.proc.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}

// A killed peer is noticed at once, by its sockets and not by its silence, and fenced. How fast is logged, for it depends on what else
// the machine does.
func TestKilledPeerIsDownAtOnce(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"shm", "tcp", "shm, foreign memory"} {
		t.Run(name, func(t *testing.T) {
			network, _, foreign := strings.Cut(name, ",")
			v := startVictimOn(t, network, foreign, hawser.Options{PeerTimeout: 10 * hang})
			start := time.Now()
			v.signal(t, syscall.SIGKILL)
			ev := v.event(t, hawser.PeerDown)
			t.Logf("noticed after %v: %v", time.Since(start), ev.Cause)
			if !errors.Is(ev.Cause, hawser.ErrPeerDown) {
				t.Errorf("cause %v", ev.Cause)
			}
			v.event(t, hawser.PeerFenced)
			if _, err := v.e.Signal(hawser.Signal{To: v.peer, Imm: 1}); !errors.Is(err, hawser.ErrPeerDown) {
				t.Errorf("signal to a dead peer: %v", err)
			}
		})
	}
}

// A stopped peer is down after its silence. Once the fence has succeeded nothing it does changes a byte, when it wakes up again.
func TestStoppedPeerIsDownAndCannotWriteAfterTheFence(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"shm", "tcp", "shm, foreign memory"} {
		t.Run(name, func(t *testing.T) {
			network, _, foreign := strings.Cut(name, ",")
			v := startVictimOn(t, network, foreign, hawser.Options{})
			start := time.Now()
			v.signal(t, syscall.SIGSTOP)
			ev := v.event(t, hawser.PeerDown)
			t.Logf("noticed after %v: %v", time.Since(start), ev.Cause)
			err := v.e.Fence(testContext(t), v.peer)
			if !foreign && errors.Is(err, hawser.ErrUnfenced) { // stopped in mid-copy: no proof before it goes on
				t.Logf("fence: %v", err)
				v.signal(t, syscall.SIGCONT)
				v.event(t, hawser.PeerFenced)
				err = nil
			}
			if err != nil {
				t.Fatal(err)
			}
			count := v.e.Counter(1).From(v.peer)
			clear(v.dst.Bytes())
			v.signal(t, syscall.SIGCONT)
			if err := v.proc.Wait(); err == nil { // it learns that it was cut off, and ends
				t.Fatal("the writer ended in peace")
			}
			same(t, "memory after the fence", v.dst.Bytes(), make([]byte, v.dst.Len()))
			if n := v.e.Counter(1).From(v.peer); n != count {
				t.Fatalf("count went from %d to %d after the fence", count, n)
			}
		})
	}
}
