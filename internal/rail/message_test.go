package rail

import (
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// A message has the limit of messages, not that of writes: it goes once and whole, however short the longest write is.
func TestMessageLongerThanTheLongestWriteGoesOnce(t *testing.T) {
	d := newFake(100)
	d.caps.MaxMsg = 1000
	b := newBench(t, d)
	e := b.write(b.peer(), Op{Kind: Send, Data: make([]byte, 2508)})
	if len(d.posted) != 1 || d.posted[0].Op != provider.OpSend || d.posted[0].Len != 2508 {
		t.Fatalf("posted %+v", d.posted)
	}
	if b.finishAll(); e.n != 1 || e.status != provider.StatusOK {
		t.Fatalf("ended %d times with %v", e.n, e.status)
	}
}
