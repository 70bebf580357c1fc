package kv

import "testing"

// FuzzPlace: extents that are accepted put every page of the prompt on exactly one page that all views have.
func FuzzPlace(f *testing.F) {
	f.Add(uint8(4), uint16(10), []byte{0, 3, 2, 2, 0, 2})
	f.Add(uint8(1), uint16(1), []byte{0, 0, 1})
	f.Add(uint8(3), uint16(5), []byte{0, 4, 2})
	f.Fuzz(func(t *testing.T, pages uint8, view uint16, b []byte) {
		var all []extent
		listed := 0
		for ; len(b) >= 3; b = b[3:] {
			e := extent{logical: uint32(b[0]), physical: uint32(b[1]), n: max(uint32(b[2]), 1)}
			all = append(all, e)
			listed += int(e.n)
		}
		l := &serveLink{views: []remoteView{{pages: MaxPages}, {pages: uint32(view)}}}
		half := len(all) / 2
		dst, err := l.place([][]extent{all[:half], all[half:]}, int(pages))
		if err != nil {
			return
		}
		if len(dst) != int(pages) || listed != int(pages) {
			t.Fatalf("%d pages placed, %d listed, of %d", len(dst), listed, pages)
		}
		for i, p := range dst {
			if p >= uint32(view) {
				t.Fatalf("page %d at %d, a view has %d", i, p, view)
			}
		}
	})
}
