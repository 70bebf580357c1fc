package weightbench

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// folderName begins the names of folders in memory. The number of the process that made one follows.
const folderName = "hawser-weightbench-"

// memoryFolder makes a folder for this process, and removes those that processes have left that were killed: files in memory stay until somebody does.
func memoryFolder(in string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(in, folderName+"*")) // the pattern is well formed
	for _, name := range old {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(name), folderName), "-")
		if pid, err := strconv.Atoi(number); err != nil || pid < 1 || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
			continue // it lives, or is not ours
		}
		if err := os.RemoveAll(name); err != nil && !errors.Is(err, os.ErrPermission) {
			return "", fmt.Errorf("what a killed process left: %w", err)
		}
	}
	return os.MkdirTemp(in, fmt.Sprintf("%s%d-", folderName, os.Getpid()))
}
