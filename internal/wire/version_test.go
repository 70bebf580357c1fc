package wire

import "testing"

// The highest common version wins, from whichever side it is asked; without one there is none.
func TestHighestCommonVersion(t *testing.T) {
	for _, tc := range []struct {
		a, b Versions
		want uint16 // 0: none
	}{
		{Versions{1, 1}, Versions{1, 1}, 1},
		{Versions{1, 3}, Versions{1, 5}, 3},
		{Versions{2, 3}, Versions{3, 5}, 3},
		{Versions{1, 9}, Versions{4, 5}, 5},
		{Versions{1, 2}, Versions{3, 5}, 0},
		{Versions{3, 2}, Versions{1, 9}, 0}, // no range at all
		{Versions{1, 65535}, Versions{65535, 65535}, 65535},
	} {
		for _, v := range [][2]Versions{{tc.a, tc.b}, {tc.b, tc.a}} {
			got, ok := v[0].Common(v[1])
			if ok != (tc.want != 0) || ok && got != tc.want {
				t.Errorf("%v and %v: %d, %v, want %d", v[0], v[1], got, ok, tc.want)
			}
		}
	}
}
