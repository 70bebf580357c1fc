package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// variables of the environment that programs in the VM see start with one of these, unless they are of this machine only.
var (
	carried = []string{"HAWSER_", "GO"}
	kept    = []string{sessionEnv + "=", cacheEnv + "=", "HAWSER_TEST_COUNTS=", "GOPATH=", "GOROOT=", "GOCACHE=", "GOMODCACHE=", "GOFLAGS=", "GOENV="}
)

func environment(all []string) []string {
	var env []string
	has := func(v string, list []string) bool {
		for _, p := range list {
			if strings.HasPrefix(v, p) {
				return true
			}
		}
		return false
	}
	for _, v := range all {
		if has(v, carried) && !has(v, kept) {
			env = append(env, v)
		}
	}
	return env
}

// execute runs a program in one VM of a session, or in all of them at once, and returns the exit status. What the first says goes to
// our outputs as it comes; of the others, lines with their numbers go to standard error.
func execute(socket string, ranks []int, args []string) int {
	j := job{Args: args, Env: environment(os.Environ())}
	var err error
	if j.Dir, err = os.Getwd(); err != nil {
		say("%v", err)
		return exitBroken
	}
	var program []byte
	if strings.Contains(args[0], "/") {
		if program, err = os.ReadFile(args[0]); err != nil {
			say("%v", err)
			return exitBroken
		}
		j.Args = append([]string{filepath.Base(args[0])}, args[1:]...)
		j.Size = int64(len(program))
	}
	codes := make([]int, len(ranks))
	var all sync.WaitGroup
	for i, rank := range ranks {
		all.Go(func() {
			j := j
			j.VM = rank
			stdout, stderr := io.Writer(os.Stdout), io.Writer(os.Stderr)
			if i > 0 {
				lines := &prefixed{w: os.Stderr, prefix: fmt.Sprintf("[VM %d] ", rank)}
				defer lines.flush()
				stdout, stderr = lines, lines
			}
			o, err := request(socket, j, program, stdout, stderr)
			if err != nil {
				o = outcome{Code: exitBroken, Err: err.Error()}
			}
			if o.Err != "" {
				say("%s", o.Err)
			}
			codes[i] = o.Code
		})
	}
	all.Wait()
	for _, c := range codes {
		if c != 0 {
			return c
		}
	}
	return 0
}

// request runs one job in one VM.
func request(socket string, j job, program []byte, stdout, stderr io.Writer) (outcome, error) {
	c, err := net.Dial("unix", socket)
	if err != nil {
		return outcome{}, fmt.Errorf("session: %w", err)
	}
	defer c.Close()
	to, in := &frames{w: c}, bufio.NewReader(c)
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer func() {
		signal.Stop(signals)
		close(signals)
	}()
	go func() { // ends with the request
		for s := range signals {
			_ = to.send(frameSignal, []byte{byte(s.(syscall.Signal))}) // the end of the session is seen below
		}
	}()
	if err := to.sendJSON(frameRun, j); err != nil {
		return outcome{}, err
	}
	if _, err := to.as(frameFile).Write(program); err != nil {
		return outcome{}, err
	}
	for {
		k, body, err := readFrame(in)
		if err != nil {
			return outcome{}, fmt.Errorf("the session ended: %w", err)
		}
		switch k {
		case frameOut:
			_, err = stdout.Write(body)
		case frameErr:
			_, err = stderr.Write(body)
		case frameNote:
			say("%s", body)
		case frameExit:
			var o outcome
			return o, decode(body, &o)
		}
		if err != nil {
			return outcome{}, err
		}
	}
}

// alone runs a program in VMs of its own, through an "exec" within an "up".
func alone(l layout, args, flags []string) int {
	self, err := os.Executable()
	if err != nil {
		say("%v", err)
		return exitBroken
	}
	return up(l, aloneTime, append(append([]string{self, "exec"}, flags...), args...))
}

// moduleRoot is the folder above dir, or dir, that has a go.mod; dir if there is none.
func moduleRoot(dir string) string {
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d
		}
		if d == filepath.Dir(d) {
			return dir
		}
	}
}

// prefixed writes whole lines, each after a prefix, and without test2json's marks: they are not this machine's tests.
type prefixed struct {
	w      io.Writer
	prefix string
	rest   []byte
}

func (p *prefixed) Write(b []byte) (int, error) {
	p.rest = append(p.rest, bytes.ReplaceAll(b, []byte{0x16}, nil)...)
	for {
		i := bytes.IndexByte(p.rest, '\n')
		if i < 0 {
			return len(b), nil
		}
		if _, err := fmt.Fprintf(p.w, "%s%s\n", p.prefix, p.rest[:i]); err != nil {
			return 0, err
		}
		p.rest = p.rest[i+1:]
	}
}

func (p *prefixed) flush() {
	if len(p.rest) > 0 {
		_, _ = p.Write([]byte("\n")) // standard error is gone: nobody to tell
	}
}
