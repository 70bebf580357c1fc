package kvbench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// setup is what the child is told first.
type setup struct {
	Network   string
	Rails     int
	Shape     shape
	Tokens    int           // of the prompt whose cache is filled in
	LayerTime time.Duration // of each layer; 0: all at once
	Cached    bool          // the cache counts as computed when a request comes
	Idle      bool          // nothing is ever computed
	Jobs      int           // live ones
	Credits   int           // pages that decoders may ask for at once; those of the shape when 0
	Profile   string        // file of a processor profile; empty: none
}

// state is what the child answers about itself.
type state struct {
	Addr  string
	CPU   float64 // seconds
	Heap  uint64  // bytes, after a collection
	RSS   uint64
	Took  time.Duration
	Times []int64 // of Tell: when each layer was computed, the beginning first
}

// question is everything that the child is asked after its setup.
type question struct {
	Request string   // times: the request
	Layer   int      // copy, socket
	Pages   []uint32 // copy, socket: of the other side
	Dst     shape    // pieces: the other side
	Addr    string   // socket
}

// server is the prefilling process: a kv.Handler whose cache is there already.
type server struct {
	setup
	*memory
	eng   *hawser.Engine
	p     *kv.Prefiller
	pages []uint32 // of the prompt
	tails *hawser.Region
	tasks chan *kv.Job
	done  sync.WaitGroup
	other []byte // where the yardstick copies to

	mu    sync.Mutex
	times map[string][]int64 // by request; guarded by mu
	conn  net.Conn
}

const tailBytes = 64

// Serve is the child: it answers its parent until that is gone.
func Serve(ctx context.Context) error {
	parent, ctx := proc.Attach(ctx)
	err := serve(ctx, parent)
	if errors.Is(err, proc.ErrParentGone) {
		err = nil
	}
	if err != nil {
		parent.Fail(err)
	}
	return err
}

