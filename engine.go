package hawser

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/ring"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// ID is the identity of an engine: random, new for each Open, so that a restarted process is another peer.
type ID [16]byte

func (id ID) String() string { return hex.EncodeToString(id[:]) }

// MarshalText is String, for JSON and the like.
func (id ID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// Engine owns the devices, the memory and the peers of a process.
//
// Goroutines: one worker, which owns all rails, one dispatcher, one for callbacks, one while words are watched, one heart, one per
// listener, and two per peer. Close joins them all.
type Engine struct {
	opts   Options
	id     ID
	addr   wire.Addr
	secret [32]byte // signs descriptors

	callerSpin time.Duration // how long waiting callers look before they sleep; fixed by Open

	rails     []provider.Device // as opened
	caps      []provider.Caps   // by rail
	deadRails []atomic.Bool     // by rail; set by the worker
	leftOut   map[string]string // see Stats.LeftOut; fixed by Open
	worker    *worker
	notes     *dispatcher
	calls     *callbacks
	watches   *watches
	imms      *imm.Table
	managed   Imms
	inbox     *inbox

	newcomers  pacer            // connections of the TCP control listener
	ops        *ring.Queue[*op] // free ones
	scatters   *ring.Queue[*scatter]
	inflight   atomic.Int64  // operations from takeOp to dropOp
	revokeTime time.Duration // see the constant; tests change it
	serial     atomic.Uint64 // of the descriptor that was issued last
	bulks      atomic.Int64  // calls of SendBulk
	waits      atomic.Int64  // waiters of counters
	newOps     atomic.Uint32 // operations, and scatters, that were made
	tracer     *tracer       // nil: nothing is traced
	closing    atomic.Bool
	done       chan struct{}  // closed when nothing moves any more: ends all waits
	wg         sync.WaitGroup // listeners, handshakes, sessions, heart
	ctx        context.Context
	cancel     context.CancelFunc

	closeOnce sync.Once
	closeErr  error // guarded by closeOnce

	counterMu sync.Mutex // guards imm.Counter.Owner
	creditors creditors

	mu         sync.Mutex
	regions    map[uint64]*Region
	nextRegion uint64
	peers      map[ID]*Peer
	lastPeer   uint32        // number of the latest
	fenced     map[ID]uint64 // serial of the last descriptor that was issued when the peer was fenced; see staleSerial
	dials      map[string]*dial
	refused    refused
	redials    chan struct{} // places of those that dial to bring a peer back
	observers  map[int]func(PeerEvent)
	nextObs    int
	closed     bool
	listeners  []net.Listener
}

// Open opens the rails and starts serving peers. It fails when no rail can be opened, and when a rail that Options.Rails lists
// cannot.
func Open(ctx context.Context, o Options) (*Engine, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("open: %w", err)
	}
	e := &Engine{
		opts: o, revokeTime: revokeTime, imms: imm.NewTable(), ops: ring.NewQueue[*op](poolSize), scatters: ring.NewQueue[*scatter](idleScatters), done: make(chan struct{}),
		regions: map[uint64]*Region{}, peers: map[ID]*Peer{}, fenced: map[ID]uint64{}, dials: map[string]*dial{},
		redials: make(chan struct{}, maxRedials), observers: map[int]func(PeerEvent){},
	}
	e.newcomers.rate, e.newcomers.burst = newcomerRate, newcomerBurst
	_, _ = rand.Read(e.id[:]) // never fails (crypto/rand)
	_, _ = rand.Read(e.secret[:])
	e.managed.e, e.managed.target = e, &e.managed
	e.ctx, e.cancel = context.WithCancel(context.Background())
	if err := e.bringUp(ctx); err != nil {
		return nil, fmt.Errorf("open: %w", errors.Join(err, e.Close(ctx)))
	}
	return e, nil
}

// poolSize is how many idle operations are kept.
const poolSize = 8192

