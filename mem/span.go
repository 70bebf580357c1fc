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
func New(size uint64, kind Kind) (*Span, error) { return NewHuge(size, kind, SmallPages) }

// NewHuge is New for memory in huge pages, in whole ones of which it takes what size bytes need. A *HugePagesError says that the
// machine has none, or not enough, and what to do. The pages of 2 MiB and 1 GiB are for Shared, and none for Heap.
func NewHuge(size uint64, kind Kind, huge Huge) (*Span, error) {
	if size == 0 {
		return nil, errors.New("span of 0 bytes: at least 1")
	}
	if size > math.MaxInt64/2 { // also when it is not known what is available
		return nil, fmt.Errorf("span of %d bytes: %w: no machine has that", size, ErrMemory)
	}
	if huge > Huge1GiB || kind == Heap && huge != SmallPages || kind != Shared && huge > Transparent {
		return nil, fmt.Errorf("span: %s pages: not for this kind of memory", huge)
	}
	err := checkHuge(size, kind, huge)
	if err == nil && huge <= Transparent { // what is set aside is not in what is available
		err = enough(size)
	}
	if err != nil {
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
		return finish(&Span{kind: kind, bytes: b, fd: -1}, huge)
	case Shared:
		return newShared(size, huge)
	}
	return nil, fmt.Errorf("span: unknown kind %d", kind)
}

func newShared(size uint64, huge Huge) (*Span, error) {
	fd, err := unix.MemfdCreate("hawser", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|huge.memfdFlags())
	if err != nil {
		return nil, fmt.Errorf("span of %d bytes in %s pages: memfd_create: %w", size, huge, err)
	}
	b, err := fill(fd, size, huge)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("span of %d bytes: %w", size, err)
	}
	return finish(&Span{kind: Shared, bytes: b, fd: fd}, huge)
}

func fill(fd int, size uint64, huge Huge) ([]byte, error) {
	whole := int64(huge.round(size))
	if err := unix.Ftruncate(fd, whole); err != nil {
		return nil, fmt.Errorf("ftruncate: %w", err)
	}
	if huge == Transparent {
		if err := fillHuge(fd, size); err != nil {
			return nil, err
		}
	}
	if err := fallocate(fd, whole); err != nil {
		switch short := errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.ENOMEM); {
		case short && huge.size() > 0:
			err = fmt.Errorf("%w (%w)", hugeShort(size, huge), err)
		case short:
			err = fmt.Errorf("%w (%w)", ErrMemory, err)
		}
		return nil, fmt.Errorf("fallocate: %w", err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, Seals); err != nil {
		return nil, fmt.Errorf("add seals: %w", err)
	}
	b, err := Map(fd, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	return b, nil
}

// fallocate reserves the first size bytes of a file. Where that takes long, signals interrupt it, and the runtime of Go sends some.
func fallocate(fd int, size int64) error {
	for {
		if err := unix.Fallocate(fd, 0, 0, size); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// fillHuge makes the pages of a memfd through a mapping that asks for huge ones: fallocate makes small ones. Where it cannot, fallocate
// makes the rest.
func fillHuge(fd int, size uint64) error {
	b, err := Map(fd, size, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return fmt.Errorf("mmap: %w", err)
	}
	if err := unix.Madvise(b, unix.MADV_HUGEPAGE); err != nil {
		return errors.Join(fmt.Errorf("madvise hugepage: %w", err), Unmap(b))
	}
	populate(b, unix.MADV_POPULATE_WRITE)
	return Unmap(b)
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
func finish(s *Span, huge Huge) (*Span, error) {
	err := unix.Madvise(s.bytes[:cap(s.bytes)], unix.MADV_DONTFORK)
	if err == nil && huge == Transparent {
		err = unix.Madvise(s.bytes, unix.MADV_HUGEPAGE)
	}
	if err != nil {
		err = fmt.Errorf("madvise: %w", err)
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
func (s *Span) Bytes() []byte { return s.bytes[:len(s.bytes):len(s.bytes)] }

// FD is the memfd of a Shared span, else -1. It stays owned by the span.
func (s *Span) FD() int { return s.fd }

// Free gives the memory back, but for what Foreign was given. Only the owner calls it, once.
func (s *Span) Free() error {
	var err error
	if s.kind != Heap && s.kind != borrowed {
		err = Unmap(s.bytes)
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
