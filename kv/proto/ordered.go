package proto

// ordered is a binary heap of things that know their place in it, so that each can be moved and taken out. The first one is items[0].
type ordered[T heaped[T]] struct{ items []T }

type heaped[T any] interface {
	before(T) bool
	// place is where the heap keeps the index in items, plus 1; 0: not in the heap.
	place() *int
}

// put adds t, or moves it to where it belongs by now.
// hot:
func (h *ordered[T]) put(t T) {
	if *t.place() == 0 {
		h.items = append(h.items, t)
		*t.place() = len(h.items)
	}
	h.fix(*t.place() - 1)
}

// remove does nothing when t is not in the heap.
// hot:
func (h *ordered[T]) remove(t T) {
	i, last := *t.place()-1, len(h.items)-1
	if i < 0 {
		return
	}
	h.swap(i, last)
	clear(h.items[last:])
	h.items = h.items[:last]
	*t.place() = 0
	if i < last {
		h.fix(i)
	}
}

// hot:
func (h *ordered[T]) fix(i int) {
	for i > 0 && h.items[i].before(h.items[(i-1)/2]) {
		h.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
	for {
		first := i
		for c := 2*i + 1; c <= 2*i+2 && c < len(h.items); c++ {
			if h.items[c].before(h.items[first]) {
				first = c
			}
		}
		if first == i {
			return
		}
		h.swap(i, first)
		i = first
	}
}

func (h *ordered[T]) swap(i, k int) {
	h.items[i], h.items[k] = h.items[k], h.items[i]
	*h.items[i].place(), *h.items[k].place() = i+1, k+1
}

// sound reports whether every thing is where it believes to be, and none is before the one above it: for checks.
func (h *ordered[T]) sound() bool {
	for i, t := range h.items {
		if *t.place() != i+1 || i > 0 && t.before(h.items[(i-1)/2]) {
			return false
		}
	}
	return true
}
