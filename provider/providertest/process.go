package providertest

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// childEnv marks the second process of a process property: its value is what the child does.
const childEnv = "HAWSER_PROVIDERTEST_CHILD"

const (
	childRuns  = "run"
	childStops = "stop" // stops itself in the middle of a copy, once a connection
)

const (
	// childMemory is what each side of a process property can be written to.
	childMemory = 1 << 20
	// childWrite is long, so that a signal is likely to hit a copy.
	childWrite = 256 << 10
	// deathBound is how soon a local peer's death is seen.
	deathBound = time.Second
)

// child is a second process that runs runChild. Owned by the test.
//
// It serves connections one after the other. The parent sends an Addr and gets one; when both are up each sends a key; the
// child then writes with immediates until KindPeerDown, says "down", and waits for the next Addr. Each item is a line.
type child struct {
	w     *world
	cmd   *exec.Cmd
	in    *os.File
	lines chan string
	out   bytes.Buffer
}

func (w *world) startChild(does string) *child {
	w.Helper()
	exe, err := os.Executable()
	if err != nil {
		w.Fatal(err)
	}
	stdin, in, err := os.Pipe()
	if err != nil {
		w.Fatal(err)
	}
	out, reply, err := os.Pipe()
	if err != nil {
		w.Fatal(err)
	}
	root, _, _ := strings.Cut(w.Name(), "/"+groupName+"/")
	parts := strings.Split(root, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	c := &child{w: w, in: in, lines: make(chan string, 4)}
	args := []string{"-test.run=" + strings.Join(parts, "/"), "-test.count=1", "-test.timeout=2m"}
	flag.Visit(func(f *flag.Flag) { // what the package's own flags ask for, the child has to do, too
		if !strings.HasPrefix(f.Name, "test.") {
			args = append(args, "-"+f.Name+"="+f.Value.String())
		}
	})
	c.cmd = exec.Command(exe, args...)
	c.cmd.Env = append(os.Environ(), childEnv+"="+does)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = stdin, &c.out, &c.out
	c.cmd.ExtraFiles = []*os.File{reply}
	if err := c.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	_, _ = stdin.Close(), reply.Close() // the child has them
	go func() {
		defer close(c.lines)
		defer func() { _ = out.Close() }()
		for s := bufio.NewScanner(out); s.Scan(); {
			c.lines <- s.Text()
		}
	}()
	w.Cleanup(func() {
		_ = in.Close()           // which tells the child to end
		_ = c.cmd.Process.Kill() // it may have ended
		_ = c.cmd.Wait()
		for range c.lines { // the reader ends with the pipe
		}
		if w.Failed() {
			w.Logf("output of the child:\n%s", c.out.String())
		}
	})
	return c
}

// read pumps the world until the child says something.
func (c *child) read(what string) string {
	c.w.Helper()
	var line string
	c.w.until("the child says "+what, func() bool {
		select {
		case l, ok := <-c.lines:
			if !ok {
				c.w.Fatalf("the child ended instead of saying %s", what)
			}
			line = l
			return true
		default:
			return false
		}
	})
	return line
}

func (c *child) say(line string) {
	c.w.Helper()
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		c.w.Fatalf("tell the child: %v", err)
	}
}

// join connects a host to the child. dst is what the child writes to; the lane returned leads to the child's memory.
func (c *child) join(h *host, src, dst *region) *lane {
	w := c.w
	w.Helper()
	l := &lane{w: w, from: h, src: src, dst: dst}
	p, addr := h.offer()
	l.peer = p
	c.say(hex.EncodeToString(addr))
	remote, err := hex.DecodeString(c.read("its address"))
	if err != nil {
		w.Fatal(err)
	}
	h.mustConnect(p, remote, true)
	w.until("the connection to the child is up", func() bool { return h.peer(p).up })
	c.say(formatKey(w.grant(dst, p)))
	if l.key, err = parseKey(c.read("its key")); err != nil {
		w.Fatal(err)
	}
	return l
}

func formatKey(k provider.Key) string { return fmt.Sprintf("%d %d", k.ID, k.Base) }

func parseKey(s string) (k provider.Key, err error) {
	_, err = fmt.Sscan(s, &k.ID, &k.Base)
	return k, err
}

