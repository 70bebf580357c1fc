package reshard

import (
	"errors"
	"fmt"
	"strings"
)

// Errors that a caller may branch on; test with errors.Is.
var (
	ErrLayout    = errors.New("layout")                 // a layout, a rule or a pair of them that makes no sense
	ErrCoverage  = errors.New("coverage")               // destination bytes that no source rank holds, or that are covered twice
	ErrNoReplica = errors.New("no replica left")        // Repair: what a lost rank held is held by nobody else
	ErrLimit     = errors.New("limit")                  // more regions, dimensions or pieces than Options allow
	ErrFormat    = errors.New("not a plan or no slice") // ReadPlan, ParseSlice: bytes that WriteTo or Append did not make
)

// maxOffenders is how many places an error names; the rest is counted.
const maxOffenders = 20

// Fault is an error with a list: what is wrong, in the order of the layouts. It names at most 20 places and counts all.
type Fault struct {
	Kind  error    // one of the errors above
	What  string   // "plan" or "layout": what was looked at
	Lines []string // at most 20
	Total int
	Bytes int64 // coverage: of all places
}

func (f *Fault) Error() string {
	var b strings.Builder
	for i, l := range f.Lines {
		if i > 0 {
			b.WriteString("\n")
		}
		b.WriteString(f.What + ": " + l)
	}
	if f.Total > len(f.Lines) {
		fmt.Fprintf(&b, "\n%s: and %d more of the kind (%d in all)", f.What, f.Total-len(f.Lines), f.Total)
	}
	return b.String()
}

// Unwrap is Kind.
func (f *Fault) Unwrap() error { return f.Kind }

// add notes one place. The text is only made if it will be shown.
func (f *Fault) add(format string, args ...any) {
	f.Total++
	if len(f.Lines) < maxOffenders {
		f.Lines = append(f.Lines, fmt.Sprintf(format, args...))
	}
}

// err is nil if nothing was added.
func (f *Fault) err() error {
	if f.Total == 0 {
		return nil
	}
	return f
}

func layoutFault(format string, args ...any) error {
	f := &Fault{Kind: ErrLayout, What: "layout"}
	f.add(format, args...)
	return f
}

func planFault(kind error, format string, args ...any) error {
	f := &Fault{Kind: kind, What: "plan"}
	f.add(format, args...)
	return f
}
