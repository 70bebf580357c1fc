package cpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Set is a set of processors, by the numbers that Linux gives them.
type Set = unix.CPUSet

// MaxCPU is the largest number that fits into a Set.
const MaxCPU = len(Set{})*64 - 1

// Of makes a set.
func Of(cpus []int) (Set, error) {
	var s Set
	for _, c := range cpus {
		if c < 0 || c > MaxCPU {
			return s, fmt.Errorf("processor %d: not within 0 .. %d", c, MaxCPU)
		}
		s.Set(c)
	}
	return s, nil
}

// Allowed are the processors that the calling thread may use.
func Allowed() (Set, error) {
	var s Set
	if err := unix.SchedGetaffinity(0, &s); err != nil {
		return s, fmt.Errorf("sched_getaffinity: %w", err)
	}
	return s, nil
}

// Both are the processors that are in a and in b.
func Both(a, b Set) (s Set) {
	for i := range a {
		s[i] = a[i] & b[i]
	}
	return s
}

// nodes is where Linux describes the NUMA nodes; tests look elsewhere.
const nodes = "/sys/devices/system/node"

// Near are the processors of a NUMA node that the calling thread may use. The set is empty when there is nothing to choose: the
// node is not known (-1), it has none of them, or it has them all.
func Near(node int) (Set, error) { return near(nodes, node) }

func near(nodes string, node int) (Set, error) {
	if node < 0 {
		return Set{}, nil
	}
	text, err := os.ReadFile(fmt.Sprintf("%s/node%d/cpulist", nodes, node))
	if errors.Is(err, os.ErrNotExist) {
		return Set{}, nil // a kernel without NUMA has no such folder
	}
	if err != nil {
		return Set{}, err
	}
	there, err := parseList(strings.TrimSpace(string(text)))
	if err != nil {
		return Set{}, fmt.Errorf("processors of NUMA node %d: %w", node, err)
	}
	allowed, err := Allowed()
	if err != nil {
		return Set{}, err
	}
	if there = Both(there, allowed); there == allowed {
		return Set{}, nil
	}
	return there, nil
}

// parseList reads a list such as "0-3,8".
func parseList(text string) (s Set, err error) {
	if text == "" {
		return s, nil // a node of memory only
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err := errors.Join(err1, err2); err != nil {
			return s, fmt.Errorf("list %q: %w", text, err)
		}
		if from < 0 || to < from || to > MaxCPU {
			return s, fmt.Errorf("list %q: not within 0 .. %d", text, MaxCPU)
		}
		for c := from; c <= to; c++ {
			s.Set(c)
		}
	}
	return s, nil
}

// Lock gives the calling goroutine a thread of its own, on the processors of set when it is not empty. It must not
// call runtime.Gosched then, which would cost two switches of threads each time. unlock undoes it, on the same goroutine.
func Lock(set Set) (unlock func(), err error) {
	runtime.LockOSThread()
	if set.Count() == 0 {
		return runtime.UnlockOSThread, nil
	}
	before, err := Allowed()
	if err == nil {
		err = unix.SchedSetaffinity(0, &set)
	}
	if err != nil {
		runtime.UnlockOSThread()
		return func() {}, fmt.Errorf("pin thread to %d processors: %w", set.Count(), err)
	}
	return func() {
		if unix.SchedSetaffinity(0, &before) == nil {
			runtime.UnlockOSThread() // else the thread ends with its goroutine
		}
	}, nil
}
