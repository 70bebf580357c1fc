// Package memtest gets huge pages for tests.
package memtest

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	pages2MiB = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages"
	shmemTHP  = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
)

// Reserve makes sure that n more pages of 2 MiB are set aside until the end of the test, and skips it where that is not possible.
func Reserve(t testing.TB, n int) {
	t.Helper()
	before := change(t, pages2MiB, func(old string) string {
		had, err := strconv.Atoi(old)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(had + n)
	})
	if now, err := os.ReadFile(pages2MiB); err != nil || strings.TrimSpace(string(now)) != fmt.Sprint(before(n)) {
		t.Skipf("the machine gives no %d huge pages: %s of them are there (%v)", n, strings.TrimSpace(string(now)), err)
	}
}

// Transparent makes sure that transparent huge pages can be had for shared memory until the end of the test, or that they cannot.
func Transparent(t testing.TB, on bool) {
	t.Helper()
	change(t, shmemTHP, func(string) string { return map[bool]string{true: "advise", false: "never"}[on] })
}

// change writes to a setting of the machine, which only one test at a time may change, and puts it back when the test has ended.
func change(t testing.TB, path string, next func(old string) string) (before func(more int) int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Skipf("huge pages need root, or a machine that has them: %v", err)
	}
	t.Cleanup(func() { _ = f.Close() }) // which ends the lock
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	old := strings.TrimSpace(string(text))
	if _, chosen, ok := strings.Cut(old, "["); ok {
		old, _, _ = strings.Cut(chosen, "]")
	}
	t.Cleanup(func() {
		if err := os.WriteFile(path, []byte(old), 0); err != nil {
			t.Errorf("put %s back to %s: %v", path, old, err)
		}
	})
	if err := os.WriteFile(path, []byte(next(old)), 0); err != nil {
		t.Skipf("huge pages: %v", err)
	}
	return func(more int) int {
		had, _ := strconv.Atoi(old) // 0 for what is no number
		return had + more
	}
}
