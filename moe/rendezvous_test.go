package moe

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// meeting is what both rendezvous have.
type meeting interface {
	Rendezvous
	Admit(v View) error
	Next(ctx context.Context, after uint32) (View, error)
}

func waitingAt(t *testing.T, m meeting) []Member {
	t.Helper()
	switch m := m.(type) {
	case *Local:
		return m.Waiting()
	case *Dir:
		all, err := m.Waiting()
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	t.Fatal("no rendezvous")
	return nil
}

func meetings(t *testing.T, ranks int, f func(t *testing.T, m meeting)) {
	t.Run("local", func(t *testing.T) { f(t, &Local{Ranks: ranks, Placement: Placement{Of: []uint32{1, 0}}}) })
	t.Run("dir", func(t *testing.T) {
		f(t, &Dir{Path: t.TempDir(), Ranks: ranks, Placement: Placement{Of: []uint32{1, 0}}})
	})
}

func card(rank int, addr string) Card {
	return Card{Member: Member{rank, addr}, Terms: []Term{{"Hidden", "8"}}, Tag: rank + 1, Group: uint64(rank + 100)}
}

// TestRendezvous: the first ranks get one view, with the tag and the number that the lowest of them proposes; who comes later waits until
// it is admitted, and learns the same tag and number.
func TestRendezvous(t *testing.T) {
	meetings(t, 3, func(t *testing.T, m meeting) {
		got := make([]Invitation, 3)
		var wg sync.WaitGroup
		for i := range got {
			wg.Go(func() {
				var err error
				if got[i], err = m.Join(within(t), card(i, fmt.Sprint("a", i))); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		first := Invitation{
			View: View{Epoch: 1, Members: []Member{{0, "a0"}, {1, "a1"}, {2, "a2"}}, Placement: Placement{Of: []uint32{1, 0}}},
			Tag:  1, Group: 100, Cards: []Card{card(0, "a0"), card(1, "a1"), card(2, "a2")},
		}
		for i := range got {
			if !reflect.DeepEqual(got[i], first) {
				t.Errorf("rank %d: %+v, want %+v", i, got[i], first)
			}
		}
		if v, err := m.Next(within(t), 0); err != nil || !reflect.DeepEqual(v, first.View) {
			t.Errorf("%+v, %v", v, err)
		}
		if all := waitingAt(t, m); all != nil {
			t.Errorf("%v wait", all)
		}
		again := make(chan Invitation, 1)
		wg.Go(func() { // rank 0, which has proposed the tag, comes again
			inv, err := m.Join(within(t), card(0, "b0"))
			if err != nil {
				t.Error(err)
			}
			again <- inv
		})
		wg.Go(func() {
			if v, err := m.Next(within(t), 1); err != nil || v.Epoch != 4 {
				t.Errorf("%+v, %v", v, err)
			}
		})
		for !slices.Equal(waitingAt(t, m), []Member{{0, "b0"}}) {
			time.Sleep(time.Millisecond) // between two looks
		}
		if err := m.Admit(View{Epoch: 1, Members: first.View.Members}); !errors.Is(err, hawser.ErrStale) {
			t.Errorf("the same epoch again: %v", err)
		}
		later := View{Epoch: 4, Members: []Member{{0, "b0"}, {2, "a2"}}}
		if err := m.Admit(later); err != nil {
			t.Fatal(err)
		}
		inv := <-again
		if want := (Invitation{View: later, Tag: 1, Group: 100, Cards: []Card{card(0, "b0"), card(2, "a2")}}); !reflect.DeepEqual(inv, want) {
			t.Errorf("%+v, want %+v", inv, want)
		}
		wg.Wait()
	})
}

// TestRendezvousEnds: a rank that waits in vain says for what, and does not count any more.
func TestRendezvousEnds(t *testing.T) {
	meetings(t, 2, func(t *testing.T, m meeting) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := m.Join(ctx, card(1, "a1"))
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 2 ranks are there: [1]") {
			t.Error(err)
		}
		if all := waitingAt(t, m); all != nil {
			t.Errorf("%v wait", all)
		}
		if _, err := m.Next(ctx, 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		var wg sync.WaitGroup
		for i := range 2 {
			wg.Go(func() {
				if _, err := m.Join(within(t), card(i, "c")); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		ctx, cancel = context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		if _, err := m.Join(ctx, card(1, "late")); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "view 1 is without this engine") {
			t.Error(err)
		}
	})
}

// TestDirRefuses: what is no card is named, and two engines of one rank do not make a view.
func TestDirRefuses(t *testing.T) {
	d := &Dir{Path: t.TempDir(), Ranks: 2}
	first := make(chan error, 1)
	go func() {
		_, err := d.Join(within(t), card(0, "a"))
		first <- err
	}()
	for len(waitingAt(t, d)) == 0 {
		time.Sleep(time.Millisecond) // between two looks
	}
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	go func() { _, _ = d.Join(ctx, card(0, "b")) }() // ends with ctx
	if err := <-first; !errors.Is(err, hawser.ErrBusy) {
		t.Error(err)
	}
	bad := filepath.Join(d.Path, "rank-0001.json")
	if err := os.WriteFile(bad, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Waiting(); err == nil || !strings.Contains(err.Error(), bad) {
		t.Error(err)
	}
	if _, err := (&Dir{Path: "/nowhere", Ranks: 1}).Join(within(t), card(0, "a")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	<-ctx.Done()
}

// TestGroupMeetsInADirectory: New over Dir, and nothing but cards and views is left there.
func TestGroupMeetsInADirectory(t *testing.T) {
	es, dir := engines(t, "shm", 3), t.TempDir()
	c, be := tiny(3), newBackend(t)
	var wg sync.WaitGroup
	for i, e := range es {
		wg.Go(func() {
			c := c
			c.Rank = i
			g, err := New(within(t), e, be, &Dir{Path: dir, Ranks: 3}, c)
			if err != nil {
				t.Error(err)
				return
			}
			if err := g.Close(within(t)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 4 {
		t.Errorf("%v, %v", files, err)
	}
}
