package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/safetensors"
	"github.com/hawser-project/hawser/weights"
	"github.com/hawser-project/hawser/weights/stage"
)

// weightsNodeFlags are of every process of a push.
type weightsNodeFlags struct {
	quietFlag
	hostFlags

	Provider network `placeholder:"NAME" help:"Network: ${networks} (default: the best that works)."`
	Name     string  `placeholder:"NAME" help:"What the process calls itself (default: its role and process id)."`
	Log      string  `placeholder:"FILE" help:"Append what the engine and the protocol say to FILE."`
}

// controllerFlag says where the controller is.
type controllerFlag struct {
	Controller string `required:"" placeholder:"ADDR" help:"The controller: what it printed, which is good while it lives, HOST:PORT where it listens, @FILE with either, or file:PATH, its registry."`
}

// addrPatience is how long a file of an address may be missing: processes start at the same time.
const addrPatience = 10 * time.Second

// reader returns what finds the address that holds now. fixed: it is always the same.
func (f *controllerFlag) reader() (read func() (string, error), fixed bool, err error) {
	if name, ok := strings.CutPrefix(f.Controller, "@"); ok {
		return func() (string, error) {
			b, err := os.ReadFile(name)
			return strings.TrimSpace(string(b)), err
		}, false, nil
	}
	if !strings.HasPrefix(f.Controller, "file:") {
		return func() (string, error) { return f.Controller, nil }, true, nil
	}
	r, err := openRegistry(f.Controller)
	if err != nil {
		return nil, false, err
	}
	return func() (string, error) {
		l, err := (&termRegistry{r}).read()
		return l.Controller, err
	}, false, nil
}

// followPause is how often a member looks whether its controller is elsewhere.
const followPause = 200 * time.Millisecond

// follow calls rehome whenever the address is not addr any more: a controller that is started again is another engine, at another address, also
// where it listens at the same port. The caller calls wait, after ctx has ended.
func (f *controllerFlag) follow(ctx context.Context, addr string, rehome func(string)) (wait func()) {
	read, fixed, err := f.reader()
	if fixed || err != nil {
		return func() {}
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(followPause)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now, err := read(); err == nil && now != "" && now != addr {
				addr = now
				rehome(now)
			}
		}
	})
	return wg.Wait
}

