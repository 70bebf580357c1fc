package main

import "testing"

// FuzzFlags: a value of the command line that is taken is within its bounds, and its printed form means the same.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{"64KiB", "1.5GiB", "65536", "5%", "0.05", "2,3", "2", "nan", "1e400"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		var n, again size
		if n.UnmarshalText([]byte(s)) == nil {
			if err := again.UnmarshalText([]byte(n.String())); n > maxSize || err != nil || again != n && n < 1<<53 {
				t.Fatalf("size %q is %d, printed %q, which is %d: %v", s, n, n, again, err)
			}
		}
		var p, q percent
		if p.UnmarshalText([]byte(s)) == nil {
			if err := q.UnmarshalText([]byte(p.arg())); !(p >= 0 && p <= 1) || err != nil || p != q {
				t.Fatalf("share %q is %v, printed %q: %v", s, float64(p), p.arg(), err)
			}
		}
		var r railPair
		if r.UnmarshalText([]byte(s)) == nil && (min(r.prefill, r.decode) < 1 || max(r.prefill, r.decode) > maxRails) {
			t.Fatalf("rails %q are %+v", s, r)
		}
	})
}
