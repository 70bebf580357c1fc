package providertest

import (
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"reflect"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// Limits and modes of Amazon's Elastic Fabric Adapter as libfabric documents them; docs/efa.md goes through them line by line. The
// sources are of libfabric 2.6: man/fi_efa.7, prov/efa/docs/efa_fabric_comparison.md, prov/efa/src/efa_prov_info.c.
const (
	// efaMaxWrite is the device's largest RDMA write, "~ 1 GB" (efa_fabric_comparison, FI_RMA).
	efaMaxWrite = 1 << 30
	// efaKeys is how many keys there are: domain_attr.mr_key_size is the size of an lkey, 4 bytes (efa_prov_info.c).
	efaKeys = 1<<32 - 1
	// efaPeerDepth and efaRecvDepth are no figures of a device, whose queues are deeper (4096 at most of either kind are seen in the field, and
	// they are shared by all peers). They are small so that a full queue, -FI_EAGAIN there, is met all the time.
	efaPeerDepth, efaRecvDepth = 48, 96
)

// ErrEFA is wrapped by everything that EFA reports.
var ErrEFA = errors.New("would break on EFA")

// EFA returns d with the limits and modes of an Elastic Fabric Adapter, so that code that would break there breaks here. Both sides of
// a connection must be decorated, in one process.
//
//   - FI_MR_VIRT_ADDR: the Base of every key is the virtual address of its first byte. Whoever addresses by offset is refused.
//   - FI_MR_PROV_KEY, keys of 4 bytes: the network chooses small numbers, the same ones on every Domain. Whoever makes keys up, or
//     takes the key of one rail or peer for that of another, is refused.
//   - FI_MR_LOCAL: the local side of every request, messages and receives too, lies in memory that is registered here; else StatusLocal.
//   - FI_MR_ALLOCATED: Register refuses memory that is not mapped or has no bytes (Caps.Phantom, Caps.HeapMemory are false); memory that
//     is unmapped before Deregister is reported.
//   - No inject: sources are read late, so one that changes before its request has completed is reported.
//   - Writes are at most efaMaxWrite long, and queues are short: Post takes a part of a batch.
//   - No order: completions come in any order that the contract allows, as with [Reordering].
//   - The receiver learns nothing of refused writes: no KindRefused.
//   - No reads and no atomics: an operation that the contract does not have ends as StatusLocal.
//
// What is reported breaks the rule without an error that the caller would see; report is called on the owner's goroutine.
func EFA(d provider.Domain, seed uint64, report func(error)) provider.Domain {
	under := d.Caps()
	caps := under
	caps.Ordered, caps.HeapMemory, caps.Phantom, caps.Refusals, caps.PinsMemory = false, false, false, false, true
	caps.MaxMsg = min(caps.MaxMsg, efaMaxWrite)
	caps.PeerDepth, caps.RecvDepth = min(caps.PeerDepth, efaPeerDepth), min(caps.RecvDepth, efaRecvDepth)
	return &efa{
		powered: powered{Reordering(d, seed)}, caps: caps, report: report,
		rng:  rand.New(rand.NewPCG(seed, 2)), // of keys that nobody knows
		keys: map[uint64]*efaKey{}, ids: map[efaGrant]uint64{}, peers: map[provider.Peer]*efa{}, out: map[provider.Peer]int{},
	}
}

// efa is owned by the owner of the Domain, but for what says otherwise.
type efa struct {
	powered
	caps   provider.Caps
	report func(error)
	rng    *rand.Rand

	next   uint64                 // id of the latest key
	ids    map[efaGrant]uint64    // of keys that were handed out
	peers  map[provider.Peer]*efa // the other side, by handle
	offer  []provider.Addr        // this Domain's in efaOffers
	out    map[provider.Peer]int  // outstanding writes and sends
	recvs  int                    // outstanding receives
	closed bool
	work   []efaWork // by token of the network, from 1
	free   []uint64
	pass   [1]provider.WR

	mu   sync.Mutex
	keys map[uint64]*efaKey // guarded by mu, as peers look their keys up. Local ones and grants
}

// efaKey is a key of the network under one that was handed out.
type efaKey struct {
	under provider.Key
	base  uint64 // virtual address
	mem   []byte // of a local key
	ended bool
}

// efaGrant is what a key was handed out for.
type efaGrant struct {
	under provider.Key
	base  uint64
}

// efaWork is an outstanding request.
type efaWork struct {
	token  uint64
	peer   provider.Peer
	op     provider.Op
	source []byte
	sum    uint32
}

// efaOffers are the Domains by the Addr that they offered.
var efaOffers sync.Map // string to *efa

func (e *efa) Caps() provider.Caps { return e.caps }

func (e *efa) tell(format string, args ...any) {
	e.report(fmt.Errorf("%w: "+format, append([]any{ErrEFA}, args...)...))
}

// address is where memory lies in the address space.
func address(b []byte) uint64 { return uint64(reflect.ValueOf(b).Pointer()) }

// mapped reports whether all whole pages of a span are in the address space: msync says ENOMEM when one is not, and does nothing else.
func mapped(b []byte) bool {
	page := unix.Getpagesize()
	skip := -int(address(b)) & (page - 1)
	return len(b) <= skip || !errors.Is(unix.Msync(b[skip:], unix.MS_ASYNC), unix.ENOMEM)
}

func (e *efa) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	if m.Phantom != 0 || m.DMABuf == nil && len(m.Bytes) > 0 && !mapped(m.Bytes) {
		return provider.Key{}, fmt.Errorf("register %d bytes: %w: %w: FI_MR_ALLOCATED: not all of it is mapped", m.Len(), provider.ErrInvalid, ErrEFA)
	}
	k, err := e.Domain.Register(m, acc)
	if err != nil {
		return k, err
	}
	key := &efaKey{under: k, mem: m.Bytes}
	if m.DMABuf != nil {
		key.base = m.DMABuf.Addr
	} else {
		key.base = address(m.Bytes)
	}
	return e.handOut(key), nil
}

