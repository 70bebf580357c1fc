package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// adminCall is what a client asks: a line of JSON. The answer is lines, the last of which is adminEnd.
type adminCall struct {
	Op      string  `json:"op"` // ps, drain or cancel
	Request string  `json:"request,omitempty"`
	WaitS   float64 `json:"wait_s,omitempty"` // drain: 0: it is only begun
}

// adminEnd is the last line of an answer.
type adminEnd struct {
	OK    bool   `json:"ok,omitempty"`
	N     int    `json:"n,omitempty"` // cancel: requests
	Error string `json:"error,omitempty"`
}

// adminDir is where the sockets of this user's processes are.
func adminDir() (string, error) {
	dir := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "hawser")
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		dir = filepath.Join(os.TempDir(), fmt.Sprintf("hawser-%d", os.Getuid()))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("--admin: %w", err)
	}
	info, err := os.Lstat(dir) // another user may have made it, to see what we do
	if err != nil {
		return "", fmt.Errorf("--admin: %w", err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !info.IsDir() || !ok || int(st.Uid) != os.Getuid() {
		return "", fmt.Errorf("--admin: %s is not a folder of this user: remove it, or set XDG_RUNTIME_DIR or --admin", dir)
	}
	return dir, nil
}

func adminPath(dir string, pid int) string { return filepath.Join(dir, fmt.Sprintf("kv-%d.sock", pid)) }

// adminSockets are those of all processes of this user. What killed processes have left is removed.
func adminSockets() ([]string, error) {
	dir, err := adminDir()
	if err != nil {
		return nil, err
	}
	all, err := filepath.Glob(filepath.Join(dir, "kv-*.sock"))
	if err != nil {
		return nil, err
	}
	var live []string
	for _, path := range all {
		pid, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(filepath.Base(path), "kv-"), ".sock"))
		if err == nil && gone(pid) {
			_ = os.Remove(path)
			continue
		}
		live = append(live, path)
	}
	return live, nil
}

// gone reports whether a process has ended; its parent need not have noticed.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, state, _ := strings.Cut(string(stat), ") ") // after the name, which may hold anything
	return strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// admin answers on a unix socket. Owned by the command, which calls close; one goroutine per client ends before that returns.
type admin struct {
	t      target
	l      *net.UnixListener
	ctx    context.Context // of the calls
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// startAdmin listens at path, or where "hawser kv ps" looks.
func startAdmin(path string, t target) (*admin, error) {
	if path == "" {
		if _, err := adminSockets(); err != nil { // removes what is stale
			return nil, err
		}
		dir, err := adminDir()
		if err != nil {
			return nil, err
		}
		path = adminPath(dir, os.Getpid())
		_ = os.Remove(path) // of a process that was killed and had the id that is ours now; else there is none
	}
	old := syscall.Umask(0o177) // the socket is made with mode 0600: there is no time at which others can connect
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	syscall.Umask(old)
	if err != nil {
		return nil, usage("--admin: %w", err)
	}
	a := &admin{t: t, l: l}
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.wg.Go(a.accept)
	return a, nil
}

func (a *admin) accept() {
	for {
		c, err := a.l.AcceptUnix()
		if err != nil {
			return // closing
		}
		a.wg.Go(func() {
			defer c.Close()
			defer context.AfterFunc(a.ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
			a.serve(c)
		})
	}
}

func (a *admin) close() error {
	a.cancel()
	err := a.l.Close() // removes the file, too
	a.wg.Wait()
	return err
}

// maxCall bounds a line of a client, bytes.
const maxCall = 64 << 10

func (a *admin) serve(c *net.UnixConn) {
	out := json.NewEncoder(c)
	if err := sameUser(c); err != nil {
		_ = out.Encode(adminEnd{Error: err.Error()})
		return
	}
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, maxCall)
	for lines.Scan() {
		var call adminCall
		end := adminEnd{OK: true}
		if err := json.Unmarshal(lines.Bytes(), &call); err != nil {
			end = adminEnd{Error: fmt.Sprintf("line is no call: %v", err)}
		} else if end.N, err = a.call(call, out); err != nil {
			end = adminEnd{Error: err.Error()}
		}
		if out.Encode(end) != nil {
			return
		}
	}
}

func (a *admin) call(call adminCall, out *json.Encoder) (n int, err error) {
	switch call.Op {
	case "ps":
		if err := out.Encode(a.t.process()); err != nil {
			return 0, err
		}
		var rows []attemptRow
		a.t.attempts(func(r attemptRow) { rows = append(rows, r) }) // with a lock held
		for _, r := range rows {
			if err := out.Encode(r); err != nil {
				return 0, err
			}
		}
		return 0, nil
	case "drain":
		ctx, cancel := context.WithTimeout(a.ctx, time.Duration(call.WaitS*float64(time.Second)))
		defer cancel()
		if err := a.t.drain(ctx); err != nil && call.WaitS > 0 {
			return 0, err
		}
		return 0, nil
	case "cancel":
		if n = a.t.cancel(call.Request); n == 0 {
			return 0, fmt.Errorf("no request %q runs here", call.Request)
		}
		return n, nil
	}
	return 0, fmt.Errorf("op is %q, want ps, drain or cancel", call.Op)
}

// sameUser refuses other users, but for root.
func sameUser(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) { cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if failed != nil {
		return failed
	}
	if int(cred.Uid) != os.Getuid() && cred.Uid != 0 {
		return fmt.Errorf("user %d may not ask a process of user %d", cred.Uid, os.Getuid())
	}
	return nil
}

// serveOthers starts what others look at: the admin socket, and the metrics if they are wanted.
func serveOthers(f *serverFlags, t target) (down func() error, err error) {
	a, err := startAdmin(f.Admin, t)
	if err != nil {
		return nil, err
	}
	if f.Metrics == "" {
		return a.close, nil
	}
	stop, err := serveMetrics(f.Metrics, t)
	if err != nil {
		return nil, errors.Join(err, a.close())
	}
	return func() error { return errors.Join(stop(), a.close()) }, nil
}