func serve(ctx context.Context, parent *proc.Parent) (err error) {
	m, err := parent.Next(ctx)
	if err != nil {
		return err
	}
	s := &server{tasks: make(chan *kv.Job, 1<<16), times: map[string][]int64{}}
	if err := m.Decode(&s.setup); err != nil {
		return err
	}
	if err := s.open(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if s.Profile != "" {
		stop, err := profile(s.Profile)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := parent.Send("state", state{Addr: s.eng.Addr()}); err != nil {
		return err
	}
	for {
		m, err := parent.Next(ctx)
		if err != nil {
			return err
		}
		var q question
		if err := m.Decode(&q); err != nil {
			return err
		}
		a, err := s.answer(m.Kind, &q)
		if err != nil {
			return err
		}
		if err := parent.Send("state", a); err != nil {
			return err
		}
	}
}

// profile takes a processor profile until stop is called.
func profile(path string) (stop func(), err error) {
	f, err := os.Create(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = f.Close()
	}, nil
}

func (s *server) open(ctx context.Context) (err error) {
	if s.eng, err = openEngine(ctx, "prefiller", s.Network, s.Rails); err != nil {
		return err
	}
	if s.memory, err = newMemory(s.eng, s.Shape); err != nil {
		return err
	}
	s.pages = scattered(s.Shape.Pages)
	s.fill(s.pages, s.Tokens)
	if s.tails, err = s.eng.Alloc(tailBytes, hawser.MemOptions{}); err != nil {
		return err
	}
	credits := s.Credits
	if credits == 0 {
		credits = s.Shape.Pages
	}
	s.p, err = kv.NewPrefiller(s.eng, kv.PrefillerConfig{
		Instance: "p", Topology: &layout.Topology{Members: []layout.Geometry{s.g}}, Regions: s.regions, Pages: credits, Jobs: s.Jobs,
		Options: layout.Options{AllowSmallWrites: true},
	}, s)
	if err != nil {
		return err
	}
	s.done.Go(s.run)
	return nil
}

func (s *server) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	err := s.p.Close(ctx)
	close(s.tasks)
	s.done.Wait()
	if s.conn != nil {
		_ = s.conn.Close()
	}
	return errors.Join(err, s.eng.Close(ctx))
}

// Admit gives every job the same pages: they are only read.
func (s *server) Admit(j *kv.Job) proto.Admission {
	a := proto.Admission{Verdict: proto.AdmitReady, Source: proto.SourcePages{Pages: []layout.Pages{{Index: s.pages}}}}
	if s.Cached {
		a.Source.Cached = j.Info().Prompt.Tokens
	}
	return a
}

// Start queues the job.
func (s *server) Start(j *kv.Job) {
	if !s.Idle {
		s.tasks <- j
	}
}

// Stop does nothing: a pass over a job that is gone sends nothing.
func (s *server) Stop(*kv.Job) {}

// Unpin does nothing: the pages stay what they are.
func (s *server) Unpin(*kv.Job) {}

func (s *server) run() {
	for j := range s.tasks {
		if err := s.compute(j); err != nil && !errors.Is(err, hawser.ErrClosed) {
			j.Fail(err)
		}
	}
}

// compute is one pass.
func (s *server) compute(j *kv.Job) error {
	if !s.Cached {
		if err := s.layers(j); err != nil {
			return err
		}
	}
	if j.Info().Tail {
		return j.Tail(s.tails.Slice(0, tailBytes))
	}
	return nil
}

func (s *server) layers(j *kv.Job) error {
	pass := s.p.NewPass()
	pass.Add(j, proto.Span{N: j.Info().Prompt.Tokens})
	if _, err := s.p.Begin(pass); err != nil {
		return err
	}
	times := make([]int64, 1, s.g.Layers+1)
	times[0] = clock()
	for layer := range s.g.Layers {
		s.wait(times[0] + int64(layer+1)*int64(s.LayerTime))
		times = append(times, clock())
		for rank := range s.g.Ranks {
			pass.LayerReady(rank, layer, false)
		}
	}
	pass.End()
	s.mu.Lock()
	s.times[j.ID()] = times
	s.mu.Unlock()
	return nil
}

// wait waits for a time, or for nothing when it is past.
func (s *server) wait(at int64) {
	for now := clock(); now < at; now = clock() {
		time.Sleep(time.Duration(at - now))
	}
}

// answer does what the parent asks for.
func (s *server) answer(kind string, q *question) (a state, err error) {
	switch kind {
	case "state":
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		a = state{CPU: cpuTime(), Heap: m.HeapAlloc, RSS: residentBytes()}
	case "cpu":
		a.CPU = cpuTime()
	case "times":
		s.mu.Lock()
		a.Times = s.times[q.Request]
		delete(s.times, q.Request)
		s.mu.Unlock()
	case "copy":
		a.Took = s.copyLayer(q)
	case "pieces":
		a.Took, err = s.copyPieces(q.Dst)
	case "dial":
		s.conn, err = net.Dial("tcp", q.Addr)
	case "socket":
		err = s.sendLayer(q, &a)
	default:
		err = fmt.Errorf("question %q: %w", kind, hawser.ErrInvalid)
	}
	return a, err
}

// sources calls f for the pages of one layer of the prompt, in the order in which they are sent.
func (s *server) sources(q *question, f func(i int, page []byte)) {
	i := 0
	for r := range s.g.Ranks {
		k := &s.g.Ranks[r]
		for _, v := range k.Views[q.Layer] {
			memory := s.regions[v.Region].Bytes()
			for n := range q.Pages {
				at := v.Base + int64(s.pages[n])*v.Page
				f(i, memory[at:at+v.Page])
				i++
			}
		}
	}
}

// otherBytes is how much memory the yardstick spreads its copies over: more than the caches hold.
const otherBytes = 512 << 20

// copyLayer copies the pages of one layer to other memory, in the order and to the distances of the other side's pages.
func (s *server) copyLayer(q *question) time.Duration {
	if s.other == nil {
		s.other = make([]byte, otherBytes)
		for i := 0; i < len(s.other); i += 4096 {
			s.other[i] = 1 // so that the memory is there
		}
	}
	start := time.Now()
	s.sources(q, func(i int, page []byte) {
		slot := (q.Layer*len(q.Pages)*2 + i/len(q.Pages)*len(q.Pages) + int(q.Pages[i%len(q.Pages)])) * len(page) % (otherBytes - len(page))
		copy(s.other[slot:], page)
	})
	return time.Since(start)
}

// copyPieces copies the whole prompt to other memory in the pieces, and in the order, in which it is written to the other side.
func (s *server) copyPieces(dst shape) (time.Duration, error) {
	w, err := work(s.Shape, dst, s.Tokens, scattered(dst.Pages))
	if err != nil {
		return 0, err
	}
	if uint64(len(s.other)) < w.Dst {
		s.other = make([]byte, w.Dst)
		clear(s.other) // so that the memory is there
	}
	regions := make([]uint64, len(s.regions)+1) // where each begins, as if one followed the other
	for i, r := range s.regions {
		regions[i+1] = regions[i] + r.Len()
	}
	start := time.Now()
	i := 0
	for _, x := range w.Ranges {
		for x.Src < regions[i] || x.Src >= regions[i+1] {
			i = (i + 1) % len(s.regions)
		}
		at := x.Src - regions[i]
		copy(s.other[x.Dst:x.Dst+x.Len], s.regions[i].Bytes()[at:at+x.Len])
	}
	return time.Since(start), nil
}

// sendLayer sends the pages of one layer through the socket.
func (s *server) sendLayer(q *question, a *state) error {
	var list net.Buffers
	s.sources(q, func(_ int, page []byte) { list = append(list, page) })
	a.Times = []int64{clock()}
	_, err := list.WriteTo(s.conn)
	return err
}

// openEngine opens an engine on one network.
func openEngine(ctx context.Context, name, network string, rails int) (*hawser.Engine, error) {
	p, err := providerOf(network)
	if err != nil {
		return nil, err
	}
	o := hawser.Options{Name: name, Providers: p, Require: network}
	for range max(1, rails) {
		o.Rails = append(o.Rails, hawser.Rail{Provider: network})
	}
	return hawser.Open(ctx, o)
}

// closeLimit bounds the end of a process.
const closeLimit = 10 * time.Second
