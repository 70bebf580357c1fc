package mem

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Huge says in which pages memory comes. Large pages take a network card, or a processor that copies, fewer entries of their tables of
// addresses.
type Huge uint8

const (
	// SmallPages are those of the machine, mostly of 4 KiB. The default.
	SmallPages Huge = iota
	// Transparent asks the kernel for pages of 2 MiB where it has some free; the rest comes in small ones. It needs
	// /sys/kernel/mm/transparent_hugepage/shmem_enabled (for Shared) or enabled (for Private) to be "advise" or more.
	Transparent
	// Huge2MiB takes all of it from the pages of 2 MiB that the administrator has set aside (sysctl vm.nr_hugepages).
	Huge2MiB
	// Huge1GiB is the same for pages of 1 GiB.
	Huge1GiB
)

func (h Huge) String() string {
	if h > Huge1GiB {
		return fmt.Sprintf("Huge(%d)", uint8(h))
	}
	return [...]string{"small", "transparent", "2MiB", "1GiB"}[h]
}

// size is the length of a page that is set aside, 0 for the others.
func (h Huge) size() uint64 { return [...]uint64{Huge2MiB: 2 << 20, Huge1GiB: 1 << 30}[h] }

// HugePagesError: the machine has no such pages, or not enough of them. It wraps ErrMemory.
type HugePagesError struct {
	Pages Huge
	Need  uint64 // pages
	Free  uint64 // pages that nobody has, or has reserved
	Fix   string // what the administrator can do
}

func (e *HugePagesError) Error() string {
	if e.Pages == Transparent {
		return fmt.Sprintf("%v: transparent huge pages are off for this kind of memory: %s", ErrMemory, e.Fix)
	}
	return fmt.Sprintf("%v: needs %d pages of %s, %d are free: %s", ErrMemory, e.Need, e.Pages, e.Free, e.Fix)
}

// Unwrap is ErrMemory.
func (e *HugePagesError) Unwrap() error { return ErrMemory }

const (
	hugeFolder        = "/sys/kernel/mm/hugepages"
	transparentFolder = "/sys/kernel/mm/transparent_hugepage"
)

// checkHuge refuses what the machine does not offer. What it offers may be taken by others until it is reserved: then the reservation
// fails with the same error.
func checkHuge(size uint64, kind Kind, h Huge) error {
	switch h {
	case SmallPages:
		return nil
	case Transparent:
		return checkTransparent(kind)
	}
	if free, ok := freeHuge(h); !ok || free < pagesFor(size, h) {
		return hugeShort(size, h)
	}
	return nil
}

func checkTransparent(kind Kind) error {
	file := filepath.Join(transparentFolder, "enabled")
	if kind == Shared {
		file = filepath.Join(transparentFolder, "shmem_enabled")
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return &HugePagesError{Pages: Transparent, Fix: fmt.Sprintf("this kernel has none (%v)", err)}
	}
	_, chosen, _ := strings.Cut(string(text), "[")
	switch chosen, _, _ = strings.Cut(chosen, "]"); chosen {
	case "never", "deny":
		fix := "advise"
		if kind != Shared {
			fix = "madvise"
		}
		return &HugePagesError{Pages: Transparent, Fix: fmt.Sprintf("%s says %q: write %q to it as root", file, chosen, fix)}
	}
	return nil
}

func pagesFor(size uint64, h Huge) uint64 { return (size-1)/h.size() + 1 }

// freeHuge is how many pages that are set aside nobody has, or has reserved; pages that the kernel may add on demand count. Not ok:
// the machine has no pages of that size.
func freeHuge(h Huge) (uint64, bool) {
	dir := filepath.Join(hugeFolder, fmt.Sprintf("hugepages-%dkB", h.size()>>10))
	free, ok := readUint(filepath.Join(dir, "free_hugepages"))
	reserved, _ := readUint(filepath.Join(dir, "resv_hugepages"))
	more, _ := readUint(filepath.Join(dir, "nr_overcommit_hugepages"))
	surplus, _ := readUint(filepath.Join(dir, "surplus_hugepages"))
	return free - min(reserved, free) + more - min(surplus, more), ok
}

func hugeShort(size uint64, h Huge) error {
	e := &HugePagesError{Pages: h, Need: pagesFor(size, h)}
	free, ok := freeHuge(h)
	e.Free = free
	dir := filepath.Join(hugeFolder, fmt.Sprintf("hugepages-%dkB", h.size()>>10))
	total, _ := readUint(filepath.Join(dir, "nr_hugepages"))
	switch want := total + e.Need - min(free, e.Need); {
	case !ok:
		e.Fix = "this machine has no pages of that size"
	case h == Huge2MiB:
		e.Fix = fmt.Sprintf("sysctl vm.nr_hugepages=%d, as root", want)
	default:
		e.Fix = fmt.Sprintf("write %d to %s/nr_hugepages as root, or start the kernel with hugepagesz=1G hugepages=%d", want, dir, want)
	}
	return e
}

// memfdFlags are those of a memfd of such pages.
func (h Huge) memfdFlags() int {
	switch h {
	case Huge2MiB:
		return unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	case Huge1GiB:
		return unix.MFD_HUGETLB | unix.MFD_HUGE_1GB
	}
	return 0
}

// round is size up to whole pages.
func (h Huge) round(size uint64) uint64 {
	if h.size() == 0 {
		return size
	}
	return pagesFor(size, h) * h.size()
}

// Map maps size bytes of a memfd; prot says for what (PROT_READ, PROT_WRITE). In one with huge pages a mapping is whole pages: the capacity says how much
// was mapped. Pages are there, or reserved, when it returns: no access ends in a signal as long as the memfd is sealed (see
// CheckSealed). The seals do not forbid its owner to punch holes: small pages come back at the next access, huge ones only while the machine has
// some, so whoever maps those of another process trusts it.
func Map(fd int, size uint64, prot int) ([]byte, error) {
	whole := size
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err == nil && st.Type == unix.HUGETLBFS_MAGIC && st.Bsize > 0 {
		page := uint64(st.Bsize)
		whole = ((size-1)/page + 1) * page
	}
	b, err := unix.Mmap(fd, 0, int(whole), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return b[:size], nil
}

// Unmap undoes Map; nil is fine.
func Unmap(b []byte) error {
	if b == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(b[:cap(b)]))
}