// address finds the controller.
func (f *controllerFlag) address(ctx context.Context) (string, error) {
	read, _, err := f.reader()
	if err != nil {
		return "", err
	}
	for end := time.Now().Add(addrPatience); ; {
		addr, err := read()
		if err == nil && addr != "" {
			return addr, nil
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) || time.Now().After(end) {
			return "", usage("--controller %s: no address there: %w", f.Controller, cmp.Or(err, fs.ErrNotExist))
		}
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// open opens an engine of this process.
func (f *weightsNodeFlags) open(ctx context.Context, role string) (*node, error) {
	n := &node{name: cmp.Or(f.Name, fmt.Sprintf("%s-%d", role, os.Getpid()))}
	o, err := f.options(ctx, n.name, f.Provider)
	if err != nil {
		return nil, err
	}
	if f.Log != "" {
		if n.file, err = openLog(f.Log); err != nil {
			return nil, err
		}
		n.log = slog.New(slog.NewTextHandler(n.file, &slog.HandlerOptions{Level: slog.LevelDebug})).With("process", n.name)
		o.Log = n.log
	}
	if n.eng, err = hawser.Open(ctx, o); err != nil {
		if errors.Is(err, hawser.ErrInvalid) {
			err = &usageError{err}
		}
		return nil, errors.Join(err, n.closeLog())
	}
	return n, nil
}

// memory allocates buffers; the engine frees them when it closes.
func (n *node) memory(sizes []int64) ([]*hawser.Region, error) {
	var out []*hawser.Region
	for i, size := range sizes {
		r, err := n.eng.Alloc(uint64(max(1, size)), hawser.MemOptions{})
		if err != nil {
			return nil, fmt.Errorf("buffer %d of %d bytes: %w", i, size, err)
		}
		out = append(out, r)
	}
	return out, nil
}

func bytesOf(regions []*hawser.Region) [][]byte {
	var out [][]byte
	for _, r := range regions {
		out = append(out, r.Bytes())
	}
	return out
}

// verifyFlag says how much is compared after a push.
type verifyFlag struct {
	Verify string `enum:"sampled,all,off" default:"sampled" help:"What of the bytes that were pushed is hashed on both sides, which must agree: one cell of 16, all, off (default: ${default})."`
}

func (f verifyFlag) mode() stage.Verify {
	return map[string]stage.Verify{"sampled": stage.Sampled, "all": stage.All, "off": stage.Off}[f.Verify]
}

// checkpointAt opens a checkpoint; {version} in the path stands for the version.
func checkpointAt(path string, v weights.Version) (*safetensors.Checkpoint, error) {
	dir := strings.ReplaceAll(path, "{version}", fmt.Sprint(v))
	c, err := safetensors.Open(os.DirFS(dir))
	if err != nil {
		return nil, usage("--from %s: %w", dir, err)
	}
	return c, nil
}

// loadRank fills a rank's memory from a checkpoint.
func loadRank(path string, v weights.Version, l *reshard.Layout, rank int, memory [][]byte) (err error) {
	c, err := checkpointAt(path, v)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if err := c.Load(l, rank, memory); err != nil {
		return usage("--from %s: %w", path, err)
	}
	return nil
}

// termRegistry is a file that names the controller and hands out its terms.
type termRegistry struct{ *fileRegistry }

// termListing is the file.
type termListing struct {
	Controller string            `json:"controller"`
	Numbers    map[string]uint64 `json:"numbers"`
}

func (r *termRegistry) read() (termListing, error) {
	l := termListing{Numbers: map[string]uint64{}}
	data, err := os.ReadFile(r.path)
	if err != nil || len(data) == 0 {
		return l, err
	}
	if err := json.Unmarshal(data, &l); err != nil {
		return l, fmt.Errorf("%s: %w", r.path, err)
	}
	return l, nil
}

// Raise makes a number larger than least and than all before it.
func (r *termRegistry) Raise(_ context.Context, name string, least uint64) (n uint64, err error) {
	return n, r.change(func(l *termListing) {
		n = max(least, l.Numbers[name]) + 1
		l.Numbers[name] = n
	})
}

// announce enters the address of the controller.
func (r *termRegistry) announce(addr string) error {
	return r.change(func(l *termListing) { l.Controller = addr })
}

func (r *termRegistry) change(f func(*termListing)) error {
	lock, err := r.lock()
	if err != nil {
		return fmt.Errorf("--registry: %w", err)
	}
	defer lock.Close()
	l, err := r.read()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--registry: %w", err)
	}
	if l.Numbers == nil {
		l.Numbers = map[string]uint64{}
	}
	f(&l)
	data, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	if err := replaceFile(r.path, append(data, '\n')); err != nil {
		return fmt.Errorf("--registry: %w", err)
	}
	return nil
}

// replaceFile writes a file that readers see before or after, never in between.
func replaceFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".hawser-*")
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if err = errors.Join(err, tmp.Chmod(0o644), tmp.Close()); err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

// ranksOf parses "0-3,6"; all of n if it is empty.
func ranksOf(text string, n int) ([]int, error) {
	var out []int
	if text == "" {
		for r := range n {
			out = append(out, r)
		}
		return out, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		a, b, ranged := strings.Cut(part, "-")
		if !ranged {
			b = a
		}
		var lo, hi int
		if _, err := fmt.Sscanf(a+" "+b, "%d %d", &lo, &hi); err != nil || lo < 0 || lo > hi || hi >= n {
			return nil, usage("--ranks: %q, want ranks and ranges from 0 to %d, as in 0-3,6", text, n-1)
		}
		for r := lo; r <= hi; r++ {
			out = append(out, r)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}