// handOut gives a key of the network a number of our own.
func (e *efa) handOut(key *efaKey) provider.Key {
	g := efaGrant{key.under, key.base}
	id, known := e.ids[g]
	if !known {
		e.next++
		id = e.next % efaKeys
		e.ids[g] = id
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.keys[id] = key
	return provider.Key{ID: id, Base: key.base}
}

// find returns a key that was handed out, nil when there was none.
func (e *efa) find(id uint64) *efaKey {
	if e == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.keys[id]
}

// below is the key of the network for a local one, one that it does not know when we do not.
func (e *efa) below(k provider.Key) (provider.Key, *efaKey) {
	if key := e.find(k.ID); key != nil && key.mem != nil {
		return key.under, key
	}
	return provider.Key{ID: ^uint64(0)}, nil
}

func (e *efa) Deregister(k provider.Key) error {
	under, key := e.below(k)
	if key != nil && !key.ended && !mapped(key.mem) {
		e.tell("deregister key %#x: its memory of %d bytes is not mapped any more", k.ID, len(key.mem))
	}
	err := e.Domain.Deregister(under)
	if key != nil && err == nil {
		key.ended = true
	}
	return err
}

func (e *efa) Grant(k provider.Key, p provider.Peer, off, n uint64) (provider.Key, error) {
	under, key := e.below(k)
	g, err := e.Domain.Grant(under, p, off, n)
	if err != nil || key == nil {
		return g, err
	}
	return e.handOut(&efaKey{under: g, base: key.base + off}), nil
}

// Revoke implements [provider.Revoker].
func (e *efa) Revoke(k provider.Key, p provider.Peer) error {
	under, _ := e.below(k)
	return e.powered.Revoke(under, p)
}

func (e *efa) Offer() (provider.Peer, provider.Addr, error) {
	p, a, err := e.Domain.Offer()
	if err == nil {
		efaOffers.Store(string(a), e)
		e.offer = append(e.offer, a)
	}
	return p, a, err
}

func (e *efa) Connect(p provider.Peer, a provider.Addr, active bool) error {
	err := e.Domain.Connect(p, a, active)
	if other, ok := efaOffers.Load(string(a)); ok && err == nil {
		e.peers[p] = other.(*efa)
	}
	return err
}

// Post passes on what there is room for.
func (e *efa) Post(wrs []provider.WR) (int, error) {
	if e.closed {
		return e.Domain.Post(wrs)
	}
	for i := range wrs {
		ok, err := e.post(&wrs[i])
		if !ok || err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (e *efa) post(wr *provider.WR) (bool, error) {
	recv := wr.Op == provider.OpRecv
	if recv && e.recvs == e.caps.RecvDepth || !recv && e.out[wr.Peer] >= e.caps.PeerDepth {
		return false, nil
	}
	e.pass[0] = *wr
	w := &e.pass[0]
	under, key := e.below(provider.Key{ID: wr.LocalKey})
	w.LocalKey, w.LocalAddr = under.ID, under.Base
	if key != nil {
		w.LocalAddr += wr.LocalAddr - key.base
	}
	if wr.Op == provider.OpWrite || wr.Op == provider.OpWriteImm {
		if wr.Len > e.caps.MaxMsg {
			w.LocalKey, w.Len = ^uint64(0), 1 // the network ends it as StatusLocal, in its turn
		}
		e.translate(w)
	}
	slot := e.slot()
	w.Token = slot
	n, err := e.Domain.Post(e.pass[:])
	if n == 0 || err != nil {
		e.free = append(e.free, slot)
		return false, err
	}
	x := &e.work[slot-1]
	*x = efaWork{token: wr.Token, peer: wr.Peer, op: wr.Op}
	if recv {
		e.recvs++
		return true, nil
	}
	e.out[wr.Peer]++
	if key != nil && wr.Op <= provider.OpSend {
		if off := wr.LocalAddr - key.base; off <= uint64(len(key.mem)) && wr.Len <= uint64(len(key.mem))-off {
			x.source = key.mem[off:][:wr.Len]
			x.sum = checksum(x.source)
		}
	}
	return true, nil
}

// sampled bounds the bytes of one source that are looked at.
const sampled = 64 << 10

// checksum is that of both ends of a source.
func checksum(b []byte) uint32 {
	sum := crc32.Update(0, castagnoli, b[:min(len(b), sampled)])
	if len(b) > sampled {
		sum = crc32.Update(sum, castagnoli, b[len(b)-sampled:])
	}
	return sum
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// translate puts the network's key for the remote side of a write, or one that nobody was granted.
func (e *efa) translate(w *provider.WR) {
	if key := e.peers[w.Peer].find(w.RemoteKey); key != nil {
		w.RemoteKey, w.RemoteAddr = key.under.ID, key.under.Base+w.RemoteAddr-key.base
		return
	}
	w.RemoteKey = e.rng.Uint64() | 1<<63
}

func (e *efa) slot() uint64 {
	if n := len(e.free); n > 0 {
		s := e.free[n-1]
		e.free = e.free[:n-1]
		return s
	}
	e.work = append(e.work, efaWork{})
	return uint64(len(e.work))
}

// Poll gives requests back their tokens, and hides what an EFA does not tell.
func (e *efa) Poll(cs []provider.Completion) (int, error) {
	n, err := e.Domain.Poll(cs)
	kept := 0
	for _, c := range cs[:n] {
		switch c.Kind {
		case provider.KindWrite, provider.KindSend, provider.KindRecv:
			x := &e.work[c.Token-1]
			e.free = append(e.free, c.Token)
			c.Token = x.token
			if x.op == provider.OpRecv {
				e.recvs--
				break
			}
			e.out[x.peer]--
			if checksum(x.source) != x.sum {
				e.tell("the source of a %v of %d bytes, token %#x, changed before it completed: the adapter may read it until then", x.op, len(x.source), x.token)
			}
			x.source = nil
		case provider.KindRefused:
			continue
		case provider.KindPeerDown:
			delete(e.peers, c.Peer)
			delete(e.out, c.Peer)
		}
		cs[kept] = c
		kept++
	}
	return kept, err
}

// Close forgets what was offered.
func (e *efa) Close() error {
	e.closed = true
	for _, a := range e.offer {
		efaOffers.Delete(string(a))
	}
	return e.Domain.Close()
}
