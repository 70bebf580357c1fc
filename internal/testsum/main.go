package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// countsEnv names the file that collects the counts of several runs when -counts is not given.
const countsEnv = "HAWSER_TEST_COUNTS"

func main() {
	name := flag.String("name", "test", "name of this run in the counts file")
	counts := flag.String("counts", os.Getenv(countsEnv), "append the counts to `FILE`")
	live := flag.String("live", "", "print lines of tests that start with `PREFIX` as they come: progress of long tests")
	total := flag.String("total", "", "add up the counts in `FILE`, print the closing line, and exit")
	flag.Parse()
	if *total != "" {
		os.Exit(printTotal(os.Stdout, *total))
	}
	sum, err := judge(run(os.Stdout, *live, flag.Args()))
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
	}
	return sum, err
}

// run executes go test and reads its events. An interrupt of the terminal reaches go test too, whose end ends this process.
func run(out io.Writer, live string, args []string) (Summary, error) {
	signal.Notify(make(chan os.Signal, 1), syscall.SIGINT) // caught, not ignored: go test would inherit that
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

func printTotal(out io.Writer, file string) int {
	sum, err := readCounts(file)
	if err != nil {
		fmt.Fprintf(os.Stderr, "testsum: %v\n", err)
		return 1
	}
	for _, s := range sum.Skips {
		fmt.Fprintf(out, "skipped: %s\n", s)
	}
	fmt.Fprintln(out, sum.line())
	if sum.Failed > 0 || sum.Passed == 0 {
		return 1
	}
	return 0
}
