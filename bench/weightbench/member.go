package weightbench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/safetensors"
	"github.com/hawser-project/hawser/weights"
	"github.com/hawser-project/hawser/weights/stage"
)

// setup is what a child is told first.
type setup struct {
	Network    string
	Controller string
	Case       Case
	Source     bool
	Rank       int
	Verify     stage.Verify
}

// order is everything that a child is asked afterwards.
type order struct {
	Version uint64
	Dir     string
}

// answer is what it answers.
type answer struct {
	Wrong   int64
	CPU     float64 // seconds, since the process began
	RSS     uint64
	Staging int64
	Phases  weights.Phases
}

// closeLimit bounds the end of a process.
const closeLimit = 20 * time.Second

// member is a training or an inference rank. Owned by the goroutine of Serve.
type member struct {
	setup
	eng      *hawser.Engine
	src, dst *reshard.Layout
	regions  []*hawser.Region
	memory   [][]byte
	content  *content
	slice    *reshard.Slice // source
	pub      *weights.Publisher
	rec      *weights.Receiver
	scratch  []byte
}

// Serve is the main function of a process of a rank.
func Serve(ctx context.Context) error {
	p, ctx := proc.Attach(ctx)
	m := &member{}
	defer m.close()
	for {
		msg, err := p.Next(ctx)
		if errors.Is(err, proc.ErrParentGone) {
			return nil
		}
		var a answer
		if err == nil {
			a, err = m.do(ctx, msg)
		}
		if err != nil {
			p.Fail(err)
			return err
		}
		if err := p.Send("done", a); err != nil {
			return err
		}
	}
}

func (m *member) do(ctx context.Context, msg proc.Message) (a answer, err error) {
	if msg.Kind == "setup" {
		if err := msg.Decode(&m.setup); err != nil {
			return a, err
		}
		return a, m.start(ctx)
	}
	var o order
	if err := msg.Decode(&o); err != nil {
		return a, err
	}
	switch msg.Kind {
	case "fill":
		m.content.fill(m.memory, o.Version)
	case "poison":
		m.content.poison(m.memory)
	case "push":
		var r *weights.Report
		if r, err = m.pub.Push(ctx, weights.Version(o.Version), nil); err == nil {
			a.Staging, a.Phases = r.Staging, r.Phases
		}
	case "check":
		a.Wrong = m.content.wrong(m.memory, o.Version)
	case "stage":
		err = m.quantize(ctx)
	case "save":
		err = m.save(o.Dir)
	case "load":
		err = m.load(o.Dir)
	case "usage":
	default:
		err = fmt.Errorf("weightbench: %w: order %q", hawser.ErrInvalid, msg.Kind)
	}
	var u unix.Rusage
	if e := unix.Getrusage(unix.RUSAGE_SELF, &u); e == nil {
		a.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
		a.RSS = uint64(u.Maxrss) << 10
	}
	return a, err
}

// start opens the engine, and joins.
func (m *member) start(ctx context.Context) (err error) {
	// Each rank takes its share of the processors. With more it would stage on one what it writes on another, whose caches do not have it.
	runtime.GOMAXPROCS(max(1, runtime.NumCPU()/(m.Case.Src+m.Case.Dst)))
	if m.src, m.dst, err = m.Case.Layouts(); err != nil {
		return err
	}
	name, own := fmt.Sprint("receiver-", m.Rank), m.dst
	if m.Source {
		name, own = fmt.Sprint("publisher-", m.Rank), m.src
	}
	if m.eng, err = openEngine(ctx, name, m.Network); err != nil {
		return err
	}
	for _, n := range own.Buffers[m.Rank] {
		r, err := m.eng.Alloc(uint64(max(n, 1)), hawser.MemOptions{})
		if err != nil {
			return fmt.Errorf("memory of %d bytes: %w", n, err)
		}
		clear(r.Bytes()) // no page is touched for the first time within the clock
		m.regions, m.memory = append(m.regions, r), append(m.memory, r.Bytes()[:n])
	}
	if m.content, err = newContent(own, m.Rank, m.Case.codec()); err != nil {
		return err
	}
	if !m.Source {
		m.rec, err = weights.NewReceiver(m.eng, weights.ReceiverOptions{
			Controller: m.Controller, Name: name, Rank: m.Rank, Layout: m.dst, Regions: m.regions, Verify: m.Verify,
		})
		return err
	}
	plan, err := reshard.Compute(ctx, m.src, m.dst, nil, reshard.Options{})
	if err != nil {
		return err
	}
	m.slice = plan.Source(m.Rank)
	m.pub, err = weights.NewPublisher(m.eng, weights.PublisherOptions{
		Controller: m.Controller, Name: name, Rank: m.Rank, Layout: m.src, Regions: m.regions, Verify: m.Verify,
	})
	return err
}

