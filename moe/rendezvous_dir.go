package moe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/proto"
)

// Dir is a Rendezvous of processes that share a directory, one for each group and run: what an earlier run has left there keeps
// ranks waiting. It has a file for the card of each rank and one for each view, which are replaced whole and never change in place.
type Dir struct {
	Path      string
	Ranks     int       // that make the first view
	Placement Placement // of the first view
}

// lookAgain is how often a directory is read while somebody waits.
const lookAgain = 5 * time.Millisecond

// seating is the file of a view.
type seating struct {
	View  View
	Tag   int
	Group uint64
}

// Join implements Rendezvous.
func (r *Dir) Join(ctx context.Context, c Card) (Invitation, error) {
	inv, err := r.join(ctx, c)
	if err != nil {
		return Invitation{}, fmt.Errorf("join as rank %d in %s: %w", c.Rank, r.Path, err)
	}
	return inv, nil
}

func (r *Dir) join(ctx context.Context, c Card) (Invitation, error) {
	if err := r.write(r.cardFile(c.Rank), c, false); err != nil {
		return Invitation{}, err
	}
	for {
		d, err := r.read()
		if err != nil {
			return Invitation{}, err
		}
		if mine := d.Cards[c.Rank]; mine.Addr != c.Addr {
			return Invitation{}, fmt.Errorf("%w: another engine has taken this rank", hawser.ErrBusy)
		}
		if inv, ok := d.invitation(c.Member); ok {
			return inv, nil
		}
		if d.View.Epoch == 0 && len(d.Cards) >= r.Ranks {
			d.first(r.Ranks, r.Placement)
			if err := r.publish(d); err != nil && !errors.Is(err, hawser.ErrStale) { // then another rank has
				return Invitation{}, err
			}
			continue
		}
		if err := pause(ctx); err != nil {
			if !d.View.has(c.Rank) {
				_ = os.Remove(r.cardFile(c.Rank)) // nobody needs it
			}
			return Invitation{}, fmt.Errorf("%s: %w", d.state(r.Ranks), err)
		}
	}
}

func pause(ctx context.Context) error {
	t := time.NewTimer(lookAgain)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Waiting are the ranks that want to take part and are no members of the latest view.
func (r *Dir) Waiting() ([]Member, error) {
	d, err := r.read()
	if err != nil {
		return nil, fmt.Errorf("ranks that wait in %s: %w", r.Path, err)
	}
	return d.waiting(), nil
}

// Admit is Local.Admit. ErrStale: there is a view of this epoch, or a later one.
func (r *Dir) Admit(v View) error {
	d, err := r.read()
	if err == nil {
		err = d.admit(v)
	}
	if err == nil {
		err = r.publish(d)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", r.Path, err)
	}
	return nil
}

// Next waits for a view later than an epoch.
func (r *Dir) Next(ctx context.Context, after uint32) (View, error) {
	for {
		d, err := r.read()
		if err == nil && d.View.Epoch > after {
			return d.View, nil
		}
		if err == nil {
			err = pause(ctx)
		}
		if err != nil {
			return View{}, fmt.Errorf("wait in %s for a view after %d: %w", r.Path, after, err)
		}
	}
}

func (r *Dir) cardFile(rank int) string {
	return filepath.Join(r.Path, fmt.Sprintf("rank-%04d.json", rank))
}

// publish makes the view of d known. ErrStale: somebody was faster.
func (r *Dir) publish(d desk) error {
	err := r.write(filepath.Join(r.Path, fmt.Sprintf("view-%010d.json", d.View.Epoch)), seating{d.View, d.Tag, d.Group}, true)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("view %d: %w: it is there", d.View.Epoch, hawser.ErrStale)
	}
	return err
}

// read is what the directory says. Of the views it reads the last one.
func (r *Dir) read() (desk, error) {
	d := desk{Cards: map[int]Card{}}
	files, err := os.ReadDir(r.Path) // sorted by name
	if err != nil {
		return d, err
	}
	view := ""
	for _, f := range files {
		switch {
		case strings.HasPrefix(f.Name(), "view-"):
			view = f.Name()
		case strings.HasPrefix(f.Name(), "rank-"):
			var c Card
			err := readJSON(filepath.Join(r.Path, f.Name()), &c)
			if errors.Is(err, fs.ErrNotExist) {
				continue // it has left
			}
			if err != nil {
				return d, err
			}
			d.Cards[c.Rank] = c
		}
	}
	if view == "" {
		return d, nil
	}
	var s seating
	if err := readJSON(filepath.Join(r.Path, view), &s); err != nil {
		return d, err
	}
	d.View, d.Tag, d.Group = s.View, s.Tag, s.Group
	return d, nil
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("%s: %w: %w", path, proto.ErrCorrupt, err)
	}
	return nil
}

// write makes a file that is there whole or not at all. once: fs.ErrExist if there is one.
func (r *Dir) write(path string, v any, once bool) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(r.Path, ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Close())
	if err == nil && !once {
		if err = os.Rename(f.Name(), path); err == nil {
			return nil
		}
	}
	if err == nil {
		err = os.Link(f.Name(), path)
	}
	return errors.Join(err, os.Remove(f.Name()))
}
