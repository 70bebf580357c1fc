package kv

import (
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// sumBatch is the sum over the writes of a batch of what each of them carries: of the bytes at off + index*stride of a region. It is
// the same at both ends, whatever the pages, and a sum of batches does not depend on their order. A write counts with its place, so
// that two that were exchanged are found.
func sumBatch(b *layout.Batch, region []byte, indices []uint32, off, stride int64) (sum uint64) {
	for i, index := range indices {
		w := b.Write(i)
		at := off + int64(index)*stride
		place := uint64(w.Layer)<<48 ^ uint64(w.Plane)<<40 ^ uint64(w.Rep)<<32 ^ uint64(w.Unit)
		sum += mix(place ^ mix(uint64(crc32.Checksum(region[at:at+b.Len], castagnoli))))
	}
	return sum
}

// mix is the finalizer of splitmix64 (Steele, Lea, Flood 2014): a bijection in which every bit of x moves half of the result's.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// compare compares the sums of a prefiller with those over what it has written here. The last sum is the tail's, which nobody compares:
// only its reader knows how long it is.
func compare(w proto.Written, regions []*hawser.Region, theirs []uint64) error {
	own := &w.Plan.Pair().Dst().Members[0]
	sums := make([]uint64, proto.Sums(own.Layers))
	if len(theirs) != len(sums) {
		return fmt.Errorf("%d sums, want %d", len(theirs), len(sums))
	}
	var b layout.Batch
	var dst []uint32
	for rank := range w.Plan.Pair().Src().Members[w.Member].Ranks {
		for layer := range own.Layers {
			first, end := w.Plan.Units(own.GroupOf(layer))
			for c := w.Plan.Cursor(w.Member, rank, layer, first, end); c.Next(&b, 1<<16); {
				to := w.Pages[b.Group()]
				dst = slices.Grow(dst[:0], b.N)[:b.N]
				b.FillDst(to, dst)
				sums[layer/proto.SumLayers] += sumBatch(&b, regions[b.Template.DstRegion].Bytes(), dst, b.DstOff, b.Template.DstStride)
			}
		}
	}
	for i, sum := range sums[:len(sums)-1] {
		if sum != theirs[i] {
			return fmt.Errorf("layers %d .. %d: %016x sent, %016x here", i*proto.SumLayers, min((i+1)*proto.SumLayers, own.Layers)-1, theirs[i], sum)
		}
	}
	return nil
}
