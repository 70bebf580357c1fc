package main

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// hang bounds every wait of a test.
const hang = time.Minute

// fakeSession is a session whose VMs are goroutines that run jobs on this machine.
func fakeSession(t *testing.T, vms int) (s *session, guests []net.Conn) {
	t.Helper()
	jobsFolder = t.TempDir()
	s = &session{}
	var err error
	if s.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: fmt.Sprintf("@hawser-vm-test-%d-%s", os.Getpid(), t.Name()), Net: "unix"}); err != nil {
		t.Fatal(err)
	}
	for rank := range vms {
		ours, theirs := net.Pipe()
		m := &machine{rank: rank, port: ours, in: bufio.NewReader(ours), out: &frames{w: ours}, console: &tail{}, ready: make(chan struct{})}
		s.machines = append(s.machines, m)
		guests = append(guests, theirs)
		go m.boot()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = serveJobs(theirs, &frames{w: theirs}, hello{Env: []string{fmt.Sprintf("HAWSER_VM_RANK=%d", rank)}}) // it ends with its port
		}()
		t.Cleanup(func() {
			ours.Close()
			<-ended // and the programs with it
		})
	}
	s.clients.Go(s.accept)
	t.Cleanup(func() { s.listener.Close() })
	return s, guests
}

func (s *session) ask(t *testing.T, j job, program string) (o outcome, stdout, stderr string) {
	t.Helper()
	var a, b bytes.Buffer
	j.Size = int64(len(program))
	o, err := request(s.listener.Addr().String(), j, []byte(program), &a, &b)
	if err != nil {
		t.Fatal(err)
	}
	return o, a.String(), b.String()
}

func TestProgramHasItsOutputsFolderEnvironmentAndStatus(t *testing.T) {
	s, _ := fakeSession(t, 2)
	for rank := range 2 {
		j := job{VM: rank, Args: []string{"sh", "-c", `pwd; echo $HAWSER_VM_RANK $HAWSER_X >&2; exit 5`}, Env: []string{"HAWSER_X=x"}, Dir: "/usr"}
		o, out, err := s.ask(t, j, "")
		if o.Code != 5 || out != "/usr\n" || err != fmt.Sprintf("%d x\n", rank) {
			t.Errorf("VM %d: %+v, %q, %q", rank, o, out, err)
		}
	}
	if o, _, _ := s.ask(t, job{VM: 2, Args: []string{"true"}}, ""); o.Code != exitBroken {
		t.Errorf("a job for a VM that is not there: %+v", o)
	}
	if o, _, _ := s.ask(t, job{Args: []string{"no such program"}}, ""); o.Code != exitBroken || !strings.Contains(o.Err, "no such program") {
		t.Errorf("a program that is not there: %+v", o)
	}
}

func TestProgramOfThisMachineGoesAlong(t *testing.T) {
	s, _ := fakeSession(t, 1)
	long := "#!/bin/sh\necho $1; exit 0\n" + strings.Repeat("# long\n", 100_000)
	for range 2 { // the second finds nothing of the first
		o, out, _ := s.ask(t, job{Args: []string{"prog", "word"}}, long)
		if o.Code != 0 || out != "word\n" {
			t.Fatalf("%+v, %q", o, out)
		}
	}
	if left, _ := os.ReadDir(jobsFolder); len(left) != 0 {
		t.Errorf("programs were left behind: %v", left)
	}
}

// Everything that a program prints arrives as it is: go test -json depends on it.
func TestOutputIsNotChanged(t *testing.T) {
	s, _ := fakeSession(t, 1)
	o, out, _ := s.ask(t, job{Args: []string{"sh", "-c", `printf '\026=== RUN\r\n'; head -c 300000 /dev/zero`}}, "")
	if want := "\x16=== RUN\r\n" + strings.Repeat("\x00", 300_000); o.Code != 0 || out != want {
		t.Fatalf("%+v, %d bytes, %.20q", o, len(out), out)
	}
}

