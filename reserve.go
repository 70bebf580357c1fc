package hawser

import (
	"fmt"
	"sync"

	"github.com/hawser-project/hawser/internal/imm"
)

// Reserved is a range of values that peers have agreed on: managed, and opened in blocks of one size.
type Reserved struct {
	e *Engine
	r *imm.Range

	mu     sync.Mutex
	blocks []*Block // open ones, nil for the others; guarded by mu
	closed bool     // guarded by mu
}

// Block is an open part of a Reserved range, with one counter per value.
type Block struct {
	home     *Reserved
	index    int
	counters []Counter
	marks    *imm.Marks // nil without a bell
}

// maxBlockBits: the counters of a block take some 250 bytes each.
const maxBlockBits = 16

// Reserve manages the 2^bits values from base, a multiple of 2^bits, in blocks of 2^blockBits values, which are closed at first. bits is
// at most 31, blockBits at most 16 and at least bits-20. holder is how others learn who has the values: ErrBusy, when ranges
// overlap, names it. ErrBusy also when somebody has asked for an open value of the range; what has arrived there unasked is stale.
// Every immediate that arrives is compared with every range: reserve few.
func (m *Imms) Reserve(holder string, base uint32, bits, blockBits int) (*Reserved, error) {
	fault := func(err error) (*Reserved, error) {
		return nil, fmt.Errorf("reserve %d bits of immediates from %#x: %w", bits, base, err)
	}
	if blockBits < 0 || blockBits > maxBlockBits {
		return fault(fmt.Errorf("block bits: %w: %d is not within 0 .. %d", ErrInvalid, blockBits, maxBlockBits))
	}
	r := &imm.Range{Holder: holder, Base: base, Bits: bits, BlockBits: blockBits}
	if err := r.Check(); err != nil {
		return fault(fmt.Errorf("%w: %w", ErrInvalid, err))
	}
	if err := m.hold(r); err != nil {
		return fault(err)
	}
	return &Reserved{e: m.e, r: r, blocks: make([]*Block, r.Blocks())}, nil
}

// Len is the number of blocks.
func (r *Reserved) Len() int { return len(r.blocks) }

// Open opens block i: its values count from 0. ErrBusy: it is open.
func (r *Reserved) Open(i int) (*Block, error) { return r.open(i, nil) }

func (r *Reserved) open(i int, bell *Bell) (*Block, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.closed || r.e.closing.Load():
		return nil, fmt.Errorf("open block %d of immediates %s: %w", i, r.r, ErrClosed)
	case i < 0 || i >= len(r.blocks):
		return nil, fmt.Errorf("open block of immediates %s: %w: %d is not within 0 .. %d", r.r, ErrInvalid, i, len(r.blocks)-1)
	case r.blocks[i] != nil:
		return nil, fmt.Errorf("open block %d of immediates %s: %w: it is open", i, r.r, ErrBusy)
	}
	ib := r.r.NewBlock(i, bell != nil)
	b := &Block{home: r, index: i, counters: make([]Counter, len(ib.Counters)), marks: ib.Marks}
	for j := range b.counters {
		b.counters[j].bell = bell
		b.counters[j].count(r.e, &ib.Counters[j], blockCounter)
	}
	r.r.Put(i, ib)
	r.blocks[i] = b
	return b, nil
}

// Close closes the blocks and makes the values open ones.
func (r *Reserved) Close() {
	r.mu.Lock()
	first, blocks := !r.closed, append([]*Block(nil), r.blocks...)
	r.closed = true
	r.mu.Unlock()
	for _, b := range blocks {
		if b != nil {
			b.Close()
		}
	}
	if first {
		r.e.imms.Release(r.r)
	}
}

// Len is the number of values.
func (b *Block) Len() int { return len(b.counters) }

// Counter is the counter of the block's value i, counted from 0.
func (b *Block) Counter(i int) *Counter { return &b.counters[i] }

// Changed says which of the 64 counters from 64*word on have counted since it was called last, a bit each. A counter is looked at
// afterwards, so nothing is missed. For blocks that Bell.Open opened.
// hot:
func (b *Block) Changed(word int) uint64 { return b.marks.Take(word) }

// Words is how many words Changed has.
func (b *Block) Words() int { return b.marks.Len() }

// Reach is the set of all counters of the block, for a wait for n on any or all of them.
func (b *Block) Reach(n uint64) []Reach {
	set := make([]Reach, len(b.counters))
	for i := range set {
		set[i] = Reach{&b.counters[i], n}
	}
	return set
}

// Close ends waits for the block's counters with ErrClosed. It may be opened anew, from 0. It must be quiet, as with Imms.Put.
func (b *Block) Close() {
	r := b.home
	r.mu.Lock()
	if r.blocks[b.index] == b {
		r.r.Put(b.index, nil)
		r.blocks[b.index] = nil
	}
	r.mu.Unlock()
	for i := range b.counters {
		b.counters[i].retire()
	}
}
