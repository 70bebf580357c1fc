package versus

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// maxReply bounds a line of a driver, bytes.
	maxReply = 64 << 10
	// stderrKept is how much of the end of a driver's standard error is kept, bytes: its last line is the reason when it fails.
	stderrKept = 8 << 10
	// endGrace is how long a driver has to end by itself, and then again after SIGTERM.
	endGrace = 5 * time.Second
	// lastWords is for how long what a driver wrote is read after its end.
	lastWords = 200 * time.Millisecond
)

// command is how to start a driver.
type command struct {
	Args []string
	Env  []string // in addition to this process's
	Dir  string   // this process's when empty
}

// process is a running driver: the leader of a process group. Owned by one goroutine.
type process struct {
	name    string
	cmd     *exec.Cmd
	stdin   io.WriteCloser
	replies chan []byte   // closed when the driver has said its last
	quit    chan struct{} // closed by end: nobody reads replies any more
	done    chan struct{} // closed when the leader has been waited for
	stderr  tail
	stopped bool // by SIGSTOP
}

// start starts a driver.
func start(name string, c command) (*process, error) {
	p := &process{name: name, cmd: exec.Command(c.Args[0], c.Args[1:]...), replies: make(chan []byte, 1), quit: make(chan struct{}), done: make(chan struct{})}
	p.cmd.Env, p.cmd.Dir, p.cmd.Stderr = append(os.Environ(), c.Env...), c.Dir, &p.stderr
	// A group of its own in the session of this process: if this process is killed, the kernel continues and hangs up what is stopped.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = lastWords // its children may hold standard error for longer than it lives
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.stdin = stdin
	// Not StdoutPipe: Wait would close it before everything is read.
	out, theirs, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p.cmd.Stdout = theirs
	err = p.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() { // ends with the process, which end ends
		defer close(p.done)
		_ = p.cmd.Wait() // ProcessState says how it ended
		_ = out.SetReadDeadline(time.Now().Add(lastWords))
	}()
	go p.read(out)
	return p, nil
}

// read hands on the driver's lines until its output ends: the leader's children may hold it for longer than the leader lives.
func (p *process) read(out *os.File) {
	defer func() { _ = out.Close() }()
	defer close(p.replies)
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, maxReply)
	for lines.Scan() {
		line := append([]byte(nil), lines.Bytes()...)
		if len(line) == 0 || line[0] != '{' { // some libraries print
			continue
		}
		select {
		case p.replies <- line:
		case <-p.quit:
			return
		}
	}
}

// ask sends a request and waits for its answer, at most for the given time. An answer that says no is an error, too.
func (p *process) ask(ctx context.Context, q request, limit time.Duration) (reply, error) {
	line, err := json.Marshal(q)
	if err != nil {
		return reply{}, fmt.Errorf("%s: %w", q.Op, err)
	}
	if _, err := p.stdin.Write(append(line, '\n')); err != nil {
		return reply{}, p.ended(q.Op)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case line, ok := <-p.replies:
		if !ok {
			return reply{}, p.ended(q.Op)
		}
		var r reply
		if err := json.Unmarshal(line, &r); err != nil {
			return reply{}, fmt.Errorf("%s: answer: %w", q.Op, err)
		}
		if !r.OK {
			return reply{}, errors.New(oneLine(r.Why))
		}
		return r, nil
	case <-timer.C:
		return reply{}, fmt.Errorf("%s: no answer within %v", q.Op, limit)
	case <-ctx.Done():
		return reply{}, context.Cause(ctx)
	}
}

// ended says why a driver that should have answered is gone.
func (p *process) ended(op string) error {
	select {
	case <-p.done:
	case <-time.After(endGrace): // it closed its output and lives on
	}
	text := "it closed its output"
	if p.cmd.ProcessState != nil {
		text = p.cmd.ProcessState.String()
	}
	if last := p.stderr.lastLine(); last != "" {
		text += ": " + last
	}
	return fmt.Errorf("%s: the driver ended (%s)", op, oneLine(text))
}

// signal signals the whole group, which may be gone.
func (p *process) signal(s syscall.Signal) { _ = syscall.Kill(-p.cmd.Process.Pid, s) }

// pause stops the group, so that it costs the others nothing; resume continues it.
func (p *process) pause() { p.signal(syscall.SIGSTOP); p.stopped = true }

func (p *process) resume() {
	if p.stopped {
		p.signal(syscall.SIGCONT)
		p.stopped = false
	}
}

// end ends the group: by the end of its input, then by SIGTERM, then by SIGKILL. In a hurry, the first is left out.
func (p *process) end(hurry bool) {
	p.resume()
	_ = p.stdin.Close()
	if hurry || !p.wait(endGrace) {
		p.signal(syscall.SIGTERM)
		p.wait(endGrace)
	}
	p.signal(syscall.SIGKILL) // what the leader has left behind, if anything
	<-p.done
	close(p.quit)
	for range p.replies { // until the reader has ended
	}
}

// wait reports whether the leader has ended within a time.
func (p *process) wait(limit time.Duration) bool {
	select {
	case <-p.done:
		return true
	case <-time.After(limit):
		return false
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf []byte // guarded by mu
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	t.buf = t.buf[max(len(t.buf)-stderrKept, 0):]
	return len(b), nil
}

func (t *tail) lastLine() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	text := strings.TrimSpace(string(t.buf))
	return text[strings.LastIndex(text, "\n")+1:]
}

// errorLine is the first line that says that it is an error, which compilers and installers explain further below, or else the last.
func (t *tail) errorLine() string {
	t.mu.Lock()
	text := string(t.buf)
	t.mu.Unlock()
	for line := range strings.Lines(text) {
		if lower := strings.ToLower(line); strings.Contains(lower, "error:") || strings.HasPrefix(lower, "e: ") {
			return strings.TrimSpace(line)
		}
	}
	return t.lastLine()
}

// whyLength bounds the reason in a row, bytes.
const whyLength = 200

// oneLine is a reason as a table can hold it.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if len(s) > whyLength {
		s = strings.ToValidUTF8(s[:whyLength], "") + "..."
	}
	return s
}
