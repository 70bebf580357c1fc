package weights

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
)

// TestContents: receivers hash what is in their memory now, not what was there when the version came; who serves nothing says so.
func TestContents(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		t.Run(fmt.Sprint("shadow=", shadow), func(t *testing.T) {
			w := newWorld(t, networks["shm"](), toy{instances: 2, layers: 1}, change{shadow: shadow})
			eventually(t, func() error {
				list, err := w.c.Contents(limit(t))
				if err != nil || len(list) != 4 || list[3].Err != "it serves no version: it is empty" || list[3].Root != "" {
					return fmt.Errorf("before a push: %+v: %w", list, err)
				}
				return nil
			})
			w.mustPush(1)
			before, err := w.c.Contents(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			for r, x := range before {
				if x.Rank != r || x.Instance != r/2 || x.Version != 1 || x.Err != "" || x.Root != before[r%2].Root || len(x.Cells)%8 != 0 || len(x.Cells) == 0 {
					t.Errorf("%+v", x)
				}
			}
			w.recs[1].Active()[0].Bytes()[64+1000] ^= 1
			after, err := w.c.Contents(limit(t))
			if err != nil {
				t.Fatal(err)
			}
			for r, x := range after {
				if changed := x.Root != before[r].Root; changed != (r == 1) || slices.Equal(x.Cells, before[r].Cells) == changed {
					t.Errorf("rank %d: changed %v", r, changed)
				}
			}
		})
	}
}

// TestSpansAndUsage: what members did in the last push, and no other; and what it cost.
func TestSpansAndUsage(t *testing.T) {
	w := newWorld(t, networks["shm"](), toy{layers: 1}, change{})
	w.mustPush(1)
	before, err := w.c.Usage(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	w.mustPush(2)
	after, err := w.c.Usage(limit(t))
	if err != nil || len(before) != 6 || len(after) != 6 {
		t.Fatalf("%d and %d of 6: %v", len(before), len(after), err)
	}
	sent, imports := uint64(0), uint64(0)
	for i := range after {
		for k := range after[i].Rails {
			if after[i].Role == "publisher" {
				sent += after[i].Rails[k].TxBytes - before[i].Rails[k].TxBytes
			}
		}
		imports += after[i].Imports - before[i].Imports
		if after[i].CPU <= 0 || after[i].Imports == 0 && after[i].Role == "publisher" {
			t.Errorf("%+v", after[i])
		}
	}
	if want := uint64(w.model.rows*w.model.cols*2) * uint64(len(w.src.Tensors)); sent < want || sent > want+1<<20 || imports != 0 {
		t.Errorf("%d bytes, want %d and a little more; %d descriptors were imported again", sent, want, imports)
	}
	list, err := w.c.Spans(limit(t))
	if err != nil {
		t.Fatal(err)
	}
	steps := map[string]int{}
	for _, s := range list {
		steps[fmt.Sprint(s.Role, " ", s.Step)]++
		if s.Nanos < 0 || s.Start < list[0].Start {
			t.Errorf("%+v", s)
		}
	}
	stages := len(w.pubs[0].Stages())
	if n := steps["publisher write"]; n < 4*stages || n > 4*2*stages {
		t.Errorf("%d writes of 4 publishers in %d stages to 2 receivers", n, stages)
	}
	for what, want := range map[string]int{"receiver receive": 2 * stages, "receiver flip": 2, "receiver pause": 1, "receiver resume": 1} {
		if steps[what] != want {
			t.Errorf("%d times %s, want %d: %v", steps[what], what, want, steps)
		}
	}
}

// TestClientLost: when the controller is gone in the middle of an update nobody knows how it ends.
func TestClientLost(t *testing.T) {
	w := newWorld(t, networks["tcp"](), toy{}, change{})
	c, err := Dial(limit(t), w.open(t, "client"), w.ctl.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ended := make(chan error, 1)
	go func() {
		_, err := c.Update(limit(t), 1, false)
		ended <- err
	}()
	eventually(t, func() error {
		if w.c.Status().Waits == "" && w.c.Status().Epoch == 0 {
			return errors.New("no update")
		}
		return nil
	})
	w.killController()
	if err := <-ended; !errors.Is(err, ErrInDoubt) || !errors.Is(err, hawser.ErrPeerDown) && !errors.Is(err, hawser.ErrClosed) {
		t.Errorf("update ends with %v", err)
	}
	if _, err := c.Status(limit(t)); err == nil || errors.Is(err, ErrInDoubt) {
		t.Errorf("status ends with %v", err)
	}
}
