package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// cluster is a controller and its members, each a process of the tool.
type cluster struct {
	*testing.T
	dir      string
	flags    []string
	train    []string // more flags of trainers
	trainers int
	ranks    int
	members  map[string]*served
}

// served is a process of hawser weights serve.
type served struct {
	cmd   *exec.Cmd
	lines chan serverState // closed at its end
	errs  *strings.Builder
	done  chan struct{}
}

// newCluster writes checkpoints of two versions and the layouts.
func newCluster(t *testing.T, train, infer string) *cluster {
	t.Helper()
	c := &cluster{T: t, dir: t.TempDir(), members: map[string]*served{}}
	for v := 1; v <= 2; v++ {
		c.mustRun("checkpoint", "gen", "--version", fmt.Sprint(v), "-o", c.file(fmt.Sprint("v", v)))
	}
	c.trainers = c.layout("train", train, "src.json")
	c.ranks = c.layout("infer", infer, "dst.json", "--preset", "vllm")
	t.Cleanup(c.stopAll)
	return c
}

func (c *cluster) file(name string) string { return filepath.Join(c.dir, name) }

func (c *cluster) layout(side, mesh, name string, more ...string) (ranks int) {
	c.Helper()
	out := c.mustRun(append([]string{"layout", "gen", "--model", "tiny", "--side", side, "--mesh", mesh, "-o", c.file(name), "--json", "-"}, more...)...)
	return int(number(c.T, decodeJSON(c.T, out), "ranks"))
}

// run runs a command of hawser weights.
func (c *cluster) run(args ...string) (stdout, stderr string, code int) {
	c.Helper()
	return tool(c.T, append([]string{"weights"}, args...)...)
}

func (c *cluster) mustRun(args ...string) string {
	c.Helper()
	stdout, stderr, code := c.run(args...)
	if code != exitOK {
		c.Fatalf("hawser weights %s: exit code %d: %s", strings.Join(args, " "), code, stderr)
	}
	return stdout
}

// serve starts a member and waits for its first state.
func (c *cluster) serve(name string, args ...string) *served {
	c.Helper()
	cmd, id := command(c.T, append([]string{"weights", "serve", "--json", "-", "--verify", "all"}, args...)...)
	s := &served{cmd: cmd, lines: make(chan serverState, 1000), errs: &strings.Builder{}, done: make(chan struct{})}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.Fatal(err)
	}
	cmd.Stderr = s.errs
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { noneLeft(c.T, id) })
	c.Cleanup(func() { s.end(c.T) }) // before noneLeft: cleanups run backwards
	c.members[name] = s
	go func() {
		defer close(s.done)
		defer close(s.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			var x serverState
			if json.Unmarshal(in.Bytes(), &x) == nil && x.Role != "" {
				s.lines <- x
			}
		}
		_ = cmd.Wait()
	}()
	c.await(name, "its begin", func(serverState) bool { return true })
	return s
}

// await waits for a state of a member.
func (c *cluster) await(name, what string, want func(serverState) bool) serverState {
	c.Helper()
	s := c.members[name]
	limit := time.After(hang)
	var last serverState
	for {
		select {
		case x, ok := <-s.lines:
			if !ok {
				c.Fatalf("%s ended before %s; it was %+v: %s", name, what, last, s.errs)
			}
			if last = x; want(x) {
				return x
			}
		case <-limit:
			c.Fatalf("%s: %s did not come; it is %+v", name, what, last)
		}
	}
}

func (c *cluster) awaitVersion(name string, v uint64) {
	c.Helper()
	c.await(name, fmt.Sprint("version ", v), func(s serverState) bool { return s.Version == v && s.State == "committed" })
}

// end interrupts a process and waits for it.
func (s *served) end(t *testing.T) {
	t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-s.done:
	case <-time.After(hang):
		t.Errorf("%v does not end", s.cmd.Args)
		_ = s.cmd.Process.Kill()
		<-s.done
	}
}

// kill ends a process as a crash does.
func (s *served) kill() {
	_ = s.cmd.Process.Kill()
	<-s.done
}

func (c *cluster) stopAll() {
	for _, s := range c.members {
		_ = s.cmd.Process.Signal(syscall.SIGINT)
	}
}

// start starts everybody.
func (c *cluster) start(expect int, more ...string) {
	c.Helper()
	c.control(expect)
	c.join(more...)
}

// join starts all members.
func (c *cluster) join(more ...string) {
	c.Helper()
	for r := range c.trainers {
		c.trainer(r)
	}
	for r := range c.ranks {
		c.rank(r, more...)
	}
}

