package kv

import (
	"fmt"

	"github.com/hawser-project/hawser"
)

// View is the page array of one plane of one layer in this process: page i begins at Base + i*Stride of Region. Two views of
// one region must not overlap, and the region must live as long as the Decoder or Prefiller.
type View struct {
	Region *hawser.Region
	Base   uint64 // bytes
	Stride uint64 // bytes, at least a page
	Pages  int
}

// checkViews checks that there is one view per layer and plane, that each ends inside its region, and that each has the pages.
func checkViews(g Geometry, views []View, pages int) error {
	if len(views) != g.Views() {
		return fmt.Errorf("%w: %d views, geometry %q wants %d, one per layer and plane", hawser.ErrInvalid, len(views), g.Fingerprint, g.Views())
	}
	size := g.Group.PageBytes()
	for i, v := range views {
		switch {
		case v.Region == nil:
			return fmt.Errorf("view %d: %w: no region", i, hawser.ErrInvalid)
		case v.Pages < pages || v.Pages < 1 || v.Pages > MaxPages:
			return fmt.Errorf("view %d: %w: %d pages, want %d .. %d", i, hawser.ErrInvalid, v.Pages, max(1, pages), MaxPages)
		case v.Stride < size:
			return fmt.Errorf("view %d: %w: stride is %d bytes, a page has %d", i, hawser.ErrInvalid, v.Stride, size)
		case !fits(v.Base, v.Stride, uint64(v.Pages), size, v.Region.Len()):
			return fmt.Errorf("view %d: %w: %d pages from %d, %d bytes apart, do not end inside the region's %d bytes",
				i, hawser.ErrInvalid, v.Pages, v.Base, v.Stride, v.Region.Len())
		}
	}
	return nil
}

// fits reports whether pages of size bytes, stride apart from base on, end inside length. Nothing overflows: pages is at most
// MaxPages and stride at most length.
func fits(base, stride, pages, size, length uint64) bool {
	if stride > length || base > length || size > length {
		return false
	}
	if stride > 0 && pages-1 > length/stride {
		return false
	}
	last := (pages - 1) * stride
	return last <= length-base && size <= length-base-last
}
