package simllm

import (
	"testing"

	"github.com/hawser-project/hawser/kv/pool"
)

// conversation is the blocks of a prompt: the first is common to all, the others are of one conversation.
func conversation(n byte, blocks int) []pool.Hash {
	all := make([]pool.Hash, blocks)
	for i := 1; i < blocks; i++ {
		all[i] = pool.Hash{n, byte(i), byte(i >> 8)}
	}
	return all
}

// first is where a request goes, and stays until done.
func first(t *testing.T, s *sources, blocks []pool.Hash) (addr string, done func()) {
	t.Helper()
	from, done, err := s.take(t.Context(), blocks)
	if err != nil {
		t.Fatal(err)
	}
	return from[0].Writers[0], done
}

// TestPromptsGoWhereTheirBeginningIs: unless that prefiller is much busier than another, or is gone. A beginning that is less than half of a
// prompt, as the one that all share, draws nobody.
func TestPromptsGoWhereTheirBeginningIs(t *testing.T) {
	s := &sources{}
	s.set([]string{"a", "b", "c"})
	home := map[byte]string{}
	used := map[string]bool{}
	for n := range byte(9) {
		addr, done := first(t, s, conversation(n, 10))
		home[n], used[addr] = addr, true
		done()
	}
	if len(used) != 3 {
		t.Errorf("prompts with a common first block went to %v only", used)
	}
	for range 3 {
		for n := range byte(9) {
			addr, done := first(t, s, conversation(n, 18))
			done()
			if addr != home[n] {
				t.Errorf("the next turn of conversation %d went to %s, the one before to %s", n, addr, home[n])
			}
		}
	}
	at := home[0]
	var end []func()
	for range homeLoad + 1 { // of one conversation at once
		addr, done := first(t, s, conversation(0, 18))
		end = append(end, done)
		if addr != at {
			t.Errorf("went to %s, which has as many requests as %s at least", addr, at)
		}
	}
	if addr, done := first(t, s, conversation(0, 18)); addr == at {
		t.Error("went to a prefiller that has too many requests")
	} else {
		end = append(end, done)
	}
	for _, done := range end {
		done()
	}
	var rest []string
	for _, a := range []string{"a", "b", "c"} {
		if a != at {
			rest = append(rest, a)
		}
	}
	s.set(rest)
	if addr, _ := first(t, s, conversation(0, 18)); addr == at {
		t.Error("went to a prefiller that is gone")
	}
}

// TestHomesAreBounded: it forgets the oldest, not what was used lately.
func TestHomesAreBounded(t *testing.T) {
	h := &homes{}
	for i := range 3 * homeBlocks {
		h.note([]pool.Hash{{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24), 1}}, "a")
		if n := len(h.young) + len(h.old); n > 2*homeBlocks {
			t.Fatalf("%d blocks are known", n)
		}
	}
	last := 3*homeBlocks - 1
	if h.of([]pool.Hash{{byte(last), byte(last >> 8), byte(last >> 16), byte(last >> 24), 1}}) != "a" {
		t.Error("the last one is forgotten")
	}
}
