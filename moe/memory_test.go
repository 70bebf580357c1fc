package moe

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// TestDescriptors: a source gets three descriptors for a lane, each with the right to write and exactly its range: its own block, the pool,
// the results. Whatever else comes is refused.
func TestDescriptors(t *testing.T) {
	es := engines(t, "shm", 2)
	c := tiny(3)
	l, err := c.layout()
	if err != nil {
		t.Fatal(err)
	}
	var mems []*memory
	for range l.Lanes {
		m, err := newMemory(es[0], l)
		if err != nil {
			t.Fatal(err)
		}
		mems = append(mems, m)
	}
	describe := func(rank int) (b []byte) {
		for _, m := range mems {
			b = m.describe(b, l, rank)
		}
		return b
	}
	me := proto.Member{Rank: 0, ID: proto.ID(es[0].ID())}
	good := describe(1)
	if len(good) > proto.MaxDescriptors {
		t.Errorf("%d bytes of descriptors, at most %d", len(good), proto.MaxDescriptors)
	}
	all, err := parseDescriptors(good, l, me)
	if err != nil {
		t.Fatal(err)
	}
	to, err := importAll(within(t), es[1], all)
	if err != nil || len(to) != l.Lanes {
		t.Fatal(len(to), err)
	}
	src, err := es[1].Alloc(1<<16, hawser.MemOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range src.Bytes() {
		src.Bytes()[i] = 7
	}
	block := int(exec.PlacesOf(l).Block())
	for lane, x := range to {
		for a, r := range map[exec.Area]*hawser.Remote{exec.Blocks: x.block, exec.Pool: x.pool, exec.Results: x.results} {
			tr, err := es[1].Write(hawser.Write{Src: src.Slice(0, r.Len()), Dst: r.All()})
			if err == nil {
				err = tr.Wait(within(t))
			}
			if err != nil {
				t.Fatal(err)
			}
			b := mems[lane].areas[a].Bytes()
			first, n := 0, len(b)
			if a == exec.Blocks {
				first, n = block, block
			}
			if !bytes.Equal(b[first:first+n], src.Bytes()[:n]) || bytes.Count(b, []byte{7}) != n {
				t.Errorf("lane %d, area %d: it is not just [%d, +%d) that can be written", lane, a, first, n)
			}
			if _, err := es[1].Write(hawser.Write{Src: src.Slice(0, 1), Dst: r.Slice(r.Len(), 1)}); !errors.Is(err, hawser.ErrInvalid) {
				t.Errorf("lane %d, area %d: a write behind it: %v", lane, a, err)
			}
		}
	}
	swapped := mems[1].areas
	mems[1].areas[exec.Pool], mems[1].areas[exec.Results] = mems[1].areas[exec.Results], mems[1].areas[exec.Pool]
	other := describe(1)
	mems[1].areas = swapped
	for name, b := range map[string][]byte{
		"short": good[:len(good)-1], "long": append(bytes.Clone(good), 0), "none": nil, "no descriptor": append([]byte{3, 0, 1, 2, 3}, good...),
		"of other regions": other,
	} {
		if _, err := parseDescriptors(b, l, me); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	if _, err := parseDescriptors(good, l, proto.Member{Rank: 1, ID: proto.ID(es[1].ID())}); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("of another engine: %v", err)
	}
	for _, m := range mems {
		if err := m.close(); err != nil {
			t.Error(err)
		}
	}
}

// TestEarlyMessages: what comes for a group before it is there waits for it, within bounds; what is no group's is dropped.
func TestEarlyMessages(t *testing.T) {
	es := engines(t, "shm", 2)
	p, err := es[0].Connect(within(t), es[1].Addr())
	if err != nil {
		t.Fatal(err)
	}
	send := func(b []byte) {
		t.Helper()
		tr, err := es[0].Send(p, b)
		if err == nil {
			err = tr.Wait(within(t))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	got := make(chan string, 16)
	take := func(m hawser.Message) { got <- string(m.Data[frameBytes:]) }
	leave := enroll(es[1], 1, take)
	defer leave()
	send([]byte("no frame"))
	send(append(appendFrame(nil, 2), "early"...))
	send(append(appendFrame(nil, 1), "one"...))
	if m := <-got; m != "one" {
		t.Errorf("%q", m)
	}
	s := stations.of[es[1]]
	early := func() int {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.bytes
	}
	if n := early(); n != frameBytes+len("early") {
		t.Errorf("%d bytes wait", n)
	}
	leave2 := enroll(es[1], 2, take)
	defer leave2()
	if m := <-got; m != "early" || early() != 0 {
		t.Errorf("%q, %d bytes wait", m, early())
	}
	s.mu.Lock()
	for range 3 * maxEarly >> 15 {
		s.keep(hawser.Message{Data: make([]byte, 1<<15)})
	}
	if s.bytes > maxEarly || len(s.early) != maxEarly>>15 {
		t.Errorf("%d bytes in %d messages wait, at most %d", s.bytes, len(s.early), maxEarly)
	}
	s.mu.Unlock()
}
