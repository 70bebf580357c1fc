package weights

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/schedule"
	"github.com/hawser-project/hawser/weights/stage"
)

// ReceiverOptions is what NewReceiver needs. Controller, Layout and Regions are required.
type ReceiverOptions struct {
	Controller string          // Addr of the controller's engine
	Name       string          // for people
	Rank       int             // of Layout: this receiver
	Leader     int             // the rank of the instance, counted in it, that owns Pause and Resume; the same on all ranks. Default its lowest
	Layout     *reshard.Layout // of all inference ranks; it must not change
	Rules      []reshard.Rule  // that come with it; the controller's go first
	Regions    []*hawser.Region
	// Shadow is a second copy of the memory, as long as Regions: new versions are written there while this one serves, and Flip swaps the two.
	// Nil: in place.
	Shadow []*hawser.Region
	Verify stage.Verify
	// Poison fills every byte that is to come with a pattern before anything is written, for tests of coverage. 0: not.
	Poison     uint16
	Serving    Version // the version that is in Regions at the start; 0: none
	Hooks      Hooks
	Limits     Limits
	DoubtAfter time.Duration // how long a decision may take; default 10 s
	Window     int           // when this one writes to another: see PublisherOptions
	PerDest    int
	Log        *slog.Logger // discarded when nil
}

// Receiver is an inference rank. It takes all messages of its engine: nothing else may call Receive on it. Safe for concurrent use.
type Receiver struct {
	member
	o       ReceiverOptions
	m       *proto.Receiver
	me      proto.Member
	held    []reshard.Held // what the layout puts here, by name
	extents []extent       // the same, by place
	reading sync.Mutex     // held while memory is hashed outside of an epoch

	// guarded by mu
	copies    [2][]*hawser.Region // in place: one
	active    int                 // which copy is served
	roots     [2]proto.Hash       // what the copies hold, where it is known
	hashing   *hashing            // the root of what is served; nil: nobody has begun
	in        map[proto.Key]*reception
	suspended chan struct{} // closed when Suspend is over
	phases    phases
}

// NewReceiver starts a receiver on an engine, and joins its controller, now and whenever that comes back. Close ends it, before the engine is closed and the
// regions are.
func NewReceiver(eng *hawser.Engine, o ReceiverOptions) (*Receiver, error) {
	if err := o.check(); err != nil {
		return nil, fmt.Errorf("weights: receiver %d: %w", o.Rank, err)
	}
	o.Limits = o.Limits.withDefaults()
	r := &Receiver{member: newMember(eng, o.Log), o: o, in: map[proto.Key]*reception{}}
	r.home, r.verify, r.limits = o.Controller, o.Verify, schedule.Limits{Window: o.Window, PerDest: o.PerDest}.WithDefaults()
	r.copies[0], r.copies[1] = o.Regions, o.Shadow
	var err error
	if r.held, err = o.Layout.Held(o.Rank); err != nil {
		r.stop()
		return nil, fmt.Errorf("weights: receiver %d: %w", o.Rank, err)
	}
	r.extents = extents(r.held)
	blob, err := encodeLayout(o.Layout, o.Rules)
	if err != nil {
		r.stop()
		return nil, fmt.Errorf("weights: receiver %d: %w", o.Rank, err)
	}
	hash := proto.Hash(sha256.Sum256(blob))
	r.blobs[hash] = blob
	r.me = o.member(eng)
	r.me.Layout = hash
	r.fits, r.source, r.open = r.fitting, r.served, r.everything
	r.content = r.hashed
	r.m, err = proto.NewReceiver(proto.ReceiverConfig{
		MemberConfig: proto.MemberConfig{Member: r.me, Name: o.Name, Group: len(mates(o.Layout, r.me.Instance)), DoubtAfter: o.DoubtAfter},
		FlipAfter:    2 * o.Limits.Pause,
	}, receiverOut{r})
	if err != nil {
		r.stop()
		return nil, err
	}
	if o.Serving != 0 {
		root, err := r.rootOf(r.ctx, r.copies[0])
		if err != nil {
			r.stop()
			return nil, fmt.Errorf("weights: receiver %d: %w", o.Rank, err)
		}
		r.m.Serving(o.Serving, root)
	}
	r.zeroPads()
	r.start(r.m)
	return r, nil
}

