package ring

import (
	"runtime"
	"sync"
	"testing"
)

// fifo is what a Queue and a Funnel have in common.
type fifo[T any] interface {
	Push(T) bool
	Pop() (T, bool)
	Empty() bool
}

func fifos[T any](size int) map[string]fifo[T] {
	return map[string]fifo[T]{"queue": NewQueue[T](size), "funnel": NewFunnel[T](size)}
}

func TestFIFOAndBounded(t *testing.T) {
	for name, q := range fifos[int](4) {
		for round := range 100 {
			for i := range 4 {
				if !q.Push(round*10 + i) {
					t.Fatalf("%s, round %d: push %d refused before it was full", name, round, i)
				}
			}
			if q.Push(99) {
				t.Fatalf("%s: a fifth element fitted into four cells", name)
			}
			for i := range 4 {
				if v, ok := q.Pop(); !ok || v != round*10+i || q.Empty() != (i == 3) {
					t.Fatalf("%s: pop = %d, %v, want %d", name, v, ok, round*10+i)
				}
			}
			if _, ok := q.Pop(); ok {
				t.Fatalf("%s: pop when it is empty", name)
			}
		}
	}
}

// Every element that producers push comes out once, and those of one producer in order for one consumer, also when they wait for room.
func TestManyProducersOneConsumer(t *testing.T) {
	for name, q := range fifos[*[2]int](64) {
		t.Run(name, func(t *testing.T) { manyProducers(t, q) })
	}
}

func manyProducers(t *testing.T, q fifo[*[2]int]) {
	const producers, each = 8, 20000
	var wg sync.WaitGroup
	for p := range producers {
		wg.Go(func() {
			for i := range each {
				for v := (&[2]int{p, i}); !q.Push(v); {
					runtime.Gosched()
				}
			}
		})
	}
	var next [producers]int
	for n := 0; n < producers*each; {
		v, ok := q.Pop()
		if !ok {
			runtime.Gosched()
			continue
		}
		if v[1] != next[v[0]] {
			t.Fatalf("producer %d: got element %d, want %d", v[0], v[1], next[v[0]])
		}
		next[v[0]]++
		n++
	}
	wg.Wait()
	if !q.Empty() {
		t.Fatal("more elements than were pushed")
	}
}

func TestQueueManyConsumers(t *testing.T) {
	const total = 50000
	q := NewQueue[int](32)
	seen := make([]int, total)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c := range 4 {
		wg.Go(func() {
			for i := c; i < total; i += 4 {
				for !q.Push(i) {
					if v, ok := q.Pop(); ok {
						mu.Lock()
						seen[v]++
						mu.Unlock()
					}
				}
			}
		})
	}
	wg.Wait()
	for {
		v, ok := q.Pop()
		if !ok {
			break
		}
		seen[v]++
	}
	for i, n := range seen {
		if n != 1 {
			t.Fatalf("element %d came out %d times", i, n)
		}
	}
}

func TestQueueAllocatesNothing(t *testing.T) {
	q := NewQueue[*int](8)
	v := new(int)
	if n := testing.AllocsPerRun(100, func() { q.Push(v); q.Pop() }); n != 0 {
		t.Fatalf("%v allocations a push and pop", n)
	}
}

func BenchmarkQueue(b *testing.B) {
	q := NewQueue[uint64](1024)
	for b.Loop() {
		q.Push(1)
		q.Pop()
	}
}
