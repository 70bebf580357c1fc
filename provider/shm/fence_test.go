package shm

import (
	"bytes"
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// waitStopped waits until every thread of a process has stopped.
func waitStopped(t *testing.T, pid int) {
	t.Helper()
	until(t, "the child stops in the middle of its copy", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		// The state follows the name, which is in brackets.
		return bytes.Contains(stat, []byte(") T"))
	})
}

// frozen is a side with a child that has stopped in the middle of a copy into its memory.
func frozen(t *testing.T) (s *side, c *child, dst []byte, k provider.Key) {
	const size = 64 << 10
	s = newSide(t)
	span, k := s.memory(size)
	c = startChild(t, s, roleFreeze, k, size)
	waitStopped(t, c.Pid())
	if dst = span.Bytes(); dst[0] != 0xff || dst[size-1] != 0 {
		t.Fatalf("the child is not in the middle: the first byte is %#x, the last %#x", dst[0], dst[size-1])
	}
	return s, c, dst, k
}

// fence calls Fence and returns its outcome.
func (s *side) fence() provider.Completion {
	s.t.Helper()
	if err := s.d.Fence(s.peer); err != nil {
		s.t.Fatal(err)
	}
	return s.wait(provider.KindFenced)
}

func (s *side) wantUnfenced(k provider.Key) {
	s.t.Helper()
	start := time.Now()
	c := s.fence()
	if c.Status != provider.StatusUnfenced || c.Detail != 1+regionIndex(k.ID) {
		s.t.Fatalf("fence of a writer that is in the middle of a copy into region %d: %+v, want unfenced and its number", regionIndex(k.ID), c)
	}
	if took := time.Since(start); took < fenceBound {
		s.t.Errorf("it took %v to find that out, want at least %v", took, fenceBound)
	}
}

func TestFenceOfAFrozenWriterThatGoesOn(t *testing.T) {
	s, c, dst, k := frozen(t)
	s.wantUnfenced(k)
	s.wait(provider.KindPeerDown)
	s.wantUnfenced(k)
	if err := c.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	out := s.fence()
	for out.Status == provider.StatusUnfenced {
		out = s.fence()
	}
	if out.Status != provider.StatusOK {
		t.Fatalf("fence of the writer that went on ended with %v", out.Status)
	}
	clear(dst)
	if err := c.Stop(hangGuard); err != nil { // it checks that its write was flushed and that it sees KindPeerDown
		t.Error(err)
	}
	if !bytes.Equal(dst, make([]byte, len(dst))) {
		t.Error("memory changed after the fence")
	}
	if c, ok := s.find(provider.KindImm); ok {
		t.Errorf("a write that was fenced delivered %+v", c)
	}
}

func TestFenceOfAFrozenWriterThatDies(t *testing.T) {
	s, c, _, k := frozen(t)
	s.wantUnfenced(k)
	if err := c.Signal(unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if out := s.fence(); out.Status != provider.StatusOK {
		t.Fatalf("fence of a dead writer ended with %v", out.Status)
	}
}

// TestFenceWaitsForTheChunk: a writer that runs ends its chunk and is fenced without a second call; no immediate of the chunk comes.
func TestFenceWaitsForTheChunk(t *testing.T) {
	a, b := newPair(t)
	_, src := a.memory(1 << 20)
	span, dst := b.memory(1 << 20)
	key := b.grant(dst)
	inside, goOn := make(chan bool), make(chan bool)
	a.d.midCopy = func() { inside <- true; <-goOn }
	joined := make(chan bool)
	go func() {
		defer close(joined)
		a.post(provider.WR{Op: provider.OpWriteImm, LocalKey: src.ID, RemoteKey: key.ID, Len: 1 << 20})
	}()
	<-inside
	if err := b.d.Fence(b.peer); err != nil {
		t.Fatal(err)
	}
	for range 1000 {
		b.poll()
	}
	if c, ok := b.find(provider.KindFenced); ok {
		t.Fatalf("fenced in the middle of a copy: %+v", c)
	}
	goOn <- true
	out := b.wait(provider.KindFenced)
	for out.Status == provider.StatusUnfenced { // the machine is so busy that the writer had no turn
		out = b.fence()
	}
	if out.Status != provider.StatusOK {
		t.Fatalf("fence ended with %v", out.Status)
	}
	clear(span.Bytes())
	<-joined
	if c := a.wait(provider.KindWrite); c.Status != provider.StatusFlushed {
		t.Errorf("the write ended with %v, want flushed", c.Status)
	}
	if !bytes.Equal(span.Bytes(), make([]byte, 1<<20)) {
		t.Error("memory changed after the fence")
	}
	if c := a.wait(provider.KindPeerDown); c.Status != provider.StatusPeerDown {
		t.Errorf("the writer's KindPeerDown has status %v, want peer-down", c.Status)
	}
	if c, ok := b.find(provider.KindImm); ok {
		t.Errorf("the write that was fenced delivered %+v", c)
	}
}

// TestWriterThatPublishesTooLate: a reader that does not wait for the slot is down before the immediates are published. They must
// not end with ok, because nobody has counted them.
func TestWriterThatPublishesTooLate(t *testing.T) {
	a, b := newPair(t)
	_, src := a.memory(4096)
	_, dst := b.memory(4096)
	key := b.grant(dst)
	a.d.looked = func() {
		if err := b.d.Disconnect(b.peer); err != nil {
			t.Fatal(err)
		}
		b.wait(provider.KindPeerDown)
	}
	good := provider.WR{Op: provider.OpWriteImm, LocalKey: src.ID, RemoteKey: key.ID, Len: 4096}
	refused := good
	refused.RemoteAddr = 1
	a.post(good, refused, good)
	want := []provider.Status{provider.StatusFlushed, provider.StatusAccess, provider.StatusFlushed}
	for i, st := range want {
		if c := a.wait(provider.KindWrite); c.Status != st {
			t.Errorf("write %d ended with %v, want %v", i, c.Status, st)
		}
	}
	if c, ok := b.find(provider.KindImm); ok {
		t.Errorf("delivered after the reader had emptied its rings: %+v", c)
	}
}

// TestDeregisterInTheMiddleOfACopy: the write ends with StatusAccess and its immediate does not come.
func TestDeregisterInTheMiddleOfACopy(t *testing.T) {
	a, b := newPair(t)
	_, src := a.memory(4096)
	_, dst := b.memory(4096)
	key := b.grant(dst)
	a.d.midCopy = func() {
		if err := b.d.Deregister(dst); err != nil {
			t.Error(err)
		}
	}
	a.post(provider.WR{Op: provider.OpWriteImm, LocalKey: src.ID, RemoteKey: key.ID, Len: 4096})
	if c := a.wait(provider.KindWrite, b); c.Status != provider.StatusAccess {
		t.Errorf("the write ended with %v, want access", c.Status)
	}
	a.d.midCopy = nil
	a.post(provider.WR{Op: provider.OpWriteImm, Imm: 5})
	if c := b.wait(provider.KindImm, a); c.Imm != 5 {
		t.Errorf("the first immediate is %+v, want the one after the write that failed", c)
	}
}
