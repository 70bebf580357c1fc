//go:build cgo

package ofi

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/dl"
	"github.com/hawser-project/hawser/provider"
)

// asked is what testdata/dmabuf.c remembers.
type asked struct {
	calls, closed, flags, fd, offset, n, base, access, key, iovCount, iface uint64
}

// fakeRegistrar takes the place of the network's registration of memory of devices.
func fakeRegistrar(t *testing.T, d *domain) *asked {
	t.Helper()
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	lib := filepath.Join(t.TempDir(), "libdmabuf.so")
	if out, err := exec.Command(cc, "-O1", "-shared", "-fPIC", "-o", lib, "testdata/dmabuf.c").CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	table := new([2]unsafe.Pointer)
	if _, err := dl.Load(unsafe.Pointer(table), []string{"regattr", "asked"}, lib); err != nil {
		t.Fatal(err)
	}
	ops := d.rail.raw.domain.mr
	before := ops.regattr
	ops.regattr = (*[0]byte)(table[0])
	t.Cleanup(func() { ops.regattr = before })
	return (*asked)(table[1])
}

// Memory of a device is registered by its descriptor: the whole for our own writes, a part for a peer's. The caller may close its
// descriptor at once, and ours ends with the registration.
func TestDeviceMemory(t *testing.T) {
	d := openEnd(t, New(Options{Provider: "tcp"}))
	fd, err := unix.MemfdCreate("device", 0)
	if err != nil {
		t.Fatal(err)
	}
	m := provider.Memory{DMABuf: &provider.DMABuf{FD: fd, Offset: 0x3000, Addr: 0x7F0000002000, Len: 0x8000}}
	if _, err := d.Register(m, provider.AccessRemoteWrite); !errors.Is(err, provider.ErrUnsupported) {
		t.Fatalf("a network in software takes it: %v", err)
	}
	seen := fakeRegistrar(t, d.domain)
	d.caps.DMABuf = true // as an adapter with memory of devices says
	key, err := d.Register(m, provider.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	if own := int(seen.fd); own == fd || !sameFile(t, own, fd) {
		t.Errorf("descriptor %d was passed on, want another one of the file of %d", own, fd)
	}
	whole := asked{calls: 1, flags: 1 << 40, fd: seen.fd, offset: 0x3000, n: 0x8000, base: 0x7F0000002000, access: accessLocal, key: seen.key, iovCount: 1, iface: 1}
	if *seen != whole {
		t.Errorf("asked for %+v, want %+v", *seen, whole)
	}
	if key.Base != 0x7F0000002000 {
		t.Errorf("the memory begins at %#x", key.Base)
	}
	if err := unix.Close(fd); err != nil {
		t.Fatal(err)
	}
	r := &d.regs[uint32(key.ID)]
	part, err := d.pin(r, 0x1000, 0x2000, accessRemote)
	if err != nil {
		t.Fatal(err)
	}
	if seen.offset != 0x4000 || seen.n != 0x2000 || seen.base != 0x7F0000003000 || seen.access != accessRemote || part.key != 0xD0 {
		t.Errorf("a part: asked for %+v, key %#x", *seen, part.key)
	}
	if err := d.rail.deregister(part); err != nil {
		t.Fatal(err)
	}
	own := int(seen.fd)
	if err := d.Deregister(key); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(own), unix.F_GETFD, 0); seen.closed != 2 || !errors.Is(err, unix.EBADF) {
		t.Errorf("%d of 2 registrations ended; our descriptor: %v", seen.closed, err)
	}
}

func sameFile(t *testing.T, a, b int) bool {
	t.Helper()
	var x, y unix.Stat_t
	if err := errors.Join(unix.Fstat(a, &x), unix.Fstat(b, &y)); err != nil {
		t.Fatal(err)
	}
	return x.Dev == y.Dev && x.Ino == y.Ino
}
