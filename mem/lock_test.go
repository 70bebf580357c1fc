package mem

import (
	"errors"
	"math"
	"strings"
	"testing"
)

// The error names limit, need and remedy; a capability or a limit that is high enough is no error.
func TestMemlockNamesLimitNeedAndRemedy(t *testing.T) {
	const none, ipcLock = "Name:\tx\nCapEff:\t0000000000000000\nSeccomp:\t0\n", "Name:\tx\nCapEff:\t0000000000004000\n"
	for name, tc := range map[string]struct {
		need, limit uint64
		status      string
		fails       bool
	}{
		"below":       {100, 101, none, false},
		"equal":       {100, 100, none, false},
		"above":       {101, 100, none, true},
		"unlimited":   {math.MaxUint64 - 1, math.MaxUint64, none, false},
		"capability":  {101, 100, ipcLock, false},
		"not told":    {101, 100, "", true},
		"not a mask":  {101, 100, "CapEff:\tzz\n", true},
		"nothing":     {0, 0, none, false},
		"other caps":  {101, 100, "CapEff:\t000001ffffffbfff\n", true},
		"all of them": {101, 100, "CapEff:\t000001ffffffffff\n", false},
	} {
		err := checkLock(tc.need, tc.limit, tc.status)
		if !tc.fails {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		var m *MemlockError
		if !errors.As(err, &m) || m.Limit != tc.limit || m.Need != tc.need || !errors.Is(err, ErrMemory) {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, want := range []string{"RLIMIT_MEMLOCK", "100 bytes", "101", "ulimit -l", "CAP_IPC_LOCK"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v does not name %s", name, err, want)
			}
		}
	}
	if err := CheckLock(0); err != nil {
		t.Error(err)
	}
}
