package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// agentArg tells the child of process 1 what it is.
const agentArg = "agent"

// jobsFolder is where the programs of jobs lie while they run.
var jobsFolder = "/run/jobs"

const guestPath = "PATH=/usr/sbin:/usr/bin:/usr/local/bin"

// boot is process 1 of a VM. It prepares the kernel, then only reaps processes that nobody waits for; an agent, which is its
// child so that the two do not take each other's, does the rest. The VM ends with the agent.
func boot() {
	os.Setenv("PATH", strings.TrimPrefix(guestPath, "PATH="))
	power := make(chan os.Signal, 1)
	signal.Notify(power, syscall.SIGUSR1)
	err := prepare()
	if err != nil {
		fmt.Println("init:", err)
	}
	const console = 2
	attr := &syscall.ProcAttr{Env: append(os.Environ(), fmt.Sprintf("%s=%v", bootErrEnv, errText(err))), Files: []uintptr{0, 1, console}}
	pid, err := syscall.ForkExec(initName, []string{initName, agentArg}, attr)
	if err != nil {
		fmt.Println("init:", err)
		restart()
	}
	go func() {
		<-power
		_ = syscall.Kill(pid, syscall.SIGUSR1) // the agent tells the session, and calls restart
	}()
	for {
		got, err := syscall.Wait4(-1, nil, 0, nil)
		if got == pid || err != nil && !errors.Is(err, syscall.EINTR) {
			restart()
		}
	}
}

const bootErrEnv = "HAWSER_BOOT_ERROR"

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// restart ends the VM at once: nothing is synced, nothing is said to anybody. qemu ends in place of a restart.
func restart() {
	err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	fmt.Println("init: reboot:", err)
	select {}
}

// agent runs the jobs of the session, one after the other, until the port breaks.
func agent() {
	h := hello{Err: os.Getenv(bootErrEnv), Env: guestEnv()}
	os.Unsetenv(bootErrEnv)
	if text, err := os.ReadFile("/proc/uptime"); err == nil {
		fmt.Sscan(string(text), &h.Seconds)
	}
	port, err := openPort()
	if err == nil {
		out := &frames{w: port}
		power := make(chan os.Signal, 1)
		signal.Notify(power, syscall.SIGUSR1)
		go func() {
			<-power
			_ = out.send(framePower, nil) // nobody reads: then nobody cares
			restart()
		}()
		err = serveJobs(port, out, h)
	}
	fmt.Println("agent:", err)
}

// serveJobs greets the session and runs its jobs.
func serveJobs(in io.Reader, out *frames, h hello) error {
	if err := out.sendJSON(frameHello, h); err != nil {
		return err
	}
	a := &agentState{in: make(chan frame), broken: make(chan struct{}), out: out, env: h.Env}
	go a.read(in) // ends with the port, and the VM with it
	for n := 0; ; n++ {
		f, err := a.next()
		if err != nil {
			return err
		}
		if f.kind != frameRun {
			continue // a signal for a program that has ended
		}
		if err := a.job(n, f.body); err != nil {
			return err
		}
	}
}

// agentState is the agent's, but for in, which its reader fills.
type agentState struct {
	in     chan frame
	broken chan struct{} // closed when nothing comes any more; err is set before
	err    error
	out    *frames
	env    []string // for programs
}

func (a *agentState) read(port io.Reader) {
	in := bufio.NewReaderSize(port, 64<<10)
	for {
		k, body, err := readFrame(in)
		if err != nil {
			a.err = err
			close(a.broken)
			return
		}
		a.in <- frame{k, body}
	}
}

func (a *agentState) next() (frame, error) {
	select {
	case f := <-a.in:
		return f, nil
	case <-a.broken:
		return frame{}, a.err
	}
}

type frame struct {
	kind kind
	body []byte
}

func (a *agentState) job(n int, body []byte) error {
	var j job
	if err := decode(body, &j); err != nil {
		return err
	}
	if j.Size > 0 {
		name, err := a.receive(filepath.Join(jobsFolder, fmt.Sprint(n)), j)
		if err != nil {
			return err
		}
		j.Args[0] = name
	}
	o := a.run(j)
	if j.Size > 0 {
		if err := os.RemoveAll(filepath.Dir(j.Args[0])); err != nil { // memory: the next may need it
			return err
		}
	}
	return a.out.sendJSON(frameExit, o)
}

// openPort opens the port of the session. Its name is in sysfs: there is no udev.
func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, n := range names {
		text, err := os.ReadFile(n)
		if err != nil || strings.TrimSpace(string(text)) != portName {
			continue
		}
		// Without the runtime's poller: a read then waits in the kernel.
		fd, err := unix.Open("/dev/"+filepath.Base(filepath.Dir(n)), unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("port: %w", err)
		}
		return os.NewFile(uintptr(fd), "port"), nil
	}
	return nil, fmt.Errorf("port %s: none of %d ports", portName, len(names))
}

// receive stores the program of a job and returns its path.
func (a *agentState) receive(dir string, j job) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	name := filepath.Join(dir, filepath.Base(j.Args[0]))
	file, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return "", err
	}
	for got := int64(0); got < j.Size; {
		f, err := a.next()
		if err != nil {
			file.Close()
			return "", err
		}
		if f.kind != frameFile {
			file.Close()
			return "", fmt.Errorf("program of a job: frame %q after %d of %d bytes", f.kind, got, j.Size)
		}
		if _, err := file.Write(f.body); err != nil {
			file.Close()
			return "", err
		}
		got += int64(len(f.body))
	}
	return name, file.Close()
}

// outputTime is how long output is waited for when the program has ended and children of it have not.
const outputTime = 2 * time.Second

// run runs a program; frames that come meanwhile are signals for it.
func (a *agentState) run(j job) outcome {
	cmd := exec.Command(j.Args[0], j.Args[1:]...)
	cmd.Env = append(append([]string{guestPath, "HOME=/root", "TMPDIR=/tmp"}, a.env...), j.Env...)
	cmd.Dir = "/"
	if _, err := os.Stat(j.Dir); err == nil {
		cmd.Dir = j.Dir
	}
	cmd.Stdout, cmd.Stderr = a.out.as(frameOut), a.out.as(frameErr)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = outputTime
	if err := cmd.Start(); err != nil {
		return outcome{Code: exitBroken, Err: err.Error()}
	}
	group := -cmd.Process.Pid
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case f := <-a.in:
			if f.kind == frameSignal && len(f.body) == 1 {
				_ = syscall.Kill(group, signalOf(f.body[0])) // it may have ended
			}
		case <-a.broken:
			_ = syscall.Kill(group, syscall.SIGKILL) // as above
			return outcome{Code: exitDied, Err: errText(errors.Join(a.err, <-ended))}
		case err := <-ended:
			_ = syscall.Kill(group, syscall.SIGKILL) // what it left behind
			if errors.Is(err, exec.ErrWaitDelay) {
				return outcome{Err: "the program ended; children of it held its output for longer"}
			}
			return outcome{Code: status(err)}
		}
	}
}

// signalOf is the signal of a frame's byte.
func signalOf(b byte) syscall.Signal {
	if b == 0 {
		return syscall.SIGKILL // the client has gone
	}
	return syscall.Signal(b)
}
