//go:build cgo

package verbs_test

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/verbs"
)

// fakeLibrary builds testdata/fake.c once, with the compiler that this test was built with.
var fakeLibrary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "verbs")
	if err != nil {
		return "", err
	}
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "gcc"
	}
	lib := filepath.Join(dir, "libfakeverbs.so")
	if out, err := exec.Command(cc, "-O1", "-g", "-shared", "-fPIC", "-pthread", "-o", lib, "testdata/fake.c").CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", cc, err, out)
	}
	return lib, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if lib, err := fakeLibrary(); err == nil {
		_ = os.RemoveAll(filepath.Dir(lib))
	}
	os.Exit(code)
}

// fakeAddress is that of the interface of the i-th fake card.
func fakeAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 88, 0, byte(i + 1)}) }

// fakeSysfs is a tree with GID tables of two fake cards: as of an interface with one IPv4 address.
func fakeSysfs(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for i := range 2 {
		v4 := fakeAddress(i).As16()
		link := netip.MustParseAddr(fmt.Sprintf("fe80::%d", i+1)).As16()
		for j, g := range []struct {
			addr [16]byte
			kind string
		}{{link, "IB/RoCE v1"}, {link, "RoCE v2"}, {v4, "IB/RoCE v1"}, {v4, "RoCE v2"}} {
			gid := ""
			for k := 0; k < 16; k += 2 {
				gid += fmt.Sprintf(":%02x%02x", g.addr[k], g.addr[k+1])
			}
			writeGID(t, root, fmt.Sprintf("fake%d", i), j, gid[1:], g.kind, fmt.Sprintf("eth%d", i))
		}
	}
	return root
}

// writeGID writes one entry of a table as the kernel shows it.
func writeGID(t *testing.T, root, device string, index int, gid, kind, netdev string) {
	t.Helper()
	for name, text := range map[string]string{"gids": gid, "gid_attrs/types": kind, "gid_attrs/ndevs": netdev} {
		file := filepath.Join(root, "sys/class/infiniband", device, "ports/1", name, fmt.Sprint(index))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// fakeAddresses are those of the interfaces of the fake cards.
func fakeAddresses(netdev string) []netip.Addr {
	for i := range 2 {
		if netdev == fmt.Sprintf("eth%d", i) {
			return []netip.Addr{fakeAddress(i), netip.MustParseAddr(fmt.Sprintf("fe80::%d", i+1))}
		}
	}
	return nil
}

// onFake returns the provider over the fake libibverbs.
func onFake(t *testing.T, o verbs.Options) provider.Provider {
	t.Helper()
	return onFakeAt(t, o, fakeSysfs(t), fakeAddresses)
}

// onFakeAt is onFake with another sysfs and other addresses of interfaces.
func onFakeAt(t *testing.T, o verbs.Options, sys string, addresses func(netdev string) []netip.Addr) provider.Provider {
	t.Helper()
	lib, err := fakeLibrary()
	if err != nil {
		t.Fatalf("build the fake libibverbs: %v", err)
	}
	o.Library = lib
	return verbs.NewOn(o, sys, addresses)
}
