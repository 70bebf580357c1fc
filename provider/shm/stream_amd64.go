//go:build !race

package shm

import "golang.org/x/sys/cpu"

// canStream: the processor has what stream uses.
var canStream = cpu.X86.HasAVX

// stream copies n bytes, more than 0 and a multiple of streamStep, with stores that bypass the caches; dst is a multiple of 32.
// Unless ahead is nil it fetches the n bytes there into the cache meanwhile; nothing happens where there are none.
//
//go:noescape
func stream(dst, src, ahead *byte, n uintptr)

// storeFence orders the stores of stream before all later ones.
func storeFence()
