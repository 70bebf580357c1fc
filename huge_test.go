package hawser_test

import (
	"errors"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/mem/memtest"
)

// Memory in huge pages is memory like any other, also where its length is no multiple of a page, on either side.
func TestHugePagesOverEveryNetwork(t *testing.T) {
	const size = 4<<20 + 4096 + 1
	memtest.Reserve(t, 6)
	worlds(t, func(t *testing.T, w *world) {
		p := &pair{a: w.engine(t, 0, 1), b: w.engine(t, 1, 1)}
		for _, tc := range []struct {
			name     string
			src, dst mem.Huge
		}{{"both", mem.Huge2MiB, mem.Huge2MiB}, {"source", mem.Huge2MiB, mem.SmallPages}, {"destination", mem.SmallPages, mem.Huge2MiB}} {
			var err error
			if p.src, err = p.a.Alloc(size, hawser.MemOptions{Huge: tc.src}); err != nil {
				t.Fatal(err)
			}
			if p.dst, err = p.b.Alloc(size, hawser.MemOptions{Huge: tc.dst}); err != nil {
				t.Fatal(err)
			}
			rem, err := p.a.Import(testContext(t), p.dst.Descriptor(p.dst.All(), hawser.RightWrite))
			if err != nil {
				t.Fatal(err)
			}
			fill(p.src.Bytes(), 1)
			tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.All()})
			wait(t, tr, err)
			same(t, tc.name, p.dst.Bytes(), p.src.Bytes())
			if _, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.Slice(1, size)}); !errors.Is(err, hawser.ErrInvalid) {
				t.Errorf("%s: a write beyond the end, which is inside of the last page: %v", tc.name, err)
			}
			if err := errors.Join(p.src.Close(), p.dst.Close()); err != nil {
				t.Error(err)
			}
		}
	})
}

// Without such pages Alloc says what is missing, and with a wrong wish what is wrong.
func TestHugePagesThatAreNotThere(t *testing.T) {
	e := newWorld(t, "shm").engine(t, 0, 1)
	_, err := e.Alloc(1<<45, hawser.MemOptions{Huge: mem.Huge2MiB})
	var short *mem.HugePagesError
	if !errors.As(err, &short) || !errors.Is(err, hawser.ErrMemory) || short.Need != 1<<24 {
		t.Error(err)
	}
	for _, o := range []hawser.MemOptions{{Heap: true, Huge: mem.Huge2MiB}, {Huge: mem.Huge1GiB + 1}} {
		if _, err := e.Alloc(1, o); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
