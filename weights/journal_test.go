package weights

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
)

// TestJournalSurvives: what was appended is there again, wherever the last write was cut off, and is appended to.
func TestJournalSurvives(t *testing.T) {
	dir := t.TempDir()
	write := []string{"one", "", "three is longer"}
	j := mustOpen(t, dir)
	id := j.id
	for _, w := range write {
		if err := j.append([]byte(w)); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := openJournal(dir); !errors.Is(err, hawser.ErrBusy) {
		t.Errorf("a journal that is open is opened again: %v", err)
	}
	_ = j.close()
	whole, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil {
		t.Fatal(err)
	}
	for cut := len(whole) - len(write[2]) - 8; cut <= len(whole); cut++ {
		if err := os.WriteFile(filepath.Join(dir, journalName), whole[:cut], 0o600); err != nil {
			t.Fatal(err)
		}
		want := write[:2]
		if cut == len(whole) {
			want = write
		}
		j := mustOpen(t, dir, want...)
		if j.id != id {
			t.Fatal("the journal has another id")
		}
		if err := j.append([]byte("more")); err != nil {
			t.Fatal(err)
		}
		_ = j.close()
		_ = mustOpen(t, dir, append(slices.Clone(want), "more")...).close()
	}
}

// TestJournalDamage: a record that was changed is an error, not the end of the journal.
func TestJournalDamage(t *testing.T) {
	dir := t.TempDir()
	j := mustOpen(t, dir)
	_ = j.append([]byte("aaaa"))
	_ = j.append([]byte("bbbb"))
	_ = j.close()
	name := filepath.Join(dir, journalName)
	b, _ := os.ReadFile(name)
	b[len(journalMagic)+16+8]++
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := openJournal(dir); !errors.Is(err, hawser.ErrInvalid) {
		t.Errorf("a damaged journal opens: %v", err)
	}
}

func mustOpen(t *testing.T, dir string, want ...string) *journal {
	t.Helper()
	j, records, err := openJournal(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]string, len(records))
	for i, r := range records {
		got[i] = string(r)
	}
	if !slices.Equal(got, want) {
		t.Fatalf("records %q, want %q", got, want)
	}
	return j
}
