//go:build vm

package roce

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
	"time"

	"github.com/hawser-project/hawser"
)

// A test binary that is started with childEnv is a receiver on the devices that the variable names. It prints a descriptor of its
// memory, then answers lines of standard input:
//
//	await N   waits until immediate immData was counted N times, prints how often it was then
const childEnv = "HAWSER_ROCE_RECEIVER"

func child(devices string) int {
	if err := receive(strings.Fields(devices), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "receiver:", err)
		return 1
	}
	return 0
}

func receive(devices []string, in io.Reader, out io.Writer) error {
	n := network{name: "verbs", dev: [2][]string{1: devices}}
	ctx := context.Background()
	e, err := hawser.Open(ctx, options(1, n))
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	mem, err := e.Alloc(pages*page, hawser.MemOptions{})
	if err != nil {
		return err
	}
	text, err := mem.Descriptor(mem.All(), hawser.RightWrite).MarshalText()
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s\n", text)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var want uint64
		if _, err := fmt.Sscanf(lines.Text(), "await %d", &want); err != nil {
			return err
		}
		if err := e.Counter(immData).Wait(ctx, want); err != nil {
			return err
		}
		fmt.Fprintln(out, e.Counter(immData).Load())
	}
	return nil
}

// receiver is such a process.
type receiver struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

// startReceiver returns the process and the descriptor of its memory.
func startReceiver(t *testing.T, devices ...string) (*receiver, hawser.Descriptor) {
	t.Helper()
	r := &receiver{cmd: exec.Command(os.Args[0])}
	r.cmd.Env = append(os.Environ(), childEnv+"="+strings.Join(devices, " "))
	r.cmd.Stderr = os.Stderr
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	if r.in, err = r.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.in.Close() // it ends
		if err := r.cmd.Wait(); err != nil {
			t.Errorf("receiver: %v", err)
		}
	})
	r.out = bufio.NewScanner(out)
	var d hawser.Descriptor
	if err := d.UnmarshalText([]byte(r.line(t))); err != nil {
		t.Fatal(err)
	}
	return r, d
}

func (r *receiver) line(t *testing.T) string {
	t.Helper()
	lines := make(chan string, 1)
	go func() {
		r.out.Scan()
		lines <- r.out.Text()
	}()
	select {
	case l := <-lines:
		return l
	case <-time.After(hang):
		_ = r.cmd.Process.Kill()
		t.Fatal("the receiver says nothing")
	}
	panic("unreachable")
}

func (r *receiver) signal(t *testing.T, sig syscall.Signal) {
	t.Helper()
	if err := r.cmd.Process.Signal(sig); err != nil {
		t.Fatal(err)
	}
}
