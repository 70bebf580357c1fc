package weights

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/weights/stage"
)

// childEnv makes the test binary a member of a world: it holds a childSpec.
const childEnv = "HAWSER_TEST_WEIGHTS_MEMBER"

// childSpec says which member of which world a process is.
type childSpec struct {
	Dir        string // of the files that the world's processes share
	Controller string
	Rank       int
	Model      childToy
	Shadow     bool
	Hold       Version // receivers: Flip of this version waits for a word
	Publisher  bool
}

// childToy is a toy in JSON.
type childToy struct {
	Layers, Trainers, Ranks, Instances int
	Rows, Cols                         int64
}

func (m childToy) toy() toy {
	return toy{layers: m.Layers, rows: m.Rows, cols: m.Cols, trainers: m.Trainers, ranks: m.Ranks, instances: m.Instances}.withDefaults()
}

func TestMain(m *testing.M) {
	text := os.Getenv(childEnv)
	if text == "" {
		os.Exit(m.Run())
	}
	var s childSpec
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		panic(err)
	}
	t := &childTB{}
	if s.Publisher {
		s.publish(t)
	} else {
		s.receive(t)
	}
	t.end()
}

// childTB is what a world needs of a testing.TB in a process that is no test.
type childTB struct {
	testing.TB // nil: nothing else is called
	cleanups   []func()
}

func (t *childTB) Helper()                  {}
func (t *childTB) Context() context.Context { return context.Background() }
func (t *childTB) Cleanup(f func())         { t.cleanups = append(t.cleanups, f) }
func (t *childTB) Error(args ...any)        { t.Fatal(args...) }
func (t *childTB) Fatal(args ...any) {
	fmt.Fprintln(os.Stderr, append([]any{"member:"}, args...)...)
	os.Exit(1)
}

func (t *childTB) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// receive is an inference rank, until the standard input ends. Its memory are files, so that another process sees what the rank would compute with.
func (s childSpec) receive(t testing.TB) {
	eng := openEngine(t, hawser.Options{Name: fmt.Sprint("rank-", s.Rank), Require: "shm"})
	w := &world{TB: t, model: s.Model.toy(), dst: s.Model.toy().destination()}
	engine := s.engine(instanceOf(w.dst, s.Rank))
	words := make(chan string, 10)
	o := ReceiverOptions{Controller: s.Controller, Rank: s.Rank, Layout: w.dst, Limits: Limits{Pause: 2 * time.Second}, Log: testLog().With("who", fmt.Sprint("receiver ", s.Rank))}
	o.Regions = mapCopy(t, eng, copyFile(s.Dir, s.Rank, 0), w.dst.Buffers[s.Rank][0])
	if s.Shadow {
		o.Shadow = mapCopy(t, eng, copyFile(s.Dir, s.Rank, 1), w.dst.Buffers[s.Rank][0])
	}
	var r *Receiver
	o.Hooks = Hooks{
		Pause:  func(context.Context, Version) error { return engine.set("paused") },
		Resume: func(context.Context, Version) error { return engine.set("running") },
		Flip: func(_ context.Context, v Version) error {
			if v == s.Hold {
				fmt.Println("flipping")
				<-words
			}
			active := 0
			if s.Shadow && &r.Active()[0].Bytes()[0] == &o.Shadow[0].Bytes()[0] {
				active = 1
			}
			return os.WriteFile(activeFile(s.Dir, s.Rank), []byte{byte('0' + active)}, 0o600)
		},
	}
	var err error
	if r, err = NewReceiver(eng, o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOf(t, r.Close) })
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		words <- in.Text()
	}
}

func copyFile(dir string, rank, n int) string {
	return filepath.Join(dir, fmt.Sprintf("memory-%d-%d", rank, n))
}

func activeFile(dir string, rank int) string { return filepath.Join(dir, fmt.Sprint("active-", rank)) }

