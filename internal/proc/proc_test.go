package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes the test binary one of the children below.
const roleEnv = "HAWSER_PROC_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		child(role)
		return
	}
	os.Exit(m.Run())
}

func child(role string) {
	p, ctx := Attach(context.Background())
	switch role {
	case "echo":
		for {
			m, err := p.Next(ctx)
			if err != nil {
				return
			}
			_ = p.Send(m.Kind, m.Data)
		}
	case "wait":
		if _, err := p.Next(context.Background()); err != nil {
			p.Fail(errors.Join(err, context.Cause(ctx)))
			os.Exit(1)
		}
	case "fail":
		p.Fail(errors.New("port 7400 is in use"))
		os.Exit(1)
	case "crash":
		fmt.Fprintln(os.Stderr, "hawser: boom")
		os.Exit(3)
	case "panic":
		go func() { panic("out of luck") }()
		select {}
	case "garbage":
		fmt.Println("not json")
		<-ctx.Done()
	case "stubborn":
		_ = p.Send("ready", nil)
		for {
			time.Sleep(time.Hour) // the runtime would end a process in which nothing can ever run again
		}
	case "nest": // starts a stubborn child, tells its pid, and waits
		c, err := Start(Spec{Name: "grandchild", Env: []string{roleEnv + "=stubborn"}})
		if err != nil {
			p.Fail(err)
			os.Exit(1)
		}
		if _, err := c.Next(ctx); err != nil {
			p.Fail(err)
			os.Exit(1)
		}
		_ = p.Send("pid", c.Pid())
		<-c.Done()
	}
}

func start(t *testing.T, role string) *Child {
	t.Helper()
	c, err := Start(Spec{Name: role, Env: []string{roleEnv + "=" + role}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Stop(0) })
	return c
}

// hang bounds every wait of a test: it guards against hangs and asserts nothing.
const hang = time.Minute

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	t.Cleanup(cancel)
	return ctx
}

func TestMessagesGoBothWays(t *testing.T) {
	c := start(t, "echo")
	for i := range 3 {
		if err := c.Send("number", i); err != nil {
			t.Fatal(err)
		}
		m, err := c.Next(within(t))
		if err != nil {
			t.Fatal(err)
		}
		var got int
		if err := m.Decode(&got); err != nil || m.Kind != "number" || got != i {
			t.Fatalf("got %s %d (%v), want number %d", m.Kind, got, err, i)
		}
	}
	if err := c.Stop(hang); err != nil {
		t.Errorf("stop of a child that ends by itself: %v", err)
	}
	if _, err := c.Next(within(t)); !errors.Is(err, io.EOF) {
		t.Errorf("next after a clean end: got %v, want io.EOF", err)
	}
}

func TestErrorOfAChildNamesItAndTheCause(t *testing.T) {
	for role, want := range map[string]string{
		"fail":    "fail: port 7400 is in use",
		"crash":   "crash: boom",
		"panic":   "panic: panic: out of luck",
		"garbage": "garbage: output: line \"not json\" is no message",
	} {
		t.Run(role, func(t *testing.T) {
			c := start(t, role)
			_, err := c.Next(within(t))
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("got %v, want it to start with %q", err, want)
			}
		})
	}
}

// TestChildSaysWhatIsWrongWithItsParent ends a child's input, well and with what no parent writes; the child reports what Next
// and its context say.
func TestChildSaysWhatIsWrongWithItsParent(t *testing.T) {
	for input, want := range map[string]string{"": ErrParentGone.Error(), "not json\n": "line \"not json\" is no message"} {
		c := start(t, "wait")
		if _, err := io.WriteString(c.stdin, input); err != nil {
			t.Fatal(err)
		}
		c.End()
		_, err := c.Next(within(t))
		if err == nil || strings.Count(err.Error(), want) != 2 {
			t.Errorf("input %q: got %v, want %q twice", input, err, want)
		}
	}
}

func TestOutputOfAChildIsBounded(t *testing.T) {
	var o output
	for range 3 {
		if n, err := o.Write(make([]byte, stderrKept/2+1)); n != stderrKept/2+1 || err != nil {
			t.Fatalf("write: got %d, %v", n, err)
		}
	}
	if got := len(o.text()); got != stderrKept {
		t.Errorf("%d bytes are kept, want %d", got, stderrKept)
	}
}

func TestStopKillsAChildThatDoesNotEnd(t *testing.T) {
	c := start(t, "stubborn")
	if _, err := c.Next(within(t)); err != nil {
		t.Fatal(err)
	}
	var exit *ExitError
	if err := c.Stop(10 * time.Millisecond); !errors.As(err, &exit) {
		t.Errorf("got %v, want an ExitError", err)
	}
	if err := c.Signal(syscall.Signal(0)); !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("signal after stop: got %v, want os.ErrProcessDone", err)
	}
}

func TestStopEndsAStoppedChild(t *testing.T) {
	c := start(t, "echo")
	if err := c.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(10 * time.Millisecond); err == nil {
		t.Error("a child that was killed ended without an error")
	}
}

// TestChildDiesWithItsParent kills a process and looks for the child that it had.
func TestChildDiesWithItsParent(t *testing.T) {
	c := start(t, "nest")
	m, err := c.Next(within(t))
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	if err := m.Decode(&pid); err != nil {
		t.Fatal(err)
	}
	if err := c.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(hang); alive(pid); {
		if time.Now().After(deadline) {
			t.Fatalf("process %d still runs after its parent was killed", pid)
		}
		_ = c.Stop(0)
	}
}

// alive reports whether a process runs; one that has ended and that nobody waits for does not.
func alive(pid int) bool {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}