func (o *ReceiverOptions) check() error {
	if o.Layout == nil || o.Rank < 0 || o.Rank >= len(o.Layout.Buffers) {
		return fmt.Errorf("%w: no layout, or one without this rank", hawser.ErrInvalid)
	}
	for _, regions := range [][]*hawser.Region{o.Regions, o.Shadow} {
		if regions == nil && o.Regions != nil {
			continue // in place
		}
		if err := checkBuffers(o.Layout.Buffers[o.Rank], regions); err != nil {
			return err
		}
	}
	return nil
}

// checkBuffers checks that regions are as long as a layout says.
func checkBuffers(sizes []int64, regions []*hawser.Region) error {
	if len(sizes) != len(regions) {
		return fmt.Errorf("%w: %d regions, the layout has %d buffers", hawser.ErrInvalid, len(regions), len(sizes))
	}
	for i, r := range regions {
		if r == nil || r.Len() < uint64(sizes[i]) {
			return fmt.Errorf("%w: region %d is missing or shorter than its buffer, %d bytes", hawser.ErrInvalid, i, sizes[i])
		}
	}
	return nil
}

// member is how the epoch's members see this one.
func (o *ReceiverOptions) member(eng *hawser.Engine) proto.Member {
	m := proto.Member{ID: eng.ID(), Addr: eng.Addr(), Role: proto.RoleReceiver, Rank: o.Rank, Shadow: o.Shadow != nil}
	m.Instance = instanceOf(o.Layout, o.Rank)
	m.Shard = slices.Index(mates(o.Layout, m.Instance), o.Rank)
	m.Leader = m.Shard == o.Leader
	return m
}

// instanceOf is the inference engine that a rank is part of.
func instanceOf(l *reshard.Layout, rank int) int {
	if l.Topo.Instance == nil {
		return 0
	}
	return l.Topo.Instance[rank]
}