// signal sends a signal; with SIGSTOP it returns once every thread of the child has stopped.
func (c *child) signal(sig unix.Signal) {
	c.w.Helper()
	pid := c.cmd.Process.Pid
	if err := unix.Kill(pid, sig); err != nil {
		c.w.Fatal(err)
	}
	if sig == unix.SIGSTOP {
		c.awaitStop()
	}
}

// awaitStop waits until every thread of the child has stopped.
func (c *child) awaitStop() {
	c.w.Helper()
	pid := c.cmd.Process.Pid
	c.w.until("the child stops", func() bool {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
		if err != nil {
			c.w.Fatal(err)
		}
		for _, task := range tasks {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/stat", pid, task.Name()))
			if err != nil {
				return false // a thread that has just ended
			}
			// The state follows the name, which is in brackets and may hold any character.
			if i := bytes.LastIndexByte(stat, ')'); i < 0 || !bytes.HasPrefix(stat[i:], []byte(") T")) {
				return false
			}
		}
		return true
	})
}

func killedProcess(w *world) {
	h, b := w.open("parent"), w.open("bystander")
	local := w.lane(h, b, 4096)
	src := w.region(h, childMemory, 0)
	dst := w.region(h, childMemory, provider.AccessRemoteWrite)
	w.fill(src.b)
	for round := range 2 {
		c := w.startChild(childRuns)
		l := c.join(h, src, dst)
		h.imms = h.imms[:0]
		w.until("the child has written 50 times", func() bool { return len(h.imms) >= 50 })
		wrs := make([]provider.WR, h.caps.PeerDepth)
		for i := range wrs {
			wrs[i] = l.writeImm(0, 0, childWrite, uint32(i))
			if i%4 == 3 {
				wrs[i] = send(l.peer, src, 0, 1000) // the child posts no receive
			}
		}
		toks, err := h.tryPost(wrs)
		if err != nil {
			w.Fatal(err)
		}
		c.signal(unix.SIGKILL)
		killed := time.Now()
		// Asleep, so that a death that does not wake is seen.
		if err := h.await("KindPeerDown after the peer was killed", func() bool { return h.peer(l.peer).down }, nil); err != nil {
			w.Fatal(err)
		}
		if took := h.peer(l.peer).downAt.Sub(killed); took > deathBound {
			w.Errorf("round %d: a killed peer was down after %v, want at most %v", round, took, deathBound)
		}
		if st := h.peer(l.peer).downStatus; st != provider.StatusPeerDown {
			w.Errorf("round %d: KindPeerDown of a killed peer has status %v, want peer-down", round, st)
		}
		h.wantOneOf([]provider.Status{provider.StatusOK, provider.StatusFlushed}, toks...)
		for i, tok := range toks {
			if wrs[i].Op == provider.OpSend && h.done[tok] == provider.StatusOK {
				w.Error("a message without a receive ended with ok")
			}
		}
		if st := w.fence(h, l.peer); st != provider.StatusOK {
			w.Errorf("round %d: fence of a killed peer ended with %v", round, st)
		}
		check := w.claim(dst)
		local.works()
		check("after the peer was killed")
	}
}

func stoppedProcess(w *world) {
	h := w.open("parent")
	src := w.region(h, childMemory, 0)
	dst := w.region(h, childMemory, provider.AccessRemoteWrite)
	c := w.startChild(childRuns)
	unfenced := 0
	const rounds = 8
	for round := range rounds {
		h.imms = h.imms[:0]
		l := c.join(h, src, dst)
		want := 5 + w.rng.IntN(50)
		w.until("the child has written", func() bool { return len(h.imms) >= want })
		c.signal(unix.SIGSTOP)
		st := w.fence(h, l.peer)
		var check func(string)
		if st == provider.StatusOK {
			check = w.claim(dst)
		}
		if st == provider.StatusUnfenced {
			unfenced++
		}
		c.signal(unix.SIGCONT)
		for st == provider.StatusUnfenced {
			if st = w.fence(h, l.peer); st == provider.StatusOK {
				check = w.claim(dst)
			}
		}
		if st != provider.StatusOK {
			w.Fatalf("round %d: fence ended with %v", round, st)
		}
		if got := c.read("that the connection is down"); got != "down" {
			w.Fatalf("the child says %q, want down", got)
		}
		w.settle()
		check(fmt.Sprintf("round %d, a stopped process that goes on", round))
	}
	w.Logf("%d of %d stopped writers could not be fenced before they went on", unfenced, rounds)
}