// mapCopy registers a file as memory. The process keeps the mapping until its end.
func mapCopy(t testing.TB, eng *hawser.Engine, name string, n int64) []*hawser.Region {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(n); err != nil {
		t.Fatal(err)
	}
	b, err := syscall.Mmap(int(f.Fd()), 0, int(n), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	r, err := eng.Register(b, hawser.RegisterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return []*hawser.Region{r}
}

func (s childSpec) engine(instance int) engineFile {
	return engineFile{filepath.Join(s.Dir, fmt.Sprint("engine-", instance))}
}

// engineFile says whether the engine of an instance runs. It is locked while that changes, and while somebody reads weights because it does; it stays as it
// was when the process that paused the engine is killed.
type engineFile struct{ name string }

func (e engineFile) locked(how int, f func(*os.File) error) error {
	file, err := os.OpenFile(e.name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer file.Close() // which unlocks it
	for {
		err := syscall.Flock(int(file.Fd()), how)
		if err == nil {
			return f(file)
		}
		if err != syscall.EINTR {
			return err
		}
	}
}

func (e engineFile) set(state string) error {
	return e.locked(syscall.LOCK_EX, func(*os.File) error { return os.WriteFile(e.name, []byte(state), 0o600) })
}

// reads calls f if the engine runs, and does not let it pause meanwhile.
func (e engineFile) reads(f func()) error {
	return e.locked(syscall.LOCK_SH, func(*os.File) error {
		state, err := os.ReadFile(e.name)
		if err == nil && string(state) == "running" {
			f()
		}
		return err
	})
}

// publish is a trainer that has everything, and pushes versions that it is told to: all bytes are the number of the version.
func (s childSpec) publish(t testing.TB) {
	eng := openEngine(t, hawser.Options{Name: "trainer", Require: "shm"})
	l := s.Model.toy().source()
	memory := alloc(t, eng, l.Buffers[s.Rank]...)
	p, err := NewPublisher(eng, PublisherOptions{Controller: s.Controller, Rank: s.Rank, Layout: l, Regions: memory, Verify: stage.Off})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeOf(t, p.Close) })
	fmt.Println("ready")
	for words := bufio.NewScanner(os.Stdin); words.Scan(); {
		v, err := strconv.Atoi(words.Text())
		if err != nil {
			t.Fatal(err)
		}
		for i := range memory[0].Bytes() {
			memory[0].Bytes()[i] = byte(v)
		}
		if _, err := p.Push(context.Background(), Version(v), nil); err != nil {
			fmt.Println("failed")
		} else {
			fmt.Println("pushed")
		}
	}
}

// child is a member in a process of its own.
type child struct {
	t     testing.TB
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string // closed at its end
	once  sync.Once
}

func startChild(t testing.TB, s childSpec) *child {
	t.Helper()
	text, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{t: t, cmd: exec.Command(os.Args[0]), lines: make(chan string, 100)}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	c.cmd.Stderr = os.Stderr
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(c.lines)
		for in := bufio.NewScanner(out); in.Scan(); {
			c.lines <- in.Text()
		}
	}()
	t.Cleanup(c.kill)
	c.await("ready")
	return c
}

// await waits for a line.
func (c *child) await(want string) {
	c.t.Helper()
	select {
	case line, ok := <-c.lines:
		if !ok || line != want {
			c.t.Fatalf("member says %q, want %q", line, want)
		}
	case <-time.After(hang):
		c.t.Fatalf("member does not say %q", want)
	}
}

func (c *child) say(word string) {
	if _, err := io.WriteString(c.stdin, word+"\n"); err != nil {
		c.t.Error(err)
	}
}

func (c *child) signal(s syscall.Signal) {
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Error(err)
	}
}

// kill ends the process; it may have ended before.
func (c *child) kill() {
	c.once.Do(func() {
		_ = c.stdin.Close()
		_ = c.cmd.Process.Kill()
		for range c.lines { // Wait closes the pipe that they come from
		}
		_ = c.cmd.Wait()
	})
}
