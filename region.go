package hawser

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// MemOptions say what kind of memory Alloc makes. The zero value is memory that every network can use.
type MemOptions struct {
	// Heap takes memory from the Go heap, for tests under the race detector. Shared memory cannot serve it to peers.
	Heap bool

	// Huge takes memory in huge pages: see package mem. A *mem.HugePagesError, which is an ErrMemory, says that the machine has none, or
	// not enough, and what to do about it. Peers map it as it is.
	Huge mem.Huge
}

// Region is registered memory of this engine. The engine owns memory from Alloc to Close, memory of Register not at all; the bytes are the
// user's, within the contract of the package comment.
type Region struct {
	e        *Engine
	id       uint64
	len      uint64
	mr       rail.Memory
	readOnly bool         // peers cannot write to it
	uses     atomic.Int64 // mirrors; the worker counts operations
	closed   atomic.Bool  // set under mu
	grants   grants

	mu    sync.Mutex // held while it closes
	span  *mem.Span
	freed bool // guarded by mu
}

// Slice is a part of a Region.
type Slice struct {
	Region   *Region
	Off, Len uint64 // bytes
}

// Alloc makes and registers size bytes of zeroed memory. ErrMemory says that the machine has not got them.
func (e *Engine) Alloc(size uint64, o MemOptions) (*Region, error) {
	if size == 0 {
		return nil, fmt.Errorf("alloc 0 bytes: %w: at least 1", ErrInvalid)
	}
	kind := mem.Shared
	if o.Heap {
		kind = mem.Heap
	}
	if o.Heap && o.Huge != mem.SmallPages || o.Huge > mem.Huge1GiB {
		return nil, fmt.Errorf("alloc %d bytes: huge: %w: %s pages, of the Go heap: %t", size, ErrInvalid, o.Huge, o.Heap)
	}
	span, err := mem.NewHuge(size, kind, o.Huge)
	if err != nil {
		return nil, fmt.Errorf("alloc: %w", err)
	}
	r, err := e.register(span, provider.AccessRemoteWrite)
	if err != nil {
		return nil, fmt.Errorf("alloc %d bytes: %w", size, err)
	}
	return r, nil
}

// RegisterOptions say what foreign memory may be used for. The zero value is memory to read from and to write to.
type RegisterOptions struct {
	// ReadOnly memory is a source only: it may be mapped without the right to write, as a file of weights is, and peers cannot import
	// its descriptors.
	ReadOnly bool
}

// Register makes a region of memory that the engine did not make: an mmap, memory of C or of a tensor (unsafe.Slice makes bytes of an
// address). It stays the caller's, who must neither free nor unmap it before Close of the region, or of the engine, has
// returned nil; Close gives nothing back. Registrations may overlap. The memory is not changed: a child of fork shares it as before.
//
// Memory of Alloc is faster on one host: a peer maps it, while what is written to foreign memory over shared memory is fetched by this
// process, which the kernel must allow; where it does not, Import fails at the peer with ErrUnsupported and the remedy.
//
// ErrInvalid: b is empty, is memory of the Go runtime (found out by its address, as a help against mistakes), or is not mapped as
// it must be.
func (e *Engine) Register(b []byte, o RegisterOptions) (*Region, error) {
	span, err := mem.Foreign(b, !o.ReadOnly)
	if err != nil {
		return nil, fmt.Errorf("register: %w: %w", ErrInvalid, err)
	}
	acc := provider.AccessRemoteWrite
	if o.ReadOnly {
		acc = 0
	}
	r, err := e.register(span, acc)
	if err != nil {
		return nil, fmt.Errorf("register %d bytes: %w", len(b), err)
	}
	return r, nil
}