// stoppedInsideACopy: while a writer is stopped in the middle of a copy nothing proves that the rest will not land, so a fence
// must not say so. When it goes on, or has died, the fence succeeds and the rest does not land.
func stoppedInsideACopy(w *world) {
	if w.f.MidCopy == nil {
		w.unpromised("Factory.MidCopy is nil: the writer copies nothing")
	}
	h := w.open("parent")
	src := w.region(h, childMemory, 0)
	dst := w.region(h, childMemory, provider.AccessRemoteWrite)
	for _, ends := range []unix.Signal{unix.SIGCONT, unix.SIGCONT, unix.SIGKILL} {
		clear(dst.b)
		h.imms = h.imms[:0]
		c := w.startChild(childStops)
		l := c.join(h, src, dst)
		c.awaitStop()
		if firstNonZero(dst.b) < 0 {
			w.Fatal("the child has stopped before its copy")
		}
		for range 2 {
			if st := w.fence(h, l.peer); st != provider.StatusUnfenced {
				w.Fatalf("fence of a writer that is in the middle of a copy ended with %v, want unfenced", st)
			}
		}
		c.signal(ends)
		st := w.fence(h, l.peer)
		for st == provider.StatusUnfenced {
			st = w.fence(h, l.peer)
		}
		if st != provider.StatusOK {
			w.Fatalf("fence of a writer that was stopped, after %v, ended with %v", ends, st)
		}
		check := w.claim(dst)
		if ends == unix.SIGCONT {
			if got := c.read("that the connection is down"); got != "down" {
				w.Fatalf("the child says %q, want down", got)
			}
		}
		w.settle()
		check(fmt.Sprintf("a writer that was stopped in a copy, after %v", ends))
	}
}

// stopsInside has h stop this process in the middle of a copy, once.
func (w *world) stopsInside(h *host, copies int) {
	w.f.MidCopy(h.dom, func() {
		if copies--; copies != 0 {
			return
		}
		// To this thread: it does not return from the call before it has stopped. Another thread could stop a little later.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
			panic(err)
		}
	})
}

// runChild is the second process. It ends when its standard input does.
func runChild(t *testing.T, f Factory) {
	w := newWorld(t, f)
	reply := os.NewFile(3, "reply")
	say := func(line string) {
		if _, err := fmt.Fprintln(reply, line); err != nil {
			t.Fatal(err)
		}
	}
	lines := make(chan string)
	go func() { // ends with the process, which has nothing else to do
		defer close(lines)
		for s := bufio.NewScanner(os.Stdin); s.Scan(); {
			lines <- s.Text()
		}
	}()
	h := w.open("child")
	l := &lane{w: w, from: h, src: w.region(h, childMemory, 0), dst: w.region(h, childMemory, provider.AccessRemoteWrite)}
	w.fill(l.src.b)
	for i := range l.src.b {
		l.src.b[i] |= 1 // no byte is zero, so that the parent sees each one that lands
	}
	for line := range lines {
		remote, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		p, addr := h.offer()
		l.peer = p
		say(hex.EncodeToString(addr))
		h.mustConnect(p, remote, false)
		w.until("the connection to the parent is up", func() bool { return h.peer(p).up })
		if os.Getenv(childEnv) == childStops {
			w.stopsInside(h, 1+w.rng.IntN(20))
		}
		say(formatKey(w.grant(l.dst, p)))
		w.until("the parent says its key", func() bool {
			select {
			case line, ok := <-lines:
				if !ok {
					t.Fatal("the parent ended")
				}
				if l.key, err = parseKey(line); err != nil {
					t.Fatal(err)
				}
				return true
			default:
				return false
			}
		})
		w.within(time.Minute, "KindPeerDown", func() bool { return w.childWrites(l) })
		if err := h.dom.Disconnect(p); err != nil {
			t.Fatal(err)
		}
		h.imms = nil
		clear(h.done)
		say("down")
	}
}

// childWrites posts what the queue takes and reports whether the connection has gone.
func (w *world) childWrites(l *lane) bool {
	if l.from.peer(l.peer).down {
		return len(l.from.out) == 0
	}
	wrs := make([]provider.WR, 4)
	for i := range wrs {
		o := w.rng.IntN(childMemory - childWrite)
		wrs[i] = l.writeImm(o, o, childWrite-w.rng.IntN(100), uint32(i))
	}
	if _, err := l.from.tryPost(wrs); err != nil {
		w.Fatal(err)
	}
	return false
}
