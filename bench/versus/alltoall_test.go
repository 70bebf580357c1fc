package versus

import (
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// tinyRouting is a file of a routing: token t of rank r goes to experts r+t and r+t+1 of 4.
func tinyRouting(t *testing.T, ranks, tokens int) string {
	t.Helper()
	b := []byte("HWMR")
	le := binary.LittleEndian
	for _, v := range []int{1, ranks, tokens, 4, 2} {
		b = le.AppendUint32(b, uint32(v))
	}
	b = append(b, make([]byte, 8+32)...)
	for range ranks {
		b = le.AppendUint32(b, uint32(tokens))
	}
	for r := range ranks {
		for k := range tokens {
			b = le.AppendUint32(le.AppendUint32(b, uint32(r+k)%4), uint32(r+k+1)%4)
		}
	}
	b = append(b, make([]byte, 4*ranks*tokens*2)...)
	path := filepath.Join(t.TempDir(), "routing")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// torch is a Python that has it.
func torch(t *testing.T) string {
	t.Helper()
	for _, p := range []string{"/usr/bin/python3", "python3"} {
		if exec.Command(p, "-c", "import torch").Run() == nil {
			return p
		}
	}
	t.Skip("no python3 has torch: gloo cannot be measured")
	return ""
}

// Rows arrive over Gloo, and who looks for those that were never moved finds that.
func TestGlooExchangesRows(t *testing.T) {
	python := torch(t)
	_, env, _ := world(t, "hawser")
	x, err := NewExchanger(t.Context(), env, "gloo", "tcp", python, Alltoall{Ranks: 3, Routing: tinyRouting(t, 3, 5), Dispatch: 64, Combine: 128})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	got, err := x.Run(t.Context(), 2, 4)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got.Whole {
		if !(got.Forth[i] > 0 && got.Back[i] > 0 && got.Whole[i] >= max(got.Forth[i], got.Back[i])) {
			t.Errorf("step %d: %v us, %v and %v", i, got.Whole[i], got.Forth[i], got.Back[i])
		}
	}
	if err := x.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if err := x.Verify(t.Context()); !errors.Is(err, errCorrupt) {
		t.Errorf("nothing was moved since the last look: %v", err)
	}
}

func TestUnknownExchanger(t *testing.T) {
	_, env, _ := world(t, "hawser")
	if _, err := NewExchanger(t.Context(), env, "nobody", "tcp", "", Alltoall{Ranks: 2}); err == nil {
		t.Error("there is no such peer")
	}
}
