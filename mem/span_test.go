package mem

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSpansAreZeroedWholeAndFreed(t *testing.T) {
	before := fds(t)
	for _, kind := range []Kind{Shared, Private, Heap} {
		for _, size := range []uint64{1, 4096, 1<<20 + 1} {
			s, err := New(size, kind)
			if err != nil {
				t.Fatal(err)
			}
			if uint64(len(s.Bytes())) != size || (s.FD() >= 0) != (kind == Shared) {
				t.Fatalf("kind %d: %d bytes, want %d, descriptor %d", kind, len(s.Bytes()), size, s.FD())
			}
			for i, b := range s.Bytes() {
				if b != 0 {
					t.Fatalf("kind %d: byte %d is %d", kind, i, b)
				}
			}
			s.Bytes()[size-1] = 1
			if err := s.Free(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := fds(t); n != before {
		t.Fatalf("%d descriptors, %d before", n, before)
	}
}

func fds(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// Asking for more than there is gives an error, not a dead process.
func TestTooMuchIsAnError(t *testing.T) {
	for _, size := range []uint64{1 << 50, 1 << 61, 1 << 63} {
		for _, kind := range []Kind{Shared, Private, Heap} {
			if _, err := New(size, kind); !errors.Is(err, ErrMemory) {
				t.Errorf("%d bytes of kind %d: %v", size, kind, err)
			}
		}
	}
	if _, err := New(0, Shared); err == nil {
		t.Error("size 0 was accepted")
	}
	if _, err := New(1, 99); err == nil {
		t.Error("an unknown kind was accepted")
	}
}

func TestASharedSpanCannotBeResized(t *testing.T) {
	s, err := New(8192, Shared)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Free()
	for _, size := range []int64{0, 4096, 16384} {
		if err := unix.Ftruncate(s.FD(), size); !errors.Is(err, unix.EPERM) {
			t.Errorf("truncate to %d: %v", size, err)
		}
	}
	if err := CheckSealed(s.FD(), 8192); err != nil {
		t.Error(err)
	}
	if err := CheckSealed(s.FD(), 8193); !errors.Is(err, ErrUnfit) {
		t.Errorf("longer than it is: %v", err)
	}
	open, err := unix.MemfdCreate("unsealed", unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(open)
	if err := unix.Ftruncate(open, 8192); err != nil {
		t.Fatal(err)
	}
	if err := CheckSealed(open, 8192); !errors.Is(err, ErrUnfit) {
		t.Errorf("without seals: %v", err)
	}
	if err := CheckSealed(0, 1); !errors.Is(err, ErrUnfit) {
		t.Errorf("not a memfd: %v", err)
	}
}

func TestAvailableReadsMeminfo(t *testing.T) {
	got, err := parseAvailable([]byte("MemTotal:       24000000 kB\nMemAvailable:   22964536 kB\nBuffers: 1 kB\n"))
	if err != nil || got != 22964536<<10 {
		t.Fatalf("%d, %v", got, err)
	}
	for _, bad := range []string{"", "MemTotal: 5 kB\n", "MemAvailable: many kB\n"} {
		if _, err := parseAvailable([]byte(bad)); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if n, err := Available(); err != nil || n == 0 {
		t.Fatalf("%d, %v", n, err)
	}
}

// Pages of files that a control group has read are not what an allocation has to do without.
func TestFilePagesLeaveRoom(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := groupRoom(dir); n != math.MaxUint64 {
		t.Fatalf("without files: %d", n)
	}
	put("memory.max", "1000\n")
	put("memory.current", "900\n")
	if n := groupRoom(dir); n != 100 {
		t.Fatalf("without statistics: %d, want 100", n)
	}
	put("memory.stat", "anon 5\ninactive_file 700\nactive_file 50\n")
	if n := groupRoom(dir); n != 800 {
		t.Fatalf("%d, want 800", n)
	}
	put("memory.current", "1200\n") // above a limit that was lowered
	if n := groupRoom(dir); n != 500 {
		t.Fatalf("above the limit: %d, want 500", n)
	}
	put("memory.max", "max\n")
	if n := groupRoom(dir); n != math.MaxUint64 {
		t.Fatalf("without a limit: %d", n)
	}
}
