package mem

import (
	"os"
	"runtime"
	"testing"
)

// Near changes where pages come from only for its function, and only where there is such a node.
func TestNearPrefersItsNodeMeanwhile(t *testing.T) {
	runtime.LockOSThread() // policies are a thread's
	defer runtime.UnlockOSThread()
	mode, mask, ok := policy()
	var inside int
	var where nodeMask
	for _, node := range []int{-1, maxNodes, maxNodes - 1, 0} {
		ran := false
		Near(node, func() {
			ran = true
			inside, where, _ = policy()
			s, err := New(1<<20, Shared)
			if err != nil {
				t.Fatal(err)
			}
			s.Bytes()[1<<19] = 1
			if err := s.Free(); err != nil {
				t.Fatal(err)
			}
		})
		if !ran {
			t.Fatalf("node %d: the function was not called", node)
		}
		if after, m, _ := policy(); after != mode || m != mask {
			t.Fatalf("node %d: policy %d %v afterwards, %d %v before", node, after, m[0], mode, mask[0])
		}
		if node != 0 && inside != mode {
			t.Fatalf("node %d: policy %d inside, %d before", node, inside, mode)
		}
	}
	_, err := os.Stat("/sys/devices/system/node/node0")
	if !ok || err != nil {
		t.Logf("the kernel has no policies here (%v): Near prefers nothing", err)
		return
	}
	if inside != preferNode || where[0] != 1 {
		t.Fatalf("policy %d %v inside, want node 0 preferred", inside, where[0])
	}
}

func TestWordsAreWhereTheirBytesAre(t *testing.T) {
	s, err := New(4096, Private)
	if err != nil {
		t.Fatal(err)
	}
	s.Word(4088).Store(0x0102030405060708)
	if s.Bytes()[4088] != 8 || s.Bytes()[4095] != 1 {
		t.Fatalf("word is % x", s.Bytes()[4088:])
	}
	if got, first := s.Addr(4088), s.Addr(0); got != first+4088 || first%4096 != 0 {
		t.Fatalf("the span is at %#x, its word at %#x", first, got)
	}
	for _, off := range []uint64{4, 4092, 4096, 1 << 63} {
		func() {
			defer func() {
				if recover() == nil {
					t.Fatalf("a word at %d", off)
				}
			}()
			s.Word(off)
		}()
	}
	if err := s.Free(); err != nil {
		t.Fatal(err)
	}
}
