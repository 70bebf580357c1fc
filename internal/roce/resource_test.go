//go:build vm

package roce

import (
	"bufio"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// kinds are what a program that leaks leaves behind on devices.
var kinds = regexp.MustCompile(`\b(pd|cq|qp|mr|ctx|srq) (\d+)`)

// resources is what programs have on all devices of this VM: "pd 3 cq 2 ...". The kernel itself has a few.
func resources(t testing.TB) string {
	t.Helper()
	sum := map[string]int{}
	for _, m := range kinds.FindAllStringSubmatch(run(t, "rdma", "resource"), -1) {
		n, err := strconv.Atoi(m[2])
		if err != nil {
			t.Fatal(err)
		}
		sum[m[1]] += n
	}
	if sum["pd"] == 0 {
		t.Fatal("rdma resource tells nothing")
	}
	return fmt.Sprint(sum)
}

// kernelMemory is what the kernel has in slabs that it cannot give back, and for stacks and page tables, in KiB.
func kernelMemory(t testing.TB) int {
	t.Helper()
	// What waits for a grace period, or lies in per-processor lists, is given back first.
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sum := 0
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		switch name {
		case "SUnreclaim", "VmallocUsed", "PageTables", "KernelStack":
			n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
