package hawser

import (
	"errors"
	"testing"
)

// late is a write that has seen nothing wrong and has not reached the worker yet, over a network that refuses nothing.
func late(t *testing.T) (o *op, owner *Engine, src, dst *Region) {
	t.Helper()
	a, b := openEngine(t, Options{Providers: providers(&mock{})}), openEngine(t, Options{Providers: providers(&mock{})})
	alloc := func(e *Engine) *Region {
		r, err := e.Alloc(64, MemOptions{Heap: true})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	src, dst = alloc(a), alloc(b)
	rem, err := a.Import(t.Context(), dst.Descriptor(dst.All(), RightWrite))
	if err != nil {
		t.Fatal(err)
	}
	o, err = a.takeOp("write")
	if err == nil {
		err = o.fillWrite(&Write{Src: src.All(), Dst: rem.All()})
	}
	if err != nil {
		t.Fatal(err)
	}
	o.transfer = a.newTransfer()
	return o, b, src, dst
}

// arrives hands the write to the worker and returns how it ends.
func arrives(t *testing.T, o *op) error {
	t.Helper()
	tr := o.transfer
	if err := o.e.submit(o); err != nil {
		t.Fatal(err)
	}
	return tr.Wait(t.Context())
}

// A write that comes to the worker after its region was taken back is not written, although it looked before.
func TestWriteThatComesAfterRevoke(t *testing.T) {
	o, b, _, dst := late(t)
	b.mu.Lock()
	p := b.peers[o.e.id]
	b.mu.Unlock()
	if err := dst.Revoke(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := arrives(t, o); !errors.Is(err, ErrStale) {
		t.Fatalf("written to a region that was taken back: %v", err)
	}
}

// A write that comes to the worker after its source was closed is not read, although it looked before.
func TestWriteThatComesAfterCloseOfItsSource(t *testing.T) {
	o, _, src, _ := late(t)
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	if err := arrives(t, o); !errors.Is(err, ErrClosed) {
		t.Fatalf("read from a region that is closed: %v", err)
	}
}