// bringUp brings up everything that Close takes down, in the order in which things need each other.
func (e *Engine) bringUp(ctx context.Context) (err error) {
	if e.notes, err = newDispatcher(); err != nil {
		return err
	}
	e.calls = newCallbacks(e.opts.Log)
	if e.opts.Trace != nil {
		e.tracer = newTracer(e)
	}
	e.watches = newWatches(e)
	if err := e.openRails(ctx); err != nil {
		return err
	}
	if err := e.listen(ctx); err != nil {
		return err
	}
	e.wg.Go(e.heart)
	return nil
}

// IDOf is the identity of the engine whose Addr returned addr.
func IDOf(addr string) (ID, error) {
	a, err := wire.ParseAddr(addr)
	if err != nil {
		return ID{}, fmt.Errorf("address: %w: %w", ErrInvalid, err)
	}
	return a.ID, nil
}

// Addr is where this engine can be reached: opaque and printable. Give it to peers by any means.
func (e *Engine) Addr() string { return e.addr.String() }

// ID is the identity of this engine.
func (e *Engine) ID() ID { return e.id }

// Close drains what is in flight until ctx ends, tells the peers, and frees everything, whatever happens on the way. What is in
// flight when ctx ends fails with ErrClosed. It waits for callbacks that are under way, ErrBusy when one does
// not return, so it must not be called by one. Regions and remotes must not be used afterwards. It is safe to call twice.
func (e *Engine) Close(ctx context.Context) error {
	e.closeOnce.Do(func() { e.closeErr = e.close(ctx) })
	return e.closeErr
}

func (e *Engine) close(ctx context.Context) error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	e.closing.Store(true)
	e.drain(ctx)

	e.cancel()
	for _, p := range e.hangUp() {
		p.leave()
	}
	e.wg.Wait()
	err := e.release()
	close(e.done)
	e.closeCounters()
	if e.watches != nil {
		err = errors.Join(err, e.watches.stop(ctx)) // before calls, which log its panics
	}
	if e.calls != nil {
		err = errors.Join(err, e.calls.stop(ctx)) // after the waits of callbacks have ended
	}
	if err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// closeCounters ends all waits for counters. Those that come later see that the engine is done.
func (e *Engine) closeCounters() {
	e.counterMu.Lock()
	defer e.counterMu.Unlock()
	e.imms.Each(func(c *imm.Counter) {
		if owner, ok := c.Owner.(*Counter); ok {
			owner.close()
		}
	})
}

// hangUp closes the listeners and returns the peers.
func (e *Engine) hangUp() []*Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, l := range e.listeners {
		_ = l.Close()
	}
	return slices.Collect(maps.Values(e.peers))
}

// drain waits until no operation and no bulk message is in flight.
func (e *Engine) drain(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for e.inflight.Load() > 0 || e.bulks.Load() > 0 {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// release ends the worker, then frees the memory: nothing can reach it any more.
func (e *Engine) release() error {
	var errs []error
	if e.worker != nil {
		e.inbox.close()
		errs = append(errs, e.worker.stop())
	}
	if e.notes != nil {
		e.notes.stop()
	}
	if e.worker != nil {
		errs = append(errs, e.worker.parker.Close())
	}
	e.mu.Lock()
	regions := slices.Collect(maps.Values(e.regions))
	e.mu.Unlock()
	for _, r := range regions {
		errs = append(errs, r.free())
	}
	return errors.Join(errs...)
}

func (e *Engine) addRegion(r *Region) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.nextRegion++
	r.id = e.nextRegion
	e.regions[r.id] = r
	return true
}

func (e *Engine) dropRegion(r *Region) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.regions, r.id)
}

func (e *Engine) region(id uint64) *Region {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.regions[id]
}

// ListenAddrs are the host:port addresses of the control listener, as told to peers.
func (e *Engine) ListenAddrs() []string { return append([]string(nil), e.addr.Listen...) }
