package weightbench

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What a killed process has left is removed by the next one, and nothing of one that lives, or of others.
func TestMemoryFolderRemovesLeftovers(t *testing.T) {
	gone := exec.Command("true")
	if err := gone.Run(); err != nil {
		t.Fatal(err)
	}
	in := t.TempDir()
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(in, name))
		return err == nil
	}
	dead, alive, other := fmt.Sprint(folderName, gone.Process.Pid, "-1"), fmt.Sprint(folderName, os.Getppid(), "-1"), folderName+"x-1"
	for _, name := range []string{dead, alive, other} {
		if err := os.MkdirAll(filepath.Join(in, name, "shards"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mine, err := memoryFolder(in)
	if err != nil {
		t.Fatal(err)
	}
	if there(dead) || !there(alive) || !there(other) || !there(filepath.Base(mine)) {
		t.Errorf("of a dead process: %v; of one that lives: %v; of others: %v; the new one: %v; want false and three times true",
			there(dead), there(alive), there(other), there(filepath.Base(mine)))
	}
	if second, err := memoryFolder(in); err != nil || second == mine || !there(filepath.Base(mine)) {
		t.Errorf("a second folder of this process: %q, %v; the first is there: %v", second, err, there(filepath.Base(mine)))
	}
}
