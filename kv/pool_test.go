package kv

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
)

func TestPoolLendsEachPageOnce(t *testing.T) {
	const pages = 50
	p, err := NewPool(pages, 3)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(4, 4))
	held := map[uint64][]uint32{}
	owned := map[uint32]uint64{}
	for owner := uint64(1); owner < 2000; owner++ {
		n := r.IntN(20)
		got, err := p.Reserve(n, owner)
		if free := pages - len(owned); n > free {
			if !errors.Is(err, hawser.ErrLimit) || p.Free() != free {
				t.Fatalf("reserve %d of %d: got %v, %d free; want ErrLimit and nothing taken", n, free, err, p.Free())
			}
		} else if err != nil || len(got) != n {
			t.Fatalf("reserve %d of %d: got %v, %v", n, free, got, err)
		}
		for _, i := range got {
			if owned[i] != 0 {
				t.Fatalf("page %d belongs to %d and %d", i, owned[i], owner)
			}
			owned[i] = owner
		}
		held[owner] = got
		for o, list := range held {
			if r.IntN(3) == 0 {
				if err := p.Return(list, o); err != nil {
					t.Fatal(err)
				}
				for _, i := range list {
					delete(owned, i)
				}
				delete(held, o)
			}
		}
	}
	if p.Free() != pages-len(owned) {
		t.Errorf("%d free, want %d", p.Free(), pages-len(owned))
	}
}

func TestPoolTakesBackOnlyFromTheOwner(t *testing.T) {
	p, err := NewPool(10, 1)
	if err != nil {
		t.Fatal(err)
	}
	a, _ := p.Reserve(4, 1)
	b, _ := p.Reserve(4, 2)
	for name, pages := range map[string][]uint32{
		"another's": b, "one of another's": append(slices.Clone(a), b[0]), "twice": append(slices.Clone(a), a[0]), "no page": {99},
	} {
		if err := p.Return(pages, 1); !errors.Is(err, hawser.ErrInvalid) || p.Free() != 2 {
			t.Errorf("%s: got %v, %d free; want ErrInvalid and nothing taken back", name, err, p.Free())
		}
	}
	if err := errors.Join(p.Return(a, 1), p.Return(b, 2)); err != nil || p.Free() != 10 {
		t.Errorf("got %v, %d free", err, p.Free())
	}
	if err := p.Return(a, 1); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("returned a second time: got %v, want ErrInvalid", err)
	}
	if _, err := p.Reserve(1, 0); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("owner 0: got %v, want ErrInvalid", err)
	}
}

func TestPoolScattersPages(t *testing.T) {
	p, err := NewPool(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	pages, _ := p.Reserve(500, 1)
	if n := len(extentsOf(pages)); n < 450 {
		t.Errorf("500 pages lie in %d runs, want nearly 500", n)
	}
	q, _ := NewPool(1000, 1)
	if again, _ := q.Reserve(500, 1); !slices.Equal(again, pages) {
		t.Error("the seed does not decide the order")
	}
	for _, n := range []int{0, -1, MaxPages + 1} {
		if _, err := NewPool(n, 1); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("pool of %d pages: got %v, want ErrInvalid", n, err)
		}
	}
}

// TestTakenImmediatesFailTheRequest: somebody uses the values that the engine is to lend. No request can begin, and none waits.
func TestTakenImmediatesFailTheRequest(t *testing.T) {
	p := newPrefillSide(t, "shm", small, 40, nil)
	d := newDecodeSide(t, "shm", small, 40)
	d.eng.Counter(0xfff00005)
	if err := d.try(limit(t), p.eng.Addr(), "r", 30); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	if n := d.mem.pool.Free(); n != 40 {
		t.Errorf("%d pages free, want 40", n)
	}
}