// A client that goes takes its program and the children of it along, and nothing of the next one.
func TestProgramEndsWithItsClient(t *testing.T) {
	s, _ := fakeSession(t, 1)
	mark := t.TempDir() + "/started"
	c, err := net.Dial("unix", s.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	to := &frames{w: c}
	if err := to.sendJSON(frameRun, job{Args: []string{"sh", "-c", "echo > " + mark + "; sleep 1000 & sleep 1000"}}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(hang); ; {
		if _, err := os.Stat(mark); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the program did not start")
		}
	}
	c.Close()
	if o, out, _ := s.ask(t, job{Args: []string{"sh", "-c", "sleep 0.1; echo next"}}, ""); o.Code != 0 || out != "next\n" {
		t.Fatalf("the next program: %+v, %q", o, out)
	}
}

// A program that was stopped by a signal has the status that a shell gives.
func TestSignalIsAStatus(t *testing.T) {
	s, _ := fakeSession(t, 1)
	if o, _, _ := s.ask(t, job{Args: []string{"sh", "-c", "kill -9 $$"}}, ""); o.Code != 128+9 {
		t.Errorf("%+v", o)
	}
}

func TestDeadVMIsToldWithItsConsole(t *testing.T) {
	s, guests := fakeSession(t, 2)
	if _, out, _ := s.ask(t, job{Args: []string{"echo", "fine"}}, ""); out != "fine\n" {
		t.Fatalf("%q", out)
	}
	fmt.Fprint(s.machines[0].console, "kernel panic\r\n")
	time.AfterFunc(time.Millisecond, func() { guests[0].Close() })
	for range 2 {
		o, _, _ := s.ask(t, job{Args: []string{"sleep", "1000"}}, "")
		if o.Code != exitDied && o.Code != exitBroken || !strings.Contains(o.Err, "kernel panic\n") {
			t.Errorf("%+v", o)
		}
	}
	if o, _, _ := s.ask(t, job{VM: 1, Args: []string{"true"}}, ""); o.Code != 0 {
		t.Errorf("the other VM: %+v", o)
	}
}

// A VM that lost its power by a test's wish is no failure of the program that ran in it; there is none after it.
func TestLostPowerIsNoFailure(t *testing.T) {
	s, guests := fakeSession(t, 1)
	<-s.machines[0].ready
	time.AfterFunc(time.Millisecond, func() {
		_ = (&frames{w: guests[0]}).send(framePower, nil)
		guests[0].Close()
	})
	if o, _, _ := s.ask(t, job{Args: []string{"sleep", "1000"}}, ""); o.Code != 0 || o.Err != "" {
		t.Errorf("%+v", o)
	}
	if o, _, _ := s.ask(t, job{Args: []string{"true"}}, ""); o.Code != exitBroken || !strings.Contains(o.Err, "power") {
		t.Errorf("the next program: %+v", o)
	}
}

// What is said about one client, that it has gone, is not said to the next one's program.
func TestProgramsOfManyClientsTakeTurns(t *testing.T) {
	s, _ := fakeSession(t, 1)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 20 {
				var out bytes.Buffer
				o, err := request(s.listener.Addr().String(), job{Args: []string{"echo", "mine"}}, nil, &out, &out)
				if err != nil || o.Code != 0 || out.String() != "mine\n" {
					t.Errorf("%+v, %v, %q", o, err, out.String())
				}
			}
		})
	}
	all.Wait()
}

// Children that a program leaves behind end with it.
func TestProgramLeavesNoChildren(t *testing.T) {
	s, _ := fakeSession(t, 1)
	o, out, _ := s.ask(t, job{Args: []string{"sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"}}, "")
	var pid int
	if _, err := fmt.Sscan(out, &pid); err != nil || o.Code != 0 {
		t.Fatalf("%+v, %q: %v", o, out, err)
	}
	for end := time.Now().Add(hang); ; {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil || strings.Contains(string(stat), ") Z ") { // gone, or waiting for somebody to ask
			return
		}
		if time.Now().After(end) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the child is alive")
		}
	}
}
