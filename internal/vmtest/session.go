package main

import (
	"bufio"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit statuses of our own; all others are the program's.
const (
	exitMissing = 3
	exitBroken  = 97 // no image, no boot
	exitDied    = 98
	exitLate    = 124 // as of timeout(1)
)

// sessionEnv has the name of the socket of the session around a command.
const sessionEnv = "HAWSER_VM"

// session owns the VMs, and the socket through which clients use them.
type session struct {
	machines []*machine
	listener *net.UnixListener
	clients  sync.WaitGroup
}

// openSession starts the VMs; they boot meanwhile. See start about the thread.
func openSession(l layout) (*session, error) {
	im, err := openImage()
	if err != nil {
		return nil, err
	}
	initrd, err := memoryFile(im)
	if err != nil {
		return nil, err
	}
	defer initrd.Close()
	cables := make([][]*os.File, l.vms)
	defer func() {
		for _, ends := range cables {
			for _, f := range ends {
				f.Close()
			}
		}
	}()
	for range l.links {
		a, b, err := socketPair("cable", unix.SOCK_DGRAM)
		if err != nil {
			return nil, err
		}
		cables[0], cables[1] = append(cables[0], a), append(cables[1], b)
	}
	s := &session{}
	name := "@hawser-vm-" + rand.Text()
	if s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"}); err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	for rank := range l.vms {
		m, err := start(im, l, rank, initrd, cables[rank])
		if err != nil {
			s.close()
			return nil, err
		}
		s.machines = append(s.machines, m)
		go m.boot() // ends with the port
	}
	s.clients.Go(s.accept)
	return s, nil
}

func (s *session) close() {
	s.listener.Close()
	for _, m := range s.machines {
		m.stop()
	}
	s.clients.Wait()
}

// accept serves clients of our user until the listener is closed.
func (s *session) accept() {
	for {
		c, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		s.clients.Go(func() {
			defer c.Close()
			out := &frames{w: c}
			if !sameUser(c) {
				return
			}
			o := s.serve(bufio.NewReader(c), out)
			_ = out.sendJSON(frameExit, o) // a client that has gone needs no answer
		})
	}
}

func sameUser(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	same := false
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		same = err == nil && int(cred.Uid) == os.Geteuid()
	})
	return err == nil && same
}

// serve runs one program for a client.
func (s *session) serve(in *bufio.Reader, out *frames) outcome {
	k, body, err := readFrame(in)
	var j job
	if err == nil {
		err = decode(body, &j)
	}
	if err != nil || k != frameRun || j.VM < 0 || j.VM >= len(s.machines) {
		return outcome{Code: exitBroken, Err: fmt.Sprintf("no job for one of %d VMs: %.200s", len(s.machines), body)}
	}
	m := s.machines[j.VM]
	m.job.Lock()
	defer m.job.Unlock()
	select {
	case <-m.ready:
	case <-time.After(bootTime):
		_ = m.cmd.Process.Kill() // what remains of the boot ends with it
		<-m.ready
		m.dead = fmt.Errorf("VM %d did not boot within %v", m.rank, bootTime)
	}
	if m.dead != nil {
		return outcome{Code: exitBroken, Err: m.obituary(m.dead)}
	}
	o, err := m.run(body, in, out)
	if err == nil {
		return o
	}
	if m.dead = err; m.powered {
		m.dead = fmt.Errorf("VM %d %w", m.rank, errPower)
		_ = out.send(frameNote, fmt.Append(nil, m.dead)) // as above
		return outcome{}
	}
	return outcome{Code: exitDied, Err: m.obituary(err)}
}

// bootTime bounds a boot: it takes 15 seconds on an idle machine.
const bootTime = 3 * time.Minute

func (m *machine) obituary(err error) string {
	return fmt.Sprintf("%v; the end of its console:\n%s", err, m.console)
}

// run hands a job to the VM and what the two say to each other on, until the program has ended. An error is the end of the VM.
func (m *machine) run(j []byte, in *bufio.Reader, out *frames) (outcome, error) {
	if err := m.out.send(frameRun, j); err != nil {
		return outcome{}, fmt.Errorf("VM %d: %w", m.rank, err)
	}
	var (
		mu   sync.Mutex
		over bool // the job has ended: what its client says now is not for the next one
	)
	defer func() {
		mu.Lock()
		over = true
		mu.Unlock()
	}()
	go func() { // ends with the client, which ends after the answer
		for {
			k, body, err := readFrame(in)
			if err != nil {
				k, body = frameSignal, []byte{0}
			}
			mu.Lock()
			if !over {
				_ = m.out.send(k, body) // whoever reads from the VM sees its end
			}
			mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	for {
		k, body, err := readFrame(m.in)
		if err != nil {
			return outcome{}, fmt.Errorf("VM %d died: %w", m.rank, err)
		}
		switch k {
		case frameExit:
			var o outcome
			return o, decode(body, &o)
		case framePower:
			m.powered = true
		default:
			_ = out.send(k, body) // the end of the client is seen above
		}
	}
}

func decode(body []byte, v any) error {
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("decode %.100q: %w", body, err)
	}
	return nil
}

// up boots, runs a command of this machine beside the VMs, and ends them. It returns the exit status.
func up(l layout, limit time.Duration, args []string) int {
	runtime.LockOSThread() // for start; the main goroutine's thread lives as long as the process
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	late := time.After(limit)
	s, err := openSession(l)
	if err != nil {
		say("%v", err)
		return exitBroken
	}
	defer s.close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), sessionEnv+"="+s.listener.Addr().String())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		say("%v", err)
		return exitBroken
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return status(err)
	case sig := <-signals:
		say("%v", sig)
		s.abandon(cmd, ended)
		return 128 + int(sig.(syscall.Signal))
	case <-late:
		say("not done within %v", limit)
		for _, m := range s.machines {
			say("end of the console of VM %d:\n%s", m.rank, m.console)
		}
		s.abandon(cmd, ended)
		return exitLate
	}
}

// grace is how long a command may take to end after SIGTERM.
const grace = 5 * time.Second

// abandon ends the command. Its clients see the end of the VMs, or the signal.
func (s *session) abandon(cmd *exec.Cmd, ended chan error) {
	_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-ended:
	case <-time.After(grace):
		_ = cmd.Process.Kill() // as above
		<-ended
	}
}

func status(err error) int {
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Exited():
		return exit.ExitCode()
	case errors.As(err, &exit):
		return 128 + int(exit.Sys().(syscall.WaitStatus).Signal())
	}
	say("%v", err)
	return exitBroken
}
