package mem

import (
	"errors"
	"fmt"
	"math"
	"os"

	"golang.org/x/sys/unix"
)

// ErrMemory: the machine does not have that much memory to give. The text says how much there is and what to do.
var ErrMemory = errors.New("not enough memory")

// Kind says where a Span's bytes live.
type Kind uint8

const (
	// Shared is a sealed memfd: other processes of the same user can map it. The default.
	Shared Kind = iota
	// Private is anonymous memory that no other process can map.
	Private
	// Heap is a Go slice, for tests under the race detector, which sees nothing else.
	Heap
)

// Span is page-aligned memory, zeroed, with every page present and mapped (Linux 5.14 or later). Owned by its maker.
type Span struct {
	kind  Kind
	bytes []byte
	fd    int
}

// Seals of a shared span: its length never changes. A memfd without them lets any holder truncate it, and the next access
// of everybody else ends in SIGBUS.
const Seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL

// New makes a span of size bytes (at least 1). It reserves all of it at once, so that memory that is missing is an error
// here (ErrMemory) and not a signal later.
func New(size uint64, kind Kind) (*Span, error) {
	if size == 0 {
		return nil, errors.New("span of 0 bytes: at least 1")
	}
	if size > math.MaxInt64/2 { // also when it is not known what is available
		return nil, fmt.Errorf("span of %d bytes: %w: no machine has that", size, ErrMemory)
	}
	if err := enough(size); err != nil {
		return nil, fmt.Errorf("span of %d bytes: %w", size, err)
	}
	switch kind {
	case Heap:
		return &Span{kind: kind, bytes: make([]byte, size), fd: -1}, nil
	case Private:
		b, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, fmt.Errorf("span of %d bytes: mmap: %w", size, err)
		}
		return finish(&Span{kind: kind, bytes: b, fd: -1})
	case Shared:
		return newShared(size)
	}
	return nil, fmt.Errorf("span: unknown kind %d", kind)
}

func newShared(size uint64) (*Span, error) {
	fd, err := unix.MemfdCreate("hawser", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("span of %d bytes: memfd_create: %w", size, err)
	}
	b, err := fill(fd, int64(size))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("span of %d bytes: %w", size, err)
	}
	return finish(&Span{kind: Shared, bytes: b, fd: fd})
}

func fill(fd int, size int64) ([]byte, error) {
	if err := unix.Ftruncate(fd, size); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM) {
			err = fmt.Errorf("%w (%w)", ErrMemory, err)
		}
		return nil, fmt.Errorf("fallocate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals); err != nil {
		return nil, fmt.Errorf("add seals: %w", err)
	}
	b, err := unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return b, nil
}

// ErrUnfit: a descriptor is not a memfd that can be shared safely.
var ErrUnfit = errors.New("not a sealed memfd of that size")

// CheckSealed checks a memfd that somebody else made: it must be at least size bytes long and carry Seals, so that no holder can
// make it shorter under whoever maps it.
func CheckSealed(fd int, size uint64) error {
	if size == 0 || size > math.MaxInt64/2 {
		return fmt.Errorf("%w: size %d", ErrUnfit, size)
	}
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("%w: read seals: %w", ErrUnfit, err)
	}
	if seals&Seals != Seals {
		return fmt.Errorf("%w: seals are %#x, want %#x", ErrUnfit, seals, Seals)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return fmt.Errorf("%w: fstat: %w", ErrUnfit, err)
	}
	if st.Size < int64(size) {
		return fmt.Errorf("%w: it has %d bytes, want %d", ErrUnfit, st.Size, size)
	}
	return nil
}

// finish maps the pages and keeps a forked child from sharing the pages: a copy-on-write after fork would move the parent's pages away from
// under a network card.
func finish(s *Span) (*Span, error) {
	if err := unix.Madvise(s.bytes, unix.MADV_DONTFORK); err != nil {
		err = fmt.Errorf("madvise dontfork: %w", err)
		return nil, errors.Join(err, s.Free())
	}
	advice := unix.MADV_POPULATE_WRITE
	if s.kind == Shared {
		// The pages exist: mapping them for reading maps them for writing too, in blocks (measured: 79 against 207 ms a GiB).
		advice = unix.MADV_POPULATE_READ
	}
	populate(s.bytes, advice)
	return s, nil
}

// populateStep is how much is mapped in one system call. MAP_POPULATE would map everything in one, and nobody else in the
// process could change the address space meanwhile: with gigabytes that is seconds in which the process seems dead.
const populateStep = 16 << 20

// populate maps every page now, so that no write takes a page fault. Linux before 5.14 cannot: then the first write does.
func populate(b []byte, advice int) {
	for len(b) > 0 {
		n := min(len(b), populateStep)
		if unix.Madvise(b[:n], advice) != nil {
			return
		}
		b = b[n:]
	}
}

// Bytes is the whole span. It must not be used after Free.
func (s *Span) Bytes() []byte { return s.bytes }

// FD is the memfd of a Shared span, else -1. It stays owned by the span.
func (s *Span) FD() int { return s.fd }

// Free gives the memory back. Only the owner calls it, once.
func (s *Span) Free() error {
	var err error
	if s.kind != Heap {
		err = unix.Munmap(s.bytes)
	}
	if s.fd >= 0 {
		err = errors.Join(err, unix.Close(s.fd))
	}
	s.bytes, s.fd = nil, -1
	if err != nil {
		return fmt.Errorf("free span: %w", err)
	}
	return nil
}

// enough refuses what the machine cannot give. Without this check a large fallocate makes the kernel kill processes.
func enough(size uint64) error {
	have, err := Available()
	if err != nil || size <= have {
		return nil // when it is not known, the allocation itself decides
	}
	return fmt.Errorf("%w: %d bytes available, %d needed: ask for less, or free memory first", ErrMemory, have, size)
}

// Available is the memory in bytes that this process could still allocate: the smaller of the machine's and the control group's.
func Available() (uint64, error) {
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	have, err := parseAvailable(data)
	if err != nil {
		return 0, err
	}
	return min(have, cgroupRoom()), nil
}
