package imm

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
)

// MaxBlocks is how many blocks a Range may have: each costs 8 bytes while it is closed.
const MaxBlocks = 1 << 20

// ErrStale says that the value of an immediate is managed and not open.
var ErrStale = errors.New("the immediate's value is not open")

// Range is 2^Bits managed values from Base, a multiple of 2^Bits. Its values are opened one by one with Table.Open, or, when BlockBits
// is not negative, in blocks of 2^BlockBits whose counters lie side by side.
type Range struct {
	Holder    string // whom to name when somebody else wants the values
	Base      uint32
	Bits      int
	BlockBits int

	blocks []atomic.Pointer[Block]
	opened atomic.Int64 // blocks that are open
}

// maxBits: with 32 bits there would be no open value left, and a length would not fit its type.
const maxBits = 31

// Block is a part of a Range that is open.
type Block struct {
	Counters []Counter
	Marks    *Marks // nil: none
}

func (r *Range) String() string { return fmt.Sprintf("%#x .. %#x", r.Base, r.last()) }

func (r *Range) last() uint32 { return r.Base + 1<<r.Bits - 1 }

// Has reports whether imm is in the range.
func (r *Range) Has(imm uint32) bool { return imm>>r.Bits == r.Base>>r.Bits }

// Check reports what is wrong with the numbers of r.
func (r *Range) Check() error {
	switch {
	case r.Bits < 0 || r.Bits > maxBits:
		return fmt.Errorf("%d bits are not within 0 .. %d", r.Bits, maxBits)
	case r.Base&(1<<r.Bits-1) != 0:
		return fmt.Errorf("base %#x is not a multiple of 2^%d", r.Base, r.Bits)
	case r.BlockBits > r.Bits:
		return fmt.Errorf("blocks of 2^%d values do not fit into 2^%d", r.BlockBits, r.Bits)
	case r.BlockBits >= 0 && r.Bits-r.BlockBits > 20: // MaxBlocks
		return fmt.Errorf("2^%d blocks, at most %d", r.Bits-r.BlockBits, MaxBlocks)
	}
	return nil
}

// Blocks is the number of blocks, open or not.
func (r *Range) Blocks() int { return len(r.blocks) }

// NewBlock makes the counters of block i, which Put then opens. With marks Add reports every arrival.
func (r *Range) NewBlock(i int, marks bool) *Block {
	b := &Block{Counters: make([]Counter, 1<<r.BlockBits)}
	base := r.Base + uint32(i)<<r.BlockBits
	if marks {
		b.Marks = &Marks{base: base, words: make([]atomic.Uint64, (len(b.Counters)+63)/64)}
	}
	for j := range b.Counters {
		b.Counters[j].marks = b.Marks
		b.Counters[j].init(base + uint32(j))
	}
	return b
}

// Put opens block i, or closes it when b is nil. It returns the block that was open before: Put changes nothing when there are two.
func (r *Range) Put(i int, b *Block) *Block {
	if b == nil {
		old := r.blocks[i].Swap(nil)
		if old != nil {
			r.opened.Add(-1)
		}
		return old
	}
	if r.blocks[i].CompareAndSwap(nil, b) {
		r.opened.Add(1)
		return nil
	}
	return r.blocks[i].Load()
}

// find is the counter of a value of the range, nil when its block is not open.
// hot:
func (r *Range) find(imm uint32) *Counter {
	b := r.blocks[(imm-r.Base)>>r.BlockBits].Load()
	if b == nil {
		return nil
	}
	return &b.Counters[imm&(1<<r.BlockBits-1)]
}

// InUse says why a range cannot be held: another one overlaps, or somebody has asked for one of its values.
type InUse struct {
	Holder *Range   // nil when it is
	Value  *Counter // an open value that somebody has asked for
}

func (e *InUse) Error() string {
	if e.Holder != nil {
		return fmt.Sprintf("values %s are held by %s", e.Holder, e.Holder.Holder)
	}
	return fmt.Sprintf("value %#x is in use as an open value", e.Value.Imm)
}

// Hold makes the values of r managed, as far as Check and InUse allow. What has arrived for them so far, with nobody asking, is stale.
// The second result is how many those were.
func (t *Table) Hold(r *Range) (stale uint64, err error) {
	if err := r.Check(); err != nil {
		return 0, err
	}
	if r.BlockBits >= 0 {
		r.blocks = make([]atomic.Pointer[Block], 1<<(r.Bits-r.BlockBits))
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, x := range t.ranges {
		if x.Has(r.Base) || r.Has(x.Base) {
			return 0, &InUse{Holder: x}
		}
	}
	var early []*Counter
	for c := range t.all() {
		if !r.Has(c.Imm) {
			continue
		}
		if c.creator == nil {
			return 0, &InUse{Value: c}
		}
		early = append(early, c)
	}
	t.ranges = append(t.ranges, r)
	t.publish()
	for _, c := range early {
		t.remove(c)
		stale += c.n.Load()
	}
	return stale, nil
}

// Release makes the values of r open values again. Its blocks, and the values that were opened one by one, are closed before.
func (t *Table) Release(r *Range) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ranges = slices.DeleteFunc(t.ranges, func(x *Range) bool { return x == r })
	t.publish()
}

// publish shows the ranges with blocks to Add. Needs mu.
func (t *Table) publish() {
	var dense []*Range
	for _, r := range t.ranges {
		if r.BlockBits >= 0 {
			dense = append(dense, r)
		}
	}
	if dense == nil {
		t.dense.Store(nil) // then Add need not look at all
		return
	}
	t.dense.Store(&dense)
}

// Open opens one value of a range without blocks. The value must not be open.
func (t *Table) Open(imm uint32) *Counter {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.insert(imm)
}

// managed reports whether a value lies in a range. Needs mu.
func (t *Table) managed(imm uint32) bool {
	return slices.ContainsFunc(t.ranges, func(r *Range) bool { return r.Has(imm) })
}
