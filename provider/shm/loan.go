package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/provider"
)

// Memory without a memfd cannot be mapped by the writer: the receiver reads the writer's source into it. What the two sides say to
// each other about that is in this file; the writer's half is in lend.go, the receiver's in pull.go.

// loan is where the source of a write lies, and where it is to go. Written by the writer before the entry of the ring of immediates
// that announces it, and unchecked: the receiver looks at every field.
type loan struct {
	addr uint64 // of the source, in the writer's process
	key  uint64 // of the receiver's region
	at   uint64 // offset in it
	src  uint64 // key of the writer's region, if it was shown; see source.go
	off  uint64 // offset in it
}

// Bits of the first word of an entry of the ring of immediates, above the length.
const (
	loanBit  = 1 << 63 // the next loan belongs to it
	plainBit = 1 << 62 // it carries no immediate
	flagBits = loanBit | plainBit
)

// slotPull is the lane's slot while its writer reads the other side's memory. It changes nothing there, so a fence need not wait for
// it; only whoever takes a source back does.
const slotPull = maxRegions + 2

// outcome is how the receiver answers a loan: a status in the low byte, and the error number that caused it.
type outcome uint32

const outcomeErrno = 8 // position of the error number

func makeOutcome(st provider.Status, errno unix.Errno) outcome {
	return outcome(st) | outcome(errno)<<outcomeErrno
}

func (o outcome) status() provider.Status { return provider.Status(o) }
func (o outcome) errno() uint32           { return uint32(o >> outcomeErrno) }

// possible reports whether a receiver may answer so.
func (o outcome) possible() bool {
	switch o.status() {
	case provider.StatusOK, provider.StatusAccess, provider.StatusLocal:
		return true
	}
	return false
}

// puller is the receiver's half of the loans of a peer. Owned by the domain.
type puller struct {
	pid   int             // of the peer's process, as the kernel says
	proof proof           // what must be found there
	fault error           // why its memory cannot be read; nil: it can
	loans []loan          // of the page
	to    []atomic.Uint32 // outcomes, of the page

	sources []mapping // memory of the peer that it has shown, by region index
	mapped  int       // how many

	queue fifo[pulled] // taken out of the ring and not done
	next  uint64       // loans taken
	done  uint64       // loans answered
	cut   bool         // the connection ended with loans in the ring: nothing behind them counts
}

// pulled is an entry of the ring of immediates on its way through the receiver: a private copy.
type pulled struct {
	loan
	len, done uint64
	imm       uint32
	lent      bool // else it is an immediate whose bytes lie there already
	plain     bool
	status    provider.Status
	errno     unix.Errno
	part      uint64 // bytes that the present system call reads for it
}

// decode takes an entry of the ring apart; l is the loan that would belong to it. False: no such entry exists.
// hot:
func (j *pulled) decode(e ring.Entry, l loan) bool {
	*j = pulled{len: e.A &^ flagBits, imm: e.B, lent: e.A&loanBit != 0, plain: e.A&plainBit != 0}
	if j.lent {
		j.loan = l
	}
	return j.len <= maxMsg && (j.lent || !j.plain)
}

// proof is a random number that lies at an address of a process, and in no other process. A read that finds it was a read of that
// process, before it has executed another program and not of a later process with the same number.
type proof struct {
	addr  uint64
	value [proofSize]byte
}

const proofSize = 16

// newProof makes one of this process. A child that is forked does not have it.
func newProof() (p proof, page []byte, err error) {
	page, err = unix.Mmap(-1, 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return p, nil, os.NewSyscallError("mmap", err)
	}
	_, err = rand.Read(p.value[:])
	if err == nil {
		copy(page, p.value[:])
		err = os.NewSyscallError("madvise dontfork", unix.Madvise(page, unix.MADV_DONTFORK))
	}
	if err != nil {
		return p, nil, errors.Join(err, unmap(page))
	}
	p.addr = address0(page)
	return p, page, nil
}

// address0 is where b begins, for another process of this machine. b is not empty.
// hot:
func address0(b []byte) uint64 {
	return uint64(uintptr(unsafe.Pointer(&b[0]))) // safe: never read through here; b is memory that Go does not move
}

// meetProcess finds out whether this side can read the memory of the peer's process.
func (d *domain) meetProcess(p *peer, its proof) {
	p.pull.proof = its
	cred, err := unix.GetsockoptUcred(p.fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	switch {
	case err != nil:
		p.pull.fault = os.NewSyscallError("peer credentials", err)
	case cred.Pid <= 0:
		p.pull.fault = errors.New("the peer is in another pid namespace")
	default:
		p.pull.pid = int(cred.Pid)
		p.pull.fault = d.proveProcess(p)
	}
}

var errOtherProcess = errors.New("its process has another program, or another process has its number")

// proveProcess reads the proof, and nothing else.
func (d *domain) proveProcess(p *peer) error {
	d.pulling.reset()
	n, errno := d.pulling.read(p)
	switch {
	case errno == unix.EPERM:
		return fmt.Errorf("read memory of process %d: %w: %s", p.pull.pid, errno, remedy())
	case errno == unix.ENOSYS:
		return fmt.Errorf("process_vm_readv: %w: the kernel is built without CONFIG_CROSS_MEMORY_ATTACH, or a seccomp filter refuses it", errno)
	case errno != 0:
		return fmt.Errorf("read memory of process %d: %w", p.pull.pid, errno)
	case n != proofSize || d.pulling.found != p.pull.proof.value:
		return errOtherProcess
	}
	return nil
}

// remedy says what to do when the kernel does not let this process read another one of its user.
func remedy() string {
	const text = "give this process CAP_SYS_PTRACE, or see to it that the peer has no capabilities beyond its own and is dumpable (prctl PR_SET_DUMPABLE); " +
		"or reach the peer over tcp"
	b, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope") // absent without Yama
	if scope := strings.TrimSpace(string(b)); err == nil && scope != "0" {
		return fmt.Sprintf("kernel.yama.ptrace_scope is %s: sysctl -w kernel.yama.ptrace_scope=0, or prctl PR_SET_PTRACER in the peer; else %s", scope, text)
	}
	return text
}
