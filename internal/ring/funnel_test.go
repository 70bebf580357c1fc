package ring

import "testing"

// What was taken is not kept: it can be collected.
func TestFunnelKeepsNothing(t *testing.T) {
	q := NewFunnel[*int](4)
	q.Push(new(int))
	q.Pop()
	for i := range q.cells {
		if q.cells[i].v != nil {
			t.Fatalf("cell %d still has its element", i)
		}
	}
}
