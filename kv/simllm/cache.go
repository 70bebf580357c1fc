package simllm

import (
	"fmt"
	"runtime"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
)

// cache is the KV memory of a process: for each view, one after the other, an array of pages.
type cache struct {
	region *hawser.Region
	views  []kv.View
	size   uint64 // of a page of one view, bytes
	pool   *kv.Pool
}

func newCache(eng *hawser.Engine, g kv.Geometry, bytes, seed uint64) (*cache, error) {
	pages := poolPages(g, bytes)
	pool, err := kv.NewPool(pages, seed)
	if err != nil {
		return nil, err
	}
	region, err := eng.Alloc(uint64(pages)*g.BytesPerPage(), hawser.MemOptions{})
	if err != nil {
		return nil, fmt.Errorf("KV memory: %w", err)
	}
	c := &cache{region: region, size: g.Group.PageBytes(), pool: pool}
	for v := range g.Views() {
		c.views = append(c.views, kv.View{Region: region, Base: uint64(v) * uint64(pages) * c.size, Stride: c.size, Pages: pages})
	}
	return c, nil
}

// page is one page of a view.
func (c *cache) page(view int, index uint32) []byte {
	at := c.views[view].Base + uint64(index)*c.size
	return c.region.Bytes()[at : at+c.size]
}

// yielder lets other goroutines run after every yieldBytes of work. Without it one that wakes up, to take a message for
// example, waits until the runtime preempts this one: 10 ms.
type yielder struct{ bytes uint64 }

// yieldBytes take some tens of microseconds to make or check.
const yieldBytes = 256 << 10

func (y *yielder) did(bytes uint64) {
	if y.bytes += bytes; y.bytes >= yieldBytes {
		y.bytes = 0
		runtime.Gosched()
	}
}
