package hawser_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
)

// mapped is memory that no engine made.
func mapped(t testing.TB, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(b); err != nil {
			t.Error(err)
		}
	})
	return b
}

func register(t testing.TB, e *hawser.Engine, b []byte, o hawser.RegisterOptions) *hawser.Region {
	t.Helper()
	r, err := e.Register(b, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Every operation works on foreign memory as on memory of Alloc, in any mixture, and Close leaves the memory to its owner.
func TestForeignMemoryIsMemory(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		const size, page = 1 << 20, 4096
		before, after := mapped(t, size+3), mapped(t, size+3) // made before the engines, so that they outlive them
		a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
		// Not aligned, and registered twice in part.
		src, dst := register(t, a, before[3:], hawser.RegisterOptions{}), register(t, b, after[1:size+1], hawser.RegisterOptions{})
		half := register(t, b, after[1+size/2:size+1], hawser.RegisterOptions{})
		if &dst.Bytes()[0] != &after[1] || dst.Len() != size {
			t.Fatalf("the region has %d bytes at %p, want %d at %p", dst.Len(), &dst.Bytes()[0], size, &after[1])
		}
		fill(src.Bytes(), 1)
		rem, second, own := importRegion(t, a, dst), importRegion(t, a, half), importRegion(t, a, w.alloc(t, b, size))

		tr, err := a.Write(hawser.Write{Src: src.All(), Dst: rem.All(), Imm: hawser.Imm(1), Parts: 7})
		wait(t, tr, err)
		reach(t, b.Counter(1), 7)
		same(t, "a write", dst.Bytes(), src.Bytes())

		n := uint32(size / page)
		from, to := make([]uint32, n), make([]uint32, n)
		for i := range n {
			from[i], to[i] = i, n-1-i
		}
		tr, err = a.WritePages(hawser.WritePages{
			PageLen: page, Src: hawser.Pages{Region: src, Indices: from, Stride: page}, Dst: hawser.RemotePages{Remote: rem, Indices: to, Stride: page},
			Imm: hawser.Imm(2),
		})
		wait(t, tr, err)
		reach(t, b.Counter(2), uint64(n))
		for i := range n {
			same(t, "a page", dst.Bytes()[to[i]*page:][:page], src.Bytes()[from[i]*page:][:page])
		}

		for i := range uint64(50) { // by turns to memory that peers copy into and memory that they do not
			for _, r := range []*hawser.Remote{rem, own, second} {
				tr, err := a.Write(hawser.Write{Src: src.Slice(i, 1000), Dst: r.Slice(i*1000, 1000), Imm: hawser.Imm(3)})
				wait(t, tr, err)
			}
		}
		reach(t, b.Counter(3), 150)
		same(t, "the last write", half.Bytes()[49_000:50_000], src.Bytes()[49:1049])

		if err := dst.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Write(hawser.Write{Src: src.Slice(0, 8), Dst: rem.Slice(0, 8)}); err == nil {
			t.Error("a write to a region that was closed was accepted")
		}
		after[1] = 7 // still ours
		tr, err = a.Write(hawser.Write{Src: src.Slice(0, 8), Dst: second.Slice(0, 8), Imm: hawser.Imm(4)})
		wait(t, tr, err)
		reach(t, b.Counter(4), 1)
	})
}

// A file that is mapped for reading is a source and nothing else.
func TestReadOnlyMemoryIsASource(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		name := filepath.Join(t.TempDir(), "weights")
		want := make([]byte, 100_001)
		fill(want, 2)
		if err := os.WriteFile(name, want, 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, len(want), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) }) // ends with the process otherwise
		p := w.pair(t, 1, 1, uint64(len(want)))
		if _, err := p.a.Register(b, hawser.RegisterOptions{}); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("memory that cannot be written to was registered for writing: %v", err)
		}
		src := register(t, p.a, b, hawser.RegisterOptions{ReadOnly: true})
		tr, err := p.a.Write(hawser.Write{Src: src.All(), Dst: p.rem.All(), Imm: hawser.Imm(1)})
		wait(t, tr, err)
		reach(t, p.b.Counter(1), 1)
		same(t, "a write from a file", p.dst.Bytes(), want)
		if _, err := p.b.Import(testContext(t), src.Descriptor(src.All(), hawser.RightWrite)); !errors.Is(err, hawser.ErrAccess) {
			t.Errorf("import of memory that is read only: %v, want ErrAccess", err)
		}
		if err := p.a.Counter(9).Mirror(src.Slice(0, 8)); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("mirror into memory that is read only: %v, want ErrInvalid", err)
		}
	})
}

// Memory that the garbage collector may take is refused, and so is memory that is not there.
func TestForeignMemoryMustBeThere(t *testing.T) {
	e := newWorld(t, "shm").engine(t, 0, 1)
	gone := mapped(t, 1<<16)
	hole := mapped(t, 3<<16)
	if err := unix.Mprotect(hole[1<<16:2<<16], unix.PROT_NONE); err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"empty": nil, "Go slice": make([]byte, 1<<20), "small Go slice": make([]byte, 1), "with a hole": hole, "the hole": hole[1<<16 : 2<<16],
	} {
		if _, err := e.Register(b, hawser.RegisterOptions{}); !errors.Is(err, hawser.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	if _, err := e.Register(gone, hawser.RegisterOptions{}); err != nil {
		t.Error(err)
	}
}

// Revoke of foreign memory keeps a live peer out, and leaves its other memory alone.
func TestForeignMemoryIsTakenBack(t *testing.T) {
	worlds(t, func(t *testing.T, w *world) {
		b1, b2 := mapped(t, 1<<16), mapped(t, 1<<16)
		p := w.pair(t, 1, 1, 1<<16)
		taken, kept := register(t, p.b, b1, hawser.RegisterOptions{}), register(t, p.b, b2, hawser.RegisterOptions{})
		rem, other := importRegion(t, p.a, taken), importRegion(t, p.a, kept)
		tr, err := p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.All(), Imm: hawser.Imm(1)})
		wait(t, tr, err)
		reach(t, p.b.Counter(1), 1)
		from, err := p.b.Connect(testContext(t), p.a.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if err := taken.Revoke(testContext(t), from); err != nil {
			t.Fatal(err)
		}
		if tr, err = p.a.Write(hawser.Write{Src: p.src.All(), Dst: rem.All()}); err == nil {
			err = tr.Wait(testContext(t))
		}
		if !errors.Is(err, hawser.ErrStale) {
			t.Errorf("a write to memory that was taken back: %v, want ErrStale", err)
		}
		tr, err = p.a.Write(hawser.Write{Src: p.src.All(), Dst: other.All(), Imm: hawser.Imm(2)})
		wait(t, tr, err)
		reach(t, p.b.Counter(2), 1)
		again := importRegion(t, p.a, taken)
		tr, err = p.a.Write(hawser.Write{Src: p.src.All(), Dst: again.All(), Imm: hawser.Imm(3)})
		wait(t, tr, err)
		reach(t, p.b.Counter(3), 1)
	})
}