// mates are the ranks of an instance, in order.
func mates(l *reshard.Layout, instance int) (ranks []int) {
	for r := range l.Buffers {
		if instanceOf(l, r) == instance {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// zeroPads zeroes the bytes that belong to no tensor.
func (r *Receiver) zeroPads() {
	for _, p := range r.o.Layout.Pads {
		for _, memory := range r.copies {
			if p.Rank == r.o.Rank && memory != nil {
				clear(memory[p.Buffer].Bytes()[p.Offset : p.Offset+p.Len])
			}
		}
	}
}

// served are the regions that the engine reads. Needs mu.
func (r *Receiver) served() []*hawser.Region { return r.copies[r.active] }

// everything is all that may be written to. Needs mu.
func (r *Receiver) everything() []*hawser.Region { return slices.Concat(r.copies[0], r.copies[1]) }

// writes is the copy that a new version goes into. Needs mu.
func (r *Receiver) writes() int {
	if r.copies[1] == nil {
		return 0
	}
	return 1 - r.active
}

// Active is the memory that holds the version that is served; with a shadow it changes in Flip.
func (r *Receiver) Active() []*hawser.Region {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.served())
}

// fitting checks that a slice is of this rank and covers exactly its layout, or, of a copy, is part of it.
func (r *Receiver) fitting(m proto.Mode, s *reshard.Slice) error {
	if s.Rank != r.o.Rank {
		return fmt.Errorf("%w: slice of rank %d", hawser.ErrInvalid, s.Rank)
	}
	if s.Source {
		return stage.Check(s)
	}
	return inside(s, r.extents)
}

// ReceiverState is a snapshot.
type ReceiverState struct {
	Rank, Instance int
	State          proto.State
	Version        Version    // that is served; 0: none
	Root           proto.Hash // its content root, zero when it is not known
	Held           Version    // an older version that could be taken back
	Epoch          uint64
	Term           proto.Term
	InDoubt        bool
	Missing        []Missing // of the epoch that is under way
	Stuck          []Stuck
}

// Stuck is a range that somebody may still write into, because it stands in the middle of a write. The receiver takes part in no epoch until that goes on or dies.
type Stuck struct {
	Peer      proto.ID
	Publisher int // rank; -1: not known, nor is the range
	Buffer    int
	From, To  int64 // the end is not part of it
}

// State returns a snapshot.
func (r *Receiver) State() ReceiverState {
	r.mu.Lock()
	defer r.mu.Unlock()
	st := r.m.Status()
	s := ReceiverState{
		Rank: r.o.Rank, Instance: r.me.Instance, State: st.State, Root: st.Root, Held: st.Held, Epoch: st.Epoch.Number,
		Term: st.Epoch.Term, InDoubt: r.doubt,
	}
	if st.Active == proto.StateCommitted {
		s.Version = st.Version
	}
	in := r.in[st.Epoch]
	if in != nil {
		s.Missing = in.missing()
	}
	for _, id := range st.Stuck {
		s.Stuck = append(s.Stuck, in.stuck(id)...)
	}
	return s
}

// Serve waits until ctx ends, then closes the receiver.
func (r *Receiver) Serve(ctx context.Context) error {
	<-ctx.Done()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.o.Limits.Commit)
	defer cancel()
	return r.Close(end)
}

// Suspend takes all rights to write away, and returns when the regions may be closed and the memory unmapped. ErrBusy: an epoch is under way.
func (r *Receiver) Suspend(ctx context.Context) error {
	r.mu.Lock()
	over := r.suspended
	if over == nil {
		over = make(chan struct{})
		r.suspended = over
	}
	err := r.m.Suspend(r.now())
	if err != nil {
		r.suspended = nil
	}
	r.unlock()
	if err != nil {
		return err
	}
	select {
	case <-over:
		r.reading.Lock()   // what is being hashed is read to its end
		r.reading.Unlock() //nolint:staticcheck // it waits, and guards nothing
	case <-ctx.Done():
		return fmt.Errorf("weights: suspend receiver %d: %w", r.o.Rank, context.Cause(ctx))
	}
	if err := r.remember(ctx); err != nil {
		return fmt.Errorf("weights: suspend receiver %d: %w", r.o.Rank, err)
	}
	return nil
}

// Resume ends a suspension: the memory is mapped again, at the same addresses, and registered anew. The version is served again if the content is what it was;
// else the receiver is empty, and waits for the next push. Shadow is needed if there was one; its content is not kept.
func (r *Receiver) Resume(ctx context.Context, regions, shadow []*hawser.Region) error {
	o := r.o
	o.Regions, o.Shadow = regions, shadow
	if err := o.check(); err != nil || (shadow == nil) != (r.o.Shadow == nil) {
		return fmt.Errorf("weights: resume receiver %d: %w", r.o.Rank, cmp.Or(err, hawser.ErrInvalid))
	}
	root, err := r.rootOf(ctx, regions)
	if err != nil {
		return fmt.Errorf("weights: resume receiver %d: %w", r.o.Rank, err)
	}
	r.mu.Lock()
	defer r.unlock()
	if err := r.m.Awake(r.now(), root); err != nil {
		return err
	}
	r.suspended = nil
	r.copies, r.active = [2][]*hawser.Region{regions, shadow}, 0
	r.roots = [2]proto.Hash{}
	return nil
}

// Close stops taking part. What publishers have under way may still land until the engine or the regions are closed.
func (r *Receiver) Close(context.Context) error {
	r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, in := range r.in {
		in.in.put()
	}
	return nil
}
