package mem

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// MemlockError: networks that pin memory would pin more than RLIMIT_MEMLOCK allows. It wraps ErrMemory.
type MemlockError struct {
	Limit uint64 // bytes that the process may pin
	Need  uint64 // bytes for this registration, counted once per rail that pins
}

func (e *MemlockError) Error() string {
	return fmt.Sprintf("%v: RLIMIT_MEMLOCK allows to pin %d bytes, this needs %d: raise it (ulimit -l unlimited, LimitMEMLOCK=infinity in a "+
		"systemd unit, --ulimit memlock=-1 for a container), or give the process CAP_IPC_LOCK", ErrMemory, e.Limit, e.Need)
}

// Unwrap is ErrMemory.
func (e *MemlockError) Unwrap() error { return ErrMemory }

// CheckLock returns a *MemlockError when need bytes cannot be pinned. It knows the limit, not how much of it is used already.
func CheckLock(need uint64) error {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return nil //nolint:nilerr // then the registration itself finds out
	}
	status, _ := os.ReadFile("/proc/self/status") // unreadable: no capability
	return checkLock(need, r.Cur, string(status))
}

// checkLock is CheckLock for a limit and the text of /proc/self/status.
func checkLock(need, limit uint64, status string) error {
	if need <= limit || limit == unix.RLIM_INFINITY || hasCapability(status, unix.CAP_IPC_LOCK) {
		return nil
	}
	return &MemlockError{Limit: limit, Need: need}
}

// hasCapability looks for an effective capability.
func hasCapability(status string, capability uint) bool {
	for line := range strings.Lines(status) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && set>>capability&1 == 1
		}
	}
	return false
}