func openEngine(ctx context.Context, name, network string) (*hawser.Engine, error) {
	p, err := bench.Provider(network)
	if err != nil {
		return nil, err
	}
	return hawser.Open(ctx, hawser.Options{Name: name, Providers: []provider.Provider{p}, Require: network, Rails: []hawser.Rail{{Provider: network}}})
}

func (m *member) close() {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if m.pub != nil {
		_ = m.pub.Close(ctx)
	}
	if m.rec != nil {
		_ = m.rec.Close(ctx)
	}
	if m.eng != nil {
		_ = m.eng.Close(ctx)
	}
}

// quantize stages everything that this source stages in a push, into a scratch that is as large as its largest task, and sends nothing.
func (m *member) quantize(ctx context.Context) error {
	var cpu stage.CPU
	for i := range m.slice.Tasks {
		t := &m.slice.Tasks[i]
		if int64(len(m.scratch)) < t.Size {
			m.scratch = make([]byte, t.Size)
		}
		if t.Size == 0 {
			continue
		}
		if err := cpu.Stage(ctx, m.slice, t, m.memory, nil, m.scratch[:t.Size]); err != nil {
			return err
		}
	}
	return nil
}

func shardFile(rank int) string { return fmt.Sprintf("shard-%d.safetensors", rank) }

// save writes this source's shard as it lies in memory.
func (m *member) save(dir string) error {
	f, err := os.OpenFile(dir+"/"+shardFile(m.Rank), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	var tensors []safetensors.Tensor
	for i := range m.content.held {
		h := &m.content.held[i]
		tensors = append(tensors, safetensors.Tensor{Name: m.src.Tensors[h.Tensor].Name, Shape: h.Extent, DType: h.DType})
	}
	err = safetensors.Write(f, tensors, nil, func(w io.Writer, i int) error {
		h := &m.content.held[i]
		_, err := w.Write(m.memory[h.Buffer][h.Offset : h.Offset+volume(h)*h.DType.Size()])
		return err
	})
	return errors.Join(err, f.Close())
}

// load reads what this destination needs of all shards: whole rows of the tensors, as they lie in the files, and cuts out its columns.
func (m *member) load(dir string) error {
	for rank := range m.src.Buffers {
		c, err := safetensors.OpenFile(os.DirFS(dir), shardFile(rank))
		if err != nil {
			return err
		}
		held, err := m.src.Held(rank)
		if err == nil {
			err = m.loadFrom(c, held)
		}
		if err = errors.Join(err, c.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (m *member) loadFrom(c *safetensors.Checkpoint, held []reshard.Held) error {
	byName := map[string]*reshard.Held{}
	for i := range held {
		byName[m.src.Tensors[held[i].Tensor].Name] = &held[i]
	}
	for i := range m.content.held {
		h := &m.content.held[i]
		name := m.dst.Tensors[h.Tensor].Name
		s := byName[name]
		if s == nil {
			continue
		}
		if err := m.loadBox(c, name, s, h); err != nil {
			return err
		}
	}
	return nil
}

// chunkRead is how many bytes of a file are read at once where columns have to be cut out.
const chunkRead = 256 << 10

// loadBox reads the rows that both boxes have. Both sides have tensors of one or two dimensions, and sources whole columns.
func (m *member) loadBox(c *safetensors.Checkpoint, name string, s, h *reshard.Held) error {
	last := len(h.Extent) - 1
	lo, hi := max(s.Lo[0], h.Lo[0]), min(s.Lo[0]+s.Extent[0], h.Lo[0]+h.Extent[0])
	if lo >= hi || last > 1 {
		return nil
	}
	size := h.DType.Size()
	wide, narrow := size, size // bytes of a row, in the file and here
	if last == 1 {
		wide, narrow = s.Extent[1]*size, h.Extent[1]*size
	}
	from, to := (lo-s.Lo[0])*wide, h.Offset+(lo-h.Lo[0])*narrow
	if wide == narrow {
		return c.ReadAt(m.memory[h.Buffer][to:to+(hi-lo)*wide], name, from)
	}
	if m.scratch == nil {
		m.scratch = make([]byte, chunkRead)
	}
	step, skip := max(1, chunkRead/wide), h.Lo[1]*size
	for ; lo < hi; lo += step {
		n := min(step, hi-lo)
		b := m.scratch[:n*wide]
		if err := c.ReadAt(b, name, from); err != nil {
			return err
		}
		for k := range n {
			copy(m.memory[h.Buffer][to+k*narrow:][:narrow], b[k*wide+skip:])
		}
		from, to = from+n*wide, to+n*narrow
	}
	return nil
}
