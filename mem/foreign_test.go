package mem

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// What Foreign sees in the kernel's list of mappings.
func TestForeignLooksAtTheMappings(t *testing.T) {
	const maps = `00400000-00401000 r-xp 00000000 00:00 0 prog
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
7f0000001000-7f0000002000 rw-p 00000000 00:00 0 [heap]
7f0000002000-7f0000003000 r--p 00000000 00:00 0 /a file
7f0000003000-7f0000004000 ---p 00000000 00:00 0
7f0000005000-7f0000006000 rw-p 00000000 00:00 0 [anon: Go: heap]
`
	const heap = 0xc0_0001_2340
	for name, tc := range map[string]struct {
		first, end uint64
		writable   bool
		want       error
	}{
		"one mapping":              {0x7f0000000010, 0x7f0000000020, true, nil},
		"two mappings":             {0x7f0000000fff, 0x7f0000002000, true, nil},
		"read only, to write":      {0x7f0000001000, 0x7f0000002001, true, ErrUnmapped},
		"read only, to read":       {0x7f0000001000, 0x7f0000003000, false, nil},
		"no access":                {0x7f0000003000, 0x7f0000003001, false, ErrUnmapped},
		"hole":                     {0x7f0000004000, 0x7f0000004001, false, ErrUnmapped},
		"behind the last":          {0x7f0000006000, 0x7f0000006001, false, ErrUnmapped},
		"named by Go":              {0x7f0000005000, 0x7f0000005001, true, ErrHeap},
		"where the heap is":        {0xc0_0500_0000, 0xc0_0500_0001, true, ErrHeap},
		"end where the heap is":    {0x7f000000, heap, true, ErrHeap},
		"wraps":                    {1<<64 - 8, 8, true, ErrUnmapped},
		"far away, nothing mapped": {0x7e0000000000, 0x7e0000000001, true, ErrUnmapped},
	} {
		if err := inspect([]byte(maps), tc.first, tc.end, heap, tc.writable); !errors.Is(err, tc.want) || (err == nil) != (tc.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
	for _, bad := range []string{"x", "1-2\n", "1-z rw-p 0", "1-2 rw"} {
		if err := inspect([]byte(bad), 1, 2, heap, true); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if err := inspect(nil, 0x7f0000000000, 0x7f0000000001, heap, true); err != nil {
		t.Errorf("without a list: %v", err)
	}
}

// A foreign span is the memory it was made of, and Free leaves it.
func TestForeignMemoryStaysItsOwners(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	s, err := Foreign(b[5:8000], true)
	if err != nil {
		t.Fatal(err)
	}
	s.Bytes()[0] = 9
	if b[5] != 9 || len(s.Bytes()) != 7995 || s.FD() != -1 {
		t.Errorf("byte 5 is %d, the span has %d bytes and descriptor %d", b[5], len(s.Bytes()), s.FD())
	}
	if err := s.Free(); err != nil {
		t.Fatal(err)
	}
	b[5] = 1
	if err := unix.Munmap(b); err != nil {
		t.Fatal(err)
	}
	local := [4096]byte{}
	for name, b := range map[string][]byte{"heap": make([]byte, 100), "stack": local[:], "empty": {}} {
		if _, err := Foreign(b, true); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
