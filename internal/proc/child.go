package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stderrKept is how much of a child's standard error is kept, bytes: the whole report of a crash, unless it has very many goroutines.
const stderrKept = 256 << 10

// Spec says what to start.
type Spec struct {
	Name  string     // for errors: "decoder"
	Path  string     // the program; this one when empty
	Args  []string   // without the program's name
	Env   []string   // in addition to this process's
	Files []*os.File // the child's descriptors 3, 4, ...; they stay the caller's to close
}

// Child is a running process. One goroutine calls Next, Send and Stop; Signal may be called from any.
type Child struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr output
	lines  chan Message
	done   chan struct{} // closed when the process has been waited for
	err    error         // of Wait; valid once done is closed
	failed string        // text of the child's error message, if it sent one; written by the reader before lines is closed
}

// Start starts a child.
func Start(s Spec) (*Child, error) {
	path := s.Path
	if path == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", s.Name, err)
		}
		path = exe
	}
	c := &Child{name: s.Name, cmd: exec.Command(path, s.Args...), lines: make(chan Message, 16), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), s.Env...)
	c.cmd.ExtraFiles = s.Files
	c.cmd.Stderr = &c.stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := c.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	c.stdin = stdin
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	started := make(chan error, 1)
	go c.own(stdout, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	return c, nil
}

// own starts the process, reads its lines and waits for it. The death signal is sent when the thread that started the child
// ends, so that thread is kept for as long as the child lives.
func (c *Child) own(stdout io.Reader, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		return
	}
	defer close(c.done)
	r := newReader(stdout)
	for {
		m, err := r.next()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.failed = fmt.Sprintf("output: %v", err)
				_ = c.cmd.Process.Kill()
			}
			break
		}
		if m.Kind == kindError {
			_ = m.Decode(&c.failed)
			continue
		}
		c.lines <- m
	}
	close(c.lines)
	_, _ = io.Copy(io.Discard, stdout)
	c.err = c.cmd.Wait()
	if c.stderr.crash() != "" { // the error has one line of it, and somebody will want the rest
		_, _ = os.Stderr.Write(c.stderr.text())
	}
}

// Pid is the process id, valid until Done is closed.
func (c *Child) Pid() int { return c.cmd.Process.Pid }

// Next returns the child's next message. When the child has ended it returns why: io.EOF after a clean exit.
func (c *Child) Next(ctx context.Context) (Message, error) {
	select {
	case m, ok := <-c.lines:
		if ok {
			return m, nil
		}
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
	<-c.done
	if err := c.Err(); err != nil {
		return Message{}, err
	}
	return Message{}, io.EOF
}

// Send sends the child one message.
func (c *Child) Send(kind string, v any) error {
	if err := send(c.stdin, kind, v); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return nil
}

// Signal signals the process, which may have ended (os.ErrProcessDone).
func (c *Child) Signal(s os.Signal) error { return c.cmd.Process.Signal(s) }

// Done is closed when the process has ended and has been waited for.
func (c *Child) Done() <-chan struct{} { return c.done }

// Err says how the child failed, nil when it exited with 0. Valid once Done is closed.
func (c *Child) Err() error {
	switch {
	case c.failed != "":
		return &ExitError{Name: c.name, Text: c.failed, Err: c.err}
	case c.err != nil:
		return &ExitError{Name: c.name, Text: c.stderr.reason(), Err: c.err}
	}
	return nil
}

// ExitError is the failure of a child.
type ExitError struct {
	Name string
	Text string // what the child said; may be empty
	Err  error  // of exec.Cmd.Wait; nil when only the child's message says that it failed
}

func (e *ExitError) Error() string {
	if e.Text != "" {
		return e.Name + ": " + e.Text
	}
	return fmt.Sprintf("%s: %v", e.Name, e.Err)
}

func (e *ExitError) Unwrap() error { return e.Err }

// End asks the child to end, by closing its input; Next tells when it has.
func (c *Child) End() { _ = c.stdin.Close() } // the second time it is closed already

// MaxRSS is the largest memory that the process had, in bytes. Valid once Done is closed.
func (c *Child) MaxRSS() uint64 {
	if u, ok := c.cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		return uint64(u.Maxrss) << 10
	}
	return 0
}

// CPU is the user and system time of the process. Valid once Done is closed.
func (c *Child) CPU() time.Duration {
	return c.cmd.ProcessState.UserTime() + c.cmd.ProcessState.SystemTime()
}

// Stop ends the child and waits for it: it closes the child's input, and kills the process after the grace period. It may be
// called several times, and after the end.
func (c *Child) Stop(grace time.Duration) error {
	c.End()
	kill := time.AfterFunc(grace, func() { _ = c.cmd.Process.Kill() })
	defer kill.Stop()
	for range c.lines { // what the child still says is of no use to anybody
	}
	<-c.done
	return c.Err()
}

// output keeps the beginning of what is written to it.
type output struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.buf = append(o.buf, p[:min(len(p), stderrKept-len(o.buf))]...)
	return len(p), nil
}

func (o *output) text() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.buf)
}

// reason is why the child failed, as far as its output says: its last line, or how it crashed.
func (o *output) reason() string {
	if crash := o.crash(); crash != "" {
		return crash
	}
	text := strings.TrimSpace(string(o.text()))
	return strings.TrimPrefix(text[strings.LastIndex(text, "\n")+1:], "hawser: ")
}

// crash is the first line of the report of the Go runtime, empty when there is none.
func (o *output) crash() string {
	for line := range strings.Lines(string(o.text())) {
		for _, start := range []string{"panic: ", "fatal error: ", "SIG"} {
			if strings.HasPrefix(line, start) {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}
