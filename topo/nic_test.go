package topo

import "testing"

func TestPathMTUIsTheLargestThatFits(t *testing.T) {
	for mtu, want := range map[int]int{0: 0, 351: 0, 352: 256, 1500: 1024, 4191: 2048, 4192: 4096, 9000: 4096, -1: 0} {
		if got := PathMTU(mtu); got != want {
			t.Errorf("PathMTU(%d) = %d, want %d", mtu, got, want)
		}
	}
}

func TestRateOfAPort(t *testing.T) {
	for text, want := range map[string]uint64{
		"400 Gb/sec (4X NDR)": 400e9, "2.5 Gb/sec (1X SDR)": 2.5e9, "100 Gb/sec (4X EDR)": 100e9,
		"": 0, "many Gb/sec": 0, "-1 Gb/sec": 0, "NaN Gb/sec": 0, "1e300 Gb/sec": 0, "10 Mb/sec": 0,
	} {
		if got := rate(text); got != want {
			t.Errorf("rate(%q) = %d, want %d", text, got, want)
		}
	}
}

func TestNaturalOrder(t *testing.T) {
	order := []string{"", "mlx5_0", "mlx5_2", "mlx5_10", "mlx5_bond_0", "rdmap79s0", "rdmap113s0"}
	for i, a := range order {
		for j, b := range order {
			if got := natural(a, b); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("natural(%q, %q) = %d", a, b, got)
			}
		}
	}
}