// register makes a region of a span, which it owns from now on.
func (e *Engine) register(span *mem.Span, acc provider.Access) (*Region, error) {
	r := &Region{e: e, len: uint64(len(span.Bytes())), span: span, readOnly: acc&provider.AccessRemoteWrite == 0}
	err := e.worker.do(func(g *rail.Group) error {
		mr, err := g.Register(provider.Memory{Bytes: span.Bytes(), FD: span.FD()}, acc)
		if err == nil {
			r.mr = *mr
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(err, span.Free())
	}
	if !e.addRegion(r) {
		return nil, errors.Join(fmt.Errorf("engine: %w", ErrClosed), r.free())
	}
	return r, nil
}

// Bytes is the memory. It must not be used after Close.
func (r *Region) Bytes() []byte { return r.span.Bytes() }

// Len is the length in bytes.
func (r *Region) Len() uint64 { return r.len }

// All is the whole region.
func (r *Region) All() Slice { return Slice{Region: r, Len: r.Len()} }

// Slice is n bytes from off. Bounds are checked by the operation that uses it.
func (r *Region) Slice(off, n uint64) Slice { return Slice{Region: r, Off: off, Len: n} }

// Close makes all descriptors of the region stale, then frees it, unless it is of Register. Peers that have imported it are asked to stop first, as by
// Revoke; those that do not answer within 100 ms are not fenced: the network ends their keys, their writes fail there and change
// nothing that is visible here. ErrBusy: operations of this engine still read from it, or a Counter mirrors into it.
func (r *Region) Close() error {
	r.mu.Lock()
	if !r.closed.Swap(true) {
		if n := r.busy(); n > 0 {
			r.closed.Store(false)
			r.mu.Unlock()
			return fmt.Errorf("close region %d: %w: %d operations or mirrors use it", r.id, ErrBusy, n)
		}
	}
	r.mu.Unlock()
	r.revokeAll()
	if err := r.free(); err != nil {
		return fmt.Errorf("close region %d: %w", r.id, err)
	}
	r.e.dropRegion(r)
	return nil
}

// busy is how many operations and mirrors use r, which is closed. 0 means that no operation will: the worker refuses those that did not see
// that it is closed.
func (r *Region) busy() (n int64) {
	if n = r.uses.Load(); n > 0 {
		return n
	}
	_ = r.e.worker.do(func(g *rail.Group) error { // errNoWorker: then the networks are closed
		n = int64(g.Retire(&r.mr))
		return nil
	})
	return n
}

// free deregisters and unmaps, once. The keys go first: after that no network places anything.
func (r *Region) free() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed.Store(true)
	if r.freed {
		return nil
	}
	w := r.e.worker
	err := w.do(func(g *rail.Group) error { return g.Deregister(&r.mr) })
	if errors.Is(err, errNoWorker) {
		<-w.done // then the networks are closed
	} else if err != nil {
		return err
	}
	r.freed = true
	return r.span.Free()
}

// Rights say what a descriptor allows.
type Rights uint8

// RightWrite allows to write.
const RightWrite Rights = 1

// Descriptor is the capability to write into a range of a region: send it to a peer by any means. It says where the owner is,
// and carries the owner's proof that it was issued for this range and these rights; it holds no network key.
type Descriptor struct{ d wire.Descriptor }

// Descriptor issues a capability for s, whose bounds are cut to the region.
func (r *Region) Descriptor(s Slice, rights Rights) Descriptor {
	off := min(s.Off, r.Len())
	d := wire.Descriptor{
		Owner: r.e.id, Region: r.id, Gen: r.e.serial.Add(1),
		Off: off, Len: min(s.Len, r.Len()-off), Rights: uint8(rights), Addr: r.e.addr.String(),
	}
	d.MAC = r.e.sign(&d)
	return Descriptor{d: d}
}

// sign is the proof that this engine issued d: HMAC-SHA-256 under a key that never leaves it, cut to 128 bits.
func (e *Engine) sign(d *wire.Descriptor) (mac [16]byte) {
	h := hmac.New(sha256.New, e.secret[:])
	h.Write(d.Signed())
	copy(mac[:], h.Sum(nil))
	return mac
}

// Len is the number of bytes that the descriptor covers.
func (d Descriptor) Len() uint64 { return d.d.Len }

// Owner is the identity of the engine that issued it.
func (d Descriptor) Owner() ID { return ID(d.d.Owner) }

// MarshalBinary is the encoding to send to a peer, about 200 bytes.
func (d Descriptor) MarshalBinary() ([]byte, error) { return wire.Append(nil, &d.d), nil }

// UnmarshalBinary is the inverse of MarshalBinary.
func (d *Descriptor) UnmarshalBinary(b []byte) error {
	var w wire.Descriptor
	if err := wire.Parse(b, &w); err != nil {
		return fmt.Errorf("descriptor: %w: %w", ErrInvalid, err)
	}
	d.d = w
	return nil
}

const descriptorPrefix = "hawser-mem1:"

// MarshalText is MarshalBinary in printable form.
func (d Descriptor) MarshalText() ([]byte, error) {
	return []byte(descriptorPrefix + base64.RawURLEncoding.EncodeToString(wire.Append(nil, &d.d))), nil
}

// UnmarshalText is the inverse of MarshalText.
func (d *Descriptor) UnmarshalText(b []byte) error {
	s, ok := strings.CutPrefix(string(b), descriptorPrefix)
	if !ok {
		return fmt.Errorf("descriptor %.40q: %w: does not start with %q", b, ErrInvalid, descriptorPrefix)
	}
	raw, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil {
		return fmt.Errorf("descriptor %.40q: %w: %w", b, ErrInvalid, err)
	}
	return d.UnmarshalBinary(raw)
}
