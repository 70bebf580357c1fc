package sim

import (
	"math/rand/v2"
	"testing"
	"time"
)

func TestEventsComeInOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var q eventQueue
	last := event{}
	for i := range 20000 {
		if rng.IntN(2) == 0 || i < 1000 {
			// Nothing is scheduled before what has been played.
			q.push(event{at: last.at + time.Duration(rng.IntN(50)), tie: last.tie + 1 + uint64(rng.IntN(50))})
			continue
		}
		ev, ok := q.pop()
		if !ok {
			continue
		}
		if ev.at < last.at || ev.at == last.at && ev.tie < last.tie {
			t.Fatalf("event {%v %d} came after {%v %d}", ev.at, ev.tie, last.at, last.tie)
		}
		last = ev
	}
	for n := len(q); n > 0; n-- {
		if ev, ok := q.pop(); !ok || ev.at < last.at {
			t.Fatalf("event at %v came after %v", ev.at, last.at)
		} else {
			last = ev
		}
	}
	if _, ok := q.pop(); ok {
		t.Fatal("an empty queue has an event")
	}
}

func TestQueueKeepsOrderWhileItGrows(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var q queue[int]
	in, out := 0, 0
	for range 10000 {
		if rng.IntN(3) > 0 {
			q.push(in)
			in++
		} else if q.len() > 0 {
			if v := q.pop(); v != out {
				t.Fatalf("popped %d, want %d", v, out)
			}
			out++
		}
	}
	if q.len() != in-out {
		t.Fatalf("len is %d, want %d", q.len(), in-out)
	}
}
