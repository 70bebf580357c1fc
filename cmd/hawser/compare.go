package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/bench/compare"
)

type compareCmd struct {
	A    string  `arg:"" placeholder:"A.json" help:"Result of hawser bench --json: before."`
	B    string  `arg:"" placeholder:"B.json" help:"Result of hawser bench --json: after."`
	Fail float64 `placeholder:"PERCENT" help:"Fail when a ratio to the yardstick is worse by more than this, and by more than noise."`
}

// Run compares two results.
func (c *compareCmd) Run(u *ui) error {
	if c.Fail < 0 {
		return usage("--fail: %g, want 0 or more percent", c.Fail)
	}
	a, err := readReport(c.A)
	if err != nil {
		return err
	}
	b, err := readReport(c.B)
	if err != nil {
		return err
	}
	cmp := compare.Reports(a, b)
	if len(cmp.Changes) == 0 {
		return fmt.Errorf("bench compare: %s and %s have no row of the same configuration", c.A, c.B)
	}
	u.printf("A: %s, revision %s\nB: %s, revision %s\n", c.A, cmp.A.Revision, c.B, cmp.B.Revision)
	if cmp.Note != "" {
		u.printf("%s\n", cmp.Note)
	}
	printChanges(u, cmp.Changes)
	for _, only := range []struct {
		file string
		rows []bench.Config
	}{{c.A, cmp.OnlyA}, {c.B, cmp.OnlyB}} {
		for _, r := range only.rows {
			u.printf("only in %s: %s\n", only.file, rowName(r))
		}
	}
	return errors.Join(u.result(cmp), c.verdict(cmp))
}

// verdict is what --fail asks for.
func (c *compareCmd) verdict(cmp compare.Comparison) error {
	if c.Fail == 0 {
		return nil
	}
	var worse []string
	for _, ch := range cmp.Changes {
		by := ch.Change * 100
		if ch.Less {
			by = -by
		}
		if ch.Relative && ch.Verdict == compare.Worse && -by > c.Fail {
			worse = append(worse, fmt.Sprintf("%s: %s %+.1f %%", rowName(ch.Config), ch.Name, ch.Change*100))
		}
	}
	if len(worse) > 0 {
		return fmt.Errorf("bench compare: worse by more than %g %%: %s", c.Fail, strings.Join(worse, "; "))
	}
	return nil
}

func readReport(path string) (bench.Report, error) {
	f, err := os.Open(path)
	if err != nil {
		return bench.Report{}, &usageError{err}
	}
	defer func() { _ = f.Close() }() // it was only read
	r, err := bench.ReadReport(f)
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

func printChanges(u *ui, changes []compare.Change) {
	var cells [][]string
	name := ""
	for _, ch := range changes {
		row := rowName(ch.Config)
		if row == name {
			row = ""
		} else {
			name = row
		}
		cells = append(cells, []string{
			row, ch.Name, spreadText(ch.A, "%.4g"), spreadText(ch.B, "%.4g"),
			fmt.Sprintf("%+.1f %%", ch.Change*100), fmt.Sprintf("%.3f", ch.P), string(ch.Verdict),
		})
	}
	u.table(fmt.Sprintf("median (min .. max); better or worse: p < %g", compare.Significance), []string{"", "", "A", "B", "change", "p", ""}, cells)
}

// rowName says what was measured, without what is the default.
func rowName(c bench.Config) string {
	parts := []string{string(c.Kind), c.Provider}
	if c.Kind != bench.Imm && c.Kind != bench.Barrier {
		parts = append(parts, size(c.Size).String())
	}
	for _, p := range []struct {
		show bool
		text string
	}{
		{c.Cold, "cold"},
		{c.Kind == bench.Scatter, fmt.Sprintf("%d targets", c.Batch)},
		{c.Peers > 1, fmt.Sprintf("%d receivers", c.Peers)},
		{c.Rails > 1, fmt.Sprintf("%d rails", c.Rails)},
		{c.Poll != "" && c.Poll != "adaptive", "poll " + c.Poll},
	} {
		if p.show {
			parts = append(parts, p.text)
		}
	}
	return strings.Join(parts, " ")
}