// control starts the controller.
func (c *cluster) control(expect int, more ...string) {
	c.Helper()
	args := []string{"--role", "controller", "--state", c.file("state"), "--addr-file", c.file("addr"), "--expect", fmt.Sprint(expect)}
	c.serve("controller", append(args, more...)...)
	c.flags = []string{"--controller", "@" + c.file("addr")}
}

func (c *cluster) trainer(r int) {
	c.Helper()
	args := append(c.flags, "--role", "publisher", "--layout", c.file("src.json"), "--rank", fmt.Sprint(r), "--from", c.file("v{version}"))
	c.serve(fmt.Sprint("trainer-", r), append(args, c.train...)...)
}

func (c *cluster) rank(r int, more ...string) {
	c.Helper()
	args := append(c.flags, "--layout", c.file("dst.json"), "--rank", fmt.Sprint(r))
	c.serve(fmt.Sprint("rank-", r), append(args, more...)...)
}

// push pushes a version and returns the report.
func (c *cluster) push(v int, more ...string) (r map[string]any, stderr string, code int) {
	c.Helper()
	stdout, stderr, code := c.run(append(append([]string{"push", "--json", "-", "--version", fmt.Sprint(v)}, c.flags...), more...)...)
	if stdout != "" {
		r = decodeJSON(c.T, stdout)
	}
	return r, stderr, code
}

func (c *cluster) mustPush(v int, more ...string) map[string]any {
	c.Helper()
	r, stderr, code := c.push(v, more...)
	if code != exitOK {
		c.Fatalf("push of version %d: exit code %d: %s", v, code, stderr)
	}
	return r
}

// verify compares every rank that serves a version with the checkpoint.
func (c *cluster) verify(v int, more ...string) {
	c.Helper()
	out := c.mustRun(append(append([]string{"verify", "--json", "-", "--version", fmt.Sprint(v), "--from", c.file("v{version}"), "--layout", c.file("dst.json")}, c.flags...), more...)...)
	if r := decodeJSON(c.T, out); r["equal"] != true || number(c.T, r, "wrong_bytes") != 0 {
		c.Errorf("version %d: %v", v, r)
	}
}

// Two versions go from four trainers to two inference ranks, and both have what the checkpoint has.
func TestWeightsPush(t *testing.T) {
	c := newCluster(t, "fsdp=4", "tp=2")
	c.start(6)
	for v := 1; v <= 2; v++ {
		r := c.mustPush(v)
		if number(t, r, "version") != float64(v) || number(t, r, "bytes") != 54160896 || number(t, r, "writes") == 0 {
			t.Errorf("report %v", r)
		}
		c.verify(v, "--all")
	}
	status := decodeJSON(t, c.mustRun(append([]string{"status", "--json", "-"}, c.flags...)...))
	if n := len(status["members"].([]any)); n != 6 || number(t, status, "version") != 2 {
		t.Errorf("status %v", status)
	}
	// Another checkpoint than the one that is served is found out.
	_, stderr, code := c.run(append([]string{"verify", "--version", "2", "--from", c.file("v1"), "--layout", c.file("dst.json")}, c.flags...)...)
	if code != exitDigest || !strings.Contains(stderr, "receiver 0 has the root") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
}

// A checkpoint is pushed by the command itself, from two processes that serve two ranks each, into a shadow copy.
func TestWeightsPushFromCheckpoint(t *testing.T) {
	c := newCluster(t, "fsdp=4", "tp=2")
	c.control(0)
	for r := range c.ranks {
		c.rank(r, "--shadow")
	}
	for v := 1; v <= 2; v++ {
		args := []string{"--from", c.file("v{version}"), "--layout", c.file("src.json"), "--verify", "all", "--ranks"}
		others := make(chan string, 1)
		go func() {
			cmd, _ := command(t, append(append([]string{"weights", "push", "--version", fmt.Sprint(v), "--quiet"}, c.flags...), append(args, "2-3")...)...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				others <- fmt.Sprintf("%v: %s", err, out)
			}
			close(others)
		}()
		c.mustPush(v, append(args, "0-1")...)
		if text := <-others; text != "" {
			t.Fatal(text)
		}
		c.verify(v, "--all")
	}
	// A shadow copy still has the version before.
	if r := decodeJSON(t, c.mustRun(append([]string{"rollback", "--json", "-"}, c.flags...)...)); number(t, r, "version") != 1 {
		t.Errorf("rollback %v", r)
	}
	c.verify(1, "--all")
}

// An inference rank is killed: its instance is out, and the other one takes the next version.
func TestWeightsRankKilled(t *testing.T) {
	startsMany(t)
	c := newCluster(t, "fsdp=2", "inst=2,tp=2")
	c.start(6)
	c.mustPush(1)
	c.members["rank-3"].kill()
	c.mustPush(2)
	c.awaitVersion("rank-0", 2)
	c.verify(2)
}
