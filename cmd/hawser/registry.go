package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// fileRegistry is a file that lists prefillers. It is replaced whole, so that readers see it before or after a change; writers lock it.
// Those who have connected need it no more.
type fileRegistry struct{ path string }

// instance is one prefiller.
type instance struct {
	Name    string `json:"name"`    // the same after a restart
	Address string `json:"address"` // hawser.Engine.Addr
	PID     int    `json:"pid"`     // tells a process from one of the same name that came later
}

// listing is the file.
type listing struct {
	Prefillers []instance `json:"prefillers"`
}

// openRegistry parses the value of --registry.
func openRegistry(spec string) (*fileRegistry, error) {
	path, ok := strings.CutPrefix(spec, "file:")
	if !ok || path == "" {
		return nil, usage("--registry: %q, want file:PATH", spec)
	}
	return &fileRegistry{path}, nil
}

// read returns what is listed; a file that is not there, or is empty, lists nothing.
func (r *fileRegistry) read() (listing, error) {
	var l listing
	data, err := os.ReadFile(r.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(data) == 0 {
		return l, nil
	}
	if err != nil {
		return l, fmt.Errorf("--registry: %w", err)
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("--registry: %s: %w", r.path, err)
	}
	return l, nil
}

// put enters an instance in place of one with its name.
func (r *fileRegistry) put(i instance) error {
	return r.change(func(l *listing) {
		l.Prefillers = append(slices.DeleteFunc(l.Prefillers, func(o instance) bool { return o.Name == i.Name }), i)
	})
}

// remove ends an instance's entry, unless another process has its name by now.
func (r *fileRegistry) remove(name string, pid int) error {
	return r.change(func(l *listing) {
		l.Prefillers = slices.DeleteFunc(l.Prefillers, func(o instance) bool { return o.Name == name && o.PID == pid })
	})
}

func (r *fileRegistry) change(f func(*listing)) error {
	lock, err := r.lock()
	if err != nil {
		return fmt.Errorf("--registry: %w", err)
	}
	defer lock.Close()
	l, err := r.read()
	if err != nil {
		return err
	}
	f(&l)
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	tmp, err := os.CreateTemp(filepath.Dir(r.path), ".registry-*")
	if err != nil {
		return fmt.Errorf("--registry: %w", err)
	}
	_, err = tmp.Write(append(data, '\n'))
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), r.path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return fmt.Errorf("--registry: %w", err)
	}
	return nil
}

// lock locks the file that the path names. Another writer may have replaced it meanwhile; then the lock is of a file that is gone.
func (r *fileRegistry) lock() (*os.File, error) {
	for {
		f, err := os.OpenFile(r.path, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, err
		}
		for err = unix.EINTR; errors.Is(err, unix.EINTR); {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		mine, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if now, err := os.Stat(r.path); err == nil && os.SameFile(mine, now) {
			return f, nil
		}
		_ = f.Close()
	}
}

// registryGap is how often a decoder looks at the file.
const registryGap = 200 * time.Millisecond

// watch calls f with the addresses, now and after each change, until ctx ends. A file that cannot be read changes nothing.
func (r *fileRegistry) watch(ctx context.Context, f func(addrs []string)) {
	var seen syscall.Stat_t
	tick := time.NewTicker(registryGap)
	defer tick.Stop()
	for {
		var now syscall.Stat_t
		if syscall.Stat(r.path, &now) == nil && (now.Mtim != seen.Mtim || now.Ino != seen.Ino || now.Size != seen.Size) {
			if l, err := r.read(); err == nil {
				seen = now
				var addrs []string
				for _, i := range l.Prefillers {
					addrs = append(addrs, i.Address)
				}
				f(addrs)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}
