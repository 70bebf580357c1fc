package mem

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/mem/memtest"
)

// smaps is the line of a mapping's description that begins with name, of the mapping that a span is.
func smaps(t *testing.T, s *Span, name string) string {
	t.Helper()
	addr := s.Addr(0)
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), fmt.Sprintf("\n%x-", addr))
	if !ok {
		t.Fatalf("no mapping at %x", addr)
	}
	for line := range strings.Lines(rest) {
		if value, ok := strings.CutPrefix(line, name); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A span in huge pages has the length that was asked for, in whole pages, zeroed, and gives them back. Whoever imports it maps the same
// pages; a size that is no multiple of theirs is no obstacle.
func TestSpanInHugePages(t *testing.T) {
	memtest.Reserve(t, 3)
	for _, size := range []uint64{1, 2 << 20, 4<<20 + 1} {
		before, _ := freeHuge(Huge2MiB)
		s, err := NewHuge(size, Shared, Huge2MiB)
		if err != nil {
			t.Fatal(err)
		}
		if page := smaps(t, s, "KernelPageSize:"); page != "2048 kB" {
			t.Errorf("%d bytes: pages of %s", size, page)
		}
		if uint64(len(s.Bytes())) != size || cap(s.Bytes()) != len(s.Bytes()) || bytes.ContainsFunc(s.Bytes(), func(r rune) bool { return r != 0 }) {
			t.Errorf("%d bytes: %d, room for %d, zeroed or not", size, len(s.Bytes()), cap(s.Bytes()))
		}
		if after, _ := freeHuge(Huge2MiB); before-after != pagesFor(size, Huge2MiB) {
			t.Errorf("%d bytes: %d pages are taken", size, before-after)
		}
		if err := CheckSealed(s.FD(), size); err != nil {
			t.Error(err)
		}
		far, err := Map(s.FD(), size, unix.PROT_READ|unix.PROT_WRITE)
		if err != nil {
			t.Fatal(err)
		}
		far[size-1] = 7
		if s.Bytes()[size-1] != 7 || uint64(len(far)) != size {
			t.Errorf("%d bytes: the other mapping is of other memory", size)
		}
		if err := errors.Join(Unmap(far), s.Free()); err != nil {
			t.Fatal(err)
		}
		if after, _ := freeHuge(Huge2MiB); after != before {
			t.Errorf("%d bytes: %d free pages of %d are left", size, after, before)
		}
	}
}

// More than there is, is an error that says what is needed, what there is, and what to do. Nothing is left, and nothing dies.
func TestTooFewHugePages(t *testing.T) {
	memtest.Reserve(t, 2)
	free, _ := freeHuge(Huge2MiB)
	_, err := NewHuge((free+5)*2<<20, Shared, Huge2MiB)
	var e *HugePagesError
	if !errors.As(err, &e) || !errors.Is(err, ErrMemory) || e.Need != free+5 || e.Free != free || !strings.Contains(err.Error(), "sysctl vm.nr_hugepages=") {
		t.Fatal(err)
	}
	// Somebody else may take pages between the look and the reservation.
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|Huge2MiB.memfdFlags())
	if err != nil {
		t.Fatal(err)
	}
	if _, err = fill(fd, (free+5)*2<<20, Huge2MiB); !errors.As(err, &e) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("found out by the reservation: %v", err)
	}
	// A memfd of a peer without pages cannot be mapped, rather than kill who touches it.
	if b, err := Map(fd, (free+5)*2<<20, unix.PROT_READ); err == nil {
		t.Errorf("%d bytes were mapped of pages that do not exist", len(b))
	}
	unix.Close(fd)
	if after, _ := freeHuge(Huge2MiB); after != free {
		t.Errorf("%d free pages of %d are left", after, free)
	}
}

// Pages of 1 GiB are rarely there; without them the error says how to get them.
func TestNoPagesOfThatSize(t *testing.T) {
	free, _ := freeHuge(Huge1GiB)
	_, err := NewHuge((free+1)<<30, Shared, Huge1GiB)
	var e *HugePagesError
	if !errors.As(err, &e) || e.Need != free+1 || e.Fix == "" {
		t.Fatal(err)
	}
	for _, kind := range []Kind{Private, Heap} {
		if _, err := NewHuge(1, kind, Huge2MiB); err == nil || errors.Is(err, ErrMemory) {
			t.Errorf("kind %d: %v", kind, err)
		}
	}
	if _, err := NewHuge(1, Shared, Huge1GiB+1); err == nil {
		t.Error("pages that do not exist")
	}
}

// Transparent huge pages are used where the kernel allows them, and their absence is an error that says what to set.
func TestTransparentHugePages(t *testing.T) {
	t.Run("allowed", func(t *testing.T) {
		memtest.Transparent(t, true)
		s, err := NewHuge(32<<20, Shared, Transparent)
		if err != nil {
			t.Fatal(err)
		}
		t.Log("mapped in huge pages: ", smaps(t, s, "ShmemPmdMapped:"))
		if flags := smaps(t, s, "VmFlags:"); !strings.Contains(flags+" ", "hg ") {
			t.Errorf("flags of the mapping: %s", flags)
		}
		if err := errors.Join(CheckSealed(s.FD(), 32<<20), s.Free()); err != nil {
			t.Error(err)
		}
	})
	t.Run("off", func(t *testing.T) {
		memtest.Transparent(t, false)
		_, err := NewHuge(32<<20, Shared, Transparent)
		var e *HugePagesError
		if !errors.As(err, &e) || !strings.Contains(err.Error(), "shmem_enabled") || !strings.Contains(err.Error(), "advise") {
			t.Fatal(err)
		}
	})
}
