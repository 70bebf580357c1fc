package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

// countsEnv names the file that collects the counts of several runs when -counts is not given.
const countsEnv = "HAWSER_TEST_COUNTS"

// againEnv makes every run try again.
const againEnv = "HAWSER_TEST_AGAIN"

func main() {
	name := flag.String("name", "test", "name of this run in the counts file")
	counts := flag.String("counts", os.Getenv(countsEnv), "append the counts to `FILE`")
	live := flag.String("live", "", "print lines of tests that start with `PREFIX` as they come: progress of long tests")
	failure := flag.String("failure", "", "count `NAME` as failed, with the output on standard input, and exit")
	again := flag.Bool("again", os.Getenv(againEnv) != "", "run a few tests that failed again: see again.go; set by "+againEnv+", too")
	total := flag.String("total", "", "add up the counts in `FILE`, print the end of the run, and exit")
	flag.Parse()
	switch {
	case *total != "":
		os.Exit(printTotal(os.Stdout, *total))
	case *failure != "":
		os.Exit(noteFailure(*counts, *failure, os.Stdin))
	}
	sum, err := judge(run(os.Stdout, *live, flag.Args()))
	if *again {
		sum, err = tryAgain(os.Stdout, *live, flag.Args(), sum, err)
	}
	fmt.Printf("%s: %s\n", *name, sum.line())
	if *counts != "" {
		err = errors.Join(err, appendCounts(*counts, *name, sum))
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %s: %v\n", *name, err)
		os.Exit(1)
	}
}

// judge makes a run in which nothing ran, or which broke before any test could fail, one with a failure.
func judge(sum Summary, err error) (Summary, error) {
	if err == nil && !sum.ran() {
		err = errors.New("no test ran")
	}
	if err != nil && sum.Failed == 0 {
		sum.Failed = 1
		sum.Failures = append(sum.Failures, Failure{Name: "go test", Output: err.Error() + "\n"})
	}
	return sum, err
}

// run executes go test and reads its events. An interrupt of the terminal, and the end of a stage's time, reach go test too: its
// end ends this process, which first says what was running.
func run(out io.Writer, live string, args []string) (Summary, error) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT, syscall.SIGTERM) // caught, not ignored: go test would inherit that
	cmd := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	cmd.Stderr = os.Stderr
	events, err := cmd.StdoutPipe()
	if err != nil {
		return Summary{}, fmt.Errorf("go test: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return Summary{}, fmt.Errorf("go test: %w", err)
	}
	sum, rerr := summarize(events, out, live)
	if rerr != nil {
		_, _ = io.Copy(io.Discard, events) // so that go test can end
	}
	if err := cmd.Wait(); err != nil {
		return sum, errors.Join(rerr, fmt.Errorf("go test: %w", err))
	}
	return sum, rerr
}

// noteFailure appends a failure that no test has reported to the counts.
func noteFailure(counts, name string, output io.Reader) int {
	text, err := io.ReadAll(output)
	if err == nil {
		err = appendCounts(counts, name, Summary{Failed: 1, Failures: []Failure{{Output: shorten(slices.Collect(strings.Lines(string(text))))}}})
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %s: %v\n", name, err)
		return 1
	}
	return 0
}

func printTotal(out io.Writer, file string) int {
	runs, err := readCounts(file)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
		return 1
	}
	var sum Summary
	for _, r := range runs {
		sum.Passed += r.Passed
		sum.Failed += r.Failed
		sum.Skipped += r.Skipped
	}
	printSkips(out, runs)
	printFlaky(out, runs)
	printFailures(out, runs)
	fmt.Fprintln(out, sum.line())
	if sum.Failed > 0 || sum.Passed == 0 {
		return 1
	}
	return 0
}
