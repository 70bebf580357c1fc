package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/sys/unix"
)

// ui is where a command's output goes. Owned by the goroutine that runs the command.
type ui struct {
	out    io.Writer // for people
	status *status
	json   io.Writer // nil without --json
	file   *os.File  // to close, nil for standard output
	lost   error     // the first failure to write to out
}

// newUI opens the JSON file before the work begins, so that a wrong path costs nothing.
func newUI(target string, stdout, stderr *os.File) (*ui, error) {
	u := &ui{out: stdout, status: newStatus(stderr)}
	switch target {
	case "":
	case "-":
		u.out, u.json = stderr, stdout
	default:
		f, err := os.Create(target)
		if err != nil {
			return nil, usage("--json: %w", err)
		}
		u.json, u.file = f, f
	}
	return u, nil
}

// close says whether all output arrived.
func (u *ui) close() error {
	u.status.clear()
	if u.file == nil {
		return u.lost
	}
	return errors.Join(u.lost, u.file.Close())
}

func (u *ui) printf(format string, args ...any) {
	u.status.clear()
	if _, err := fmt.Fprintf(u.out, format, args...); err != nil && u.lost == nil {
		u.lost = fmt.Errorf("output: %w", err)
	}
}

// result writes the JSON form of a result, if it is wanted.
func (u *ui) result(v any) error {
	if u.json == nil {
		return nil
	}
	e := json.NewEncoder(u.json)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}

// line writes v as one line of JSON, for output that a program reads while the command runs.
func (u *ui) line(v any) error {
	if u.json == nil {
		return nil
	}
	if err := json.NewEncoder(u.json).Encode(v); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	return nil
}

// table prints rows under a header, unless all of its cells are empty; columns that hold numbers only are set to the right.
func (u *ui) table(title string, header []string, rows [][]string) {
	t := table.NewWriter()
	t.SetStyle(table.StyleLight)
	t.Style().Format.Header = text.FormatDefault
	t.Style().Title.Format = text.FormatDefault
	t.Style().Options.SeparateRows = false
	if title != "" {
		t.SetTitle("%s", title)
	}
	head := make(table.Row, len(header))
	var columns []table.ColumnConfig
	for i, h := range header {
		head[i] = h
		if i > 0 && numeric(rows, i) {
			columns = append(columns, table.ColumnConfig{Number: i + 1, Align: text.AlignRight, AlignHeader: text.AlignRight})
		}
	}
	if strings.Join(header, "") != "" {
		t.AppendHeader(head)
	}
	t.SetColumnConfigs(columns)
	for _, r := range rows {
		row := make(table.Row, len(r))
		for i, cell := range r {
			row[i] = cell
		}
		t.AppendRow(row)
	}
	u.printf("%s\n", t.Render())
}

func numeric(rows [][]string, column int) bool {
	for _, r := range rows {
		if column < len(r) && r[column] != "" && !strings.ContainsAny(r[column][:1], "0123456789-+.") {
			return false
		}
	}
	return true
}

// statusGap is how often progress is told where it cannot be overwritten.
const statusGap = 5 * time.Second

// status is the progress of long work: one line that is overwritten on a terminal, a line every statusGap elsewhere, if there is
// progress.
type status struct {
	f      *os.File
	tty    bool
	hushed bool      // nobody wants to see it
	shown  bool      // a line stands on the terminal
	last   string    // line elsewhere
	next   time.Time // of the next one
	phase  string
}

func newStatus(f *os.File) *status {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return &status{f: f, tty: err == nil, next: time.Now().Add(statusGap)}
}

func (s *status) show(format string, args ...any) {
	if s.hushed {
		return
	}
	line := fmt.Sprintf(format, args...)
	if s.tty {
		// A line that wraps could not be overwritten.
		if size, err := unix.IoctlGetWinsize(int(s.f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 1 {
			line = line[:min(len(line), int(size.Col)-1)]
		}
		fmt.Fprintf(s.f, "\r\x1b[K%s", line)
		s.shown = true
		return
	}
	if now := time.Now(); now.After(s.next) && line != s.last {
		fmt.Fprintln(s.f, line)
		s.last, s.next = line, now.Add(statusGap)
	}
}

// step is show of work that has phases: elsewhere than on a terminal the first line of each is shown at once.
func (s *status) step(phase, format string, args ...any) {
	if phase != s.phase {
		s.phase, s.next = phase, time.Time{}
	}
	s.show(format, args...)
}

func (s *status) clear() {
	if s.shown {
		fmt.Fprint(s.f, "\r\x1b[K")
		s.shown = false
	}
}
