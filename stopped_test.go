package hawser_test

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser"
)

// stopRounds is how often a writer is stopped at most until all has been seen that can happen: a writer of shared memory is in the
// middle of a copy more often than not.
const stopRounds = 60

// stopProofs is how many of them have to end with a proof at once: a writer that does not look before it copies is then found
// nine times in ten.
const stopProofs = 5

// A writer is stopped at some instant and fenced. After nil it cannot change a byte, when it goes on; there is no nil while it stands in
// the middle of a copy, until it goes on or dies.
func TestFenceOfAStoppedWriter(t *testing.T) {
	t.Parallel()
	for network, outcomes := range map[string][]string{
		"tcp": {"proof"},
		"shm": {"proof", "no proof until it goes on", "no proof until it dies"},
	} {
		t.Run(network, func(t *testing.T) {
			seen := map[string]int{}
			for round := 0; round < stopRounds && (len(seen) < len(outcomes) || seen["proof"] < stopProofs); round++ {
				v := startVictim(t, network)
				v.signal(t, syscall.SIGSTOP)
				seen[v.fenceStopped(t, round)]++
			}
			t.Log(seen)
			for _, what := range outcomes {
				if seen[what] == 0 {
					t.Errorf("not once in %d rounds: %s", stopRounds, what)
				}
			}
		})
	}
}

// fenceStopped fences a stopped writer and lets it go on, or die.
func (v *victim) fenceStopped(t *testing.T, round int) (outcome string) {
	t.Helper()
	outcome = "proof"
	err := v.e.Fence(testContext(t), v.peer)
	v.event(t, hawser.PeerDown)
	if errors.Is(err, hawser.ErrUnfenced) {
		outcome = v.unfenced(t, round%2 == 0)
		err = v.e.Fence(testContext(t), v.peer)
	}
	if err != nil {
		t.Fatal(err)
	}
	if outcome == "proof" {
		v.event(t, hawser.PeerFenced)
	}
	count := v.e.Counter(1).From(v.peer)
	v.reuse()
	want := bytes.Clone(v.dst.Bytes())
	if outcome != "no proof until it dies" {
		v.signal(t, syscall.SIGCONT)
		if err := v.proc.Wait(); err == nil {
			t.Fatal("the writer ended in peace")
		}
		if code := v.proc.ProcessState.ExitCode(); code != exitCutOff {
			t.Fatalf("the writer ended with %d, want %d: all that it knew is stale", code, exitCutOff)
		}
	}
	same(t, "memory after the fence", v.dst.Bytes(), want)
	if n := v.e.Counter(1).From(v.peer); n != count {
		t.Fatalf("count went from %d to %d after the fence", count, n)
	}
	return outcome
}

// unfenced checks that there is no proof while the writer stands, and that there is one soon when it goes on or dies.
func (v *victim) unfenced(t *testing.T, goesOn bool) (outcome string) {
	t.Helper()
	for range 3 {
		if err := v.e.Fence(testContext(t), v.peer); !errors.Is(err, hawser.ErrUnfenced) {
			t.Fatalf("fence of a writer that stands in a copy: %v, want %v", err, hawser.ErrUnfenced)
		}
	}
	select {
	case ev := <-v.events:
		t.Fatalf("event %v while the writer stands in a copy", ev.Kind)
	default:
	}
	outcome = "no proof until it goes on"
	if goesOn {
		v.signal(t, syscall.SIGCONT)
	} else {
		outcome = "no proof until it dies"
		v.signal(t, syscall.SIGKILL)
	}
	v.event(t, hawser.PeerFenced)
	return outcome
}

// reuse gives the memory contents that its writers do not write.
func (v *victim) reuse() {
	for i := range v.dst.Bytes() {
		v.dst.Bytes()[i] = byte(0x80 + i%0x7f)
	}
}
