//go:build cgo

package ofi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
)

func openSHM(t *testing.T) provider.Domain {
	t.Helper()
	p := New(Options{Provider: "shm"})
	devs, err := p.Devices(context.Background())
	if errors.Is(err, provider.ErrUnavailable) && os.Getenv("HAWSER_TEST_COUNTS") == "" {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	bell, err := cpu.NewParker()
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Open(context.Background(), devs[0], provider.Config{Bell: bell})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(d.Close(), bell.Close()); err != nil {
			t.Error(err)
		}
	})
	return d
}

// TestSegmentsOfTheDeadAreRemoved: a process that is killed leaves segments, and the next Open removes them, and no others.
func TestSegmentsOfTheDeadAreRemoved(t *testing.T) {
	const env = "HAWSER_OFI_SEGMENT_CHILD"
	if os.Getenv(env) != "" {
		openSHM(t)
		if err := unix.Kill(os.Getpid(), unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		select {}
	}
	openSHM(t) // ours stay
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe, "-test.run=^TestSegmentsOfTheDeadAreRemoved$")
	cmd.Env = append(os.Environ(), env+"=1")
	if err := cmd.Run(); err == nil {
		t.Fatal("the child was not killed")
	}
	left := func(pid int) int {
		all, err := filepath.Glob(fmt.Sprintf("/dev/shm/%d:*", pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if left(cmd.Process.Pid) == 0 {
		t.Fatal("the killed process left nothing: nothing is tested")
	}
	mine := left(os.Getpid())
	openSHM(t)
	if n := left(cmd.Process.Pid); n != 0 {
		t.Errorf("%d segments of a dead process are left", n)
	}
	if n := left(os.Getpid()); n <= mine || mine == 0 {
		t.Errorf("%d segments of our own, %d before", n, mine)
	}
}

func TestSweepSparesWhatIsNotItsOwn(t *testing.T) {
	dir := t.TempDir()
	const dead = 1<<22 - 1 // above any process of this host, or nearly so
	for _, name := range []string{"notes.txt", fmt.Sprintf("%d:0:0", os.Getpid()), "1:2", fmt.Sprintf("%d:0:x", dead)} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := sweep(dir); n != 0 {
		t.Errorf("%d files were removed", n)
	}
}

func FuzzOffer(f *testing.F) {
	o := offer{kind: 1, handle: 0x10002, ctl: []byte("control"), data: []byte("data")}
	f.Add([]byte(o.addr()))
	f.Add([]byte{addrVersion})
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := parseOffer(b)
		if err != nil {
			if !errors.Is(err, provider.ErrInvalid) {
				t.Error(err)
			}
			return
		}
		if got := o.addr(); string(got) != string(b) {
			t.Errorf("%x reads as %x", b, got)
		}
	})
}
