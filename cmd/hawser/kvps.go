package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// adminFlags say whom to ask.
type adminFlags struct {
	Admin string `placeholder:"PATH" help:"Socket of one process (default: those of all processes of this user)."`
}

// sockets are those to ask.
func (f *adminFlags) sockets() ([]string, error) {
	if f.Admin != "" {
		return []string{f.Admin}, nil
	}
	all, err := adminSockets()
	if err == nil && len(all) == 0 {
		err = errors.New("no prefiller or decoder of this user runs here: --admin names another socket")
	}
	return all, err
}

// ask sends one call and hands the lines of the answer but the last to f.
func ask(ctx context.Context, path string, call adminCall, f func(line []byte) error) (adminEnd, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return adminEnd{}, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	if err := json.NewEncoder(c).Encode(call); err != nil {
		return adminEnd{}, fmt.Errorf("%s: %w", path, err)
	}
	lines := bufio.NewScanner(c)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var end adminEnd
		if err := json.Unmarshal(lines.Bytes(), &end); err != nil {
			return adminEnd{}, fmt.Errorf("%s: %w", path, err)
		}
		switch {
		case end.Error != "":
			return end, fmt.Errorf("%s: %s", filepath.Base(path), end.Error)
		case end.OK:
			return end, nil
		}
		if err := f(lines.Bytes()); err != nil {
			return adminEnd{}, err
		}
	}
	return adminEnd{}, fmt.Errorf("%s: the answer ends early: %w", path, errors.Join(lines.Err(), context.Cause(ctx)))
}

type psCmd struct{ adminFlags }

// psResult is the JSON form of ps.
type psResult struct {
	Processes []processRow `json:"processes"`
	Attempts  []attemptRow `json:"attempts"`
}

// Run lists processes and their attempts.
func (c *psCmd) Run(ctx context.Context, u *ui) error {
	sockets, err := c.sockets()
	if err != nil {
		return err
	}
	var r psResult
	var faults []error
	for _, path := range sockets {
		faults = append(faults, r.add(ctx, path))
	}
	r.print(u)
	return errors.Join(u.result(r), errors.Join(faults...))
}

func (r *psResult) add(ctx context.Context, path string) error {
	name := ""
	_, err := ask(ctx, path, adminCall{Op: "ps"}, func(line []byte) error {
		if name == "" {
			var p processRow
			if err := json.Unmarshal(line, &p); err != nil {
				return err
			}
			name = p.Process
			r.Processes = append(r.Processes, p)
			return nil
		}
		a := attemptRow{Process: name}
		if err := json.Unmarshal(line, &a); err != nil {
			return err
		}
		r.Attempts = append(r.Attempts, a)
		return nil
	})
	return err
}

func (r *psResult) print(u *ui) {
	var rows [][]string
	for _, p := range r.Processes {
		rows = append(rows, []string{
			p.Process, strconv.Itoa(p.PID), p.Role, p.Health, strconv.Itoa(p.Links), strconv.Itoa(p.Live), strconv.Itoa(p.Waiting),
			strconv.Itoa(p.Pages.Free), strconv.Itoa(p.Pages.Cached), strconv.Itoa(p.Pages.Leased + p.Pages.Pinned), strconv.Itoa(p.Pages.Quarantined),
		})
	}
	u.table("", []string{"process", "pid", "role", "health", "links", "live", "waiting", "free", "cached", "held", "quarantined"}, rows)
	if len(r.Attempts) == 0 {
		return
	}
	rows = nil
	for _, a := range r.Attempts {
		writes := fmt.Sprintf("%d of %d", a.Landed, a.Expected)
		switch {
		case a.Seq == 0:
			writes = "waits for " + a.Waits
		case a.Expected == 0:
			writes = fmt.Sprintf("%d posted, %d under way, %d left", a.Posted, a.Outstanding, a.Left)
		}
		rows = append(rows, []string{a.Process, a.Request, strconv.FormatUint(a.Seq, 10), a.State, strconv.Itoa(a.Try), writes, strings.Join(a.Owes, ", ")})
	}
	u.table("", []string{"process", "request", "attempt", "state", "try", "writes", "owes"}, rows)
}

type drainCmd struct {
	adminFlags
	Wait time.Duration `default:"1m" placeholder:"DUR" help:"How long to wait for the end; 0: do not (default: ${default})."`
}

// Help is shown below the first line of the help.
func (drainCmd) Help() string {
	return "The process takes nothing new, finishes what it has, and ends. With several processes --admin must name one."
}

// Run drains one process.
func (c *drainCmd) Run(ctx context.Context, u *ui) error {
	if c.Wait < 0 {
		return usage("--wait: %v, want 0 or more", c.Wait)
	}
	sockets, err := c.sockets()
	if err != nil {
		return err
	}
	if len(sockets) > 1 {
		return fmt.Errorf("%d processes run here: --admin names one of %s", len(sockets), strings.Join(sockets, ", "))
	}
	end, err := ask(ctx, sockets[0], adminCall{Op: "drain", WaitS: c.Wait.Seconds()}, func([]byte) error { return nil })
	if err != nil {
		return err
	}
	if c.Wait > 0 {
		u.printf("drained\n")
	} else {
		u.printf("draining\n")
	}
	return u.result(end)
}

type cancelCmd struct {
	adminFlags
	ID string `arg:"" help:"Of the request, as hawser kv ps shows it."`
}

// Run cancels a request wherever it runs.
func (c *cancelCmd) Run(ctx context.Context, u *ui) error {
	sockets, err := c.sockets()
	if err != nil {
		return err
	}
	n := 0
	var faults []error
	for _, path := range sockets {
		end, err := ask(ctx, path, adminCall{Op: "cancel", Request: c.ID}, func([]byte) error { return nil })
		n += end.N
		faults = append(faults, err)
	}
	if n == 0 {
		return errors.Join(faults...)
	}
	u.printf("%d cancelled\n", n)
	return u.result(adminEnd{OK: true, N: n})
}
