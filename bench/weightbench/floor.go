package weightbench

import (
	"fmt"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// copier is the floor: two threads that copy as many bytes as a push delivers.
type copier struct {
	src, dst []byte
}

func newCopier(n int64) (c *copier, err error) {
	c = &copier{}
	for _, b := range []*[]byte{&c.src, &c.dst} {
		if *b, err = unix.Mmap(-1, 0, int(max(n, 1)), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED); err != nil {
			c.close()
			return nil, fmt.Errorf("memory of the floor, %d bytes: %w", n, err)
		}
		clear(*b)
	}
	return c, nil
}

// piece is what is copied at once.
const piece = 1 << 20

// run copies everything once.
func (c *copier) run() time.Duration {
	var wg sync.WaitGroup
	began := time.Now()
	half := len(c.src) / 2
	for _, r := range [][2]int{{0, half}, {half, len(c.src)}} {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			for at := r[0]; at < r[1]; at += piece {
				end := min(at+piece, r[1])
				copy(c.dst[at:end], c.src[at:end])
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

func (c *copier) close() {
	for _, b := range [][]byte{c.src, c.dst} {
		if b != nil {
			_ = unix.Munmap(b)
		}
	}
}
