package weights

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights/proto"
	"github.com/hawser-project/hawser/weights/schedule"
	"github.com/hawser-project/hawser/weights/stage"
)

// memberMachine is what the machines of publishers and receivers have in common.
type memberMachine interface {
	machine
	Controller(now proto.Time, id proto.ID)
	Adopted(now proto.Time, e proto.Key, err error)
	Granted(now proto.Time, e proto.Key, imms []uint32, descriptors [][]byte, err error)
	Fenced(now proto.Time, id proto.ID)
	Unfenced(now proto.Time, id proto.ID, err error)
	Staged(now proto.Time, e proto.Key, sums []proto.StageSum)
	Wrote(now proto.Time, e proto.Key, missed, unquiet []int, err error)
}

// member is what a Publisher and a Receiver have in common: the session with the controller, slices of plans, memory that others may write
// to, and the writing of what this one has.
type member struct {
	station
	mm     memberMachine
	home   string        // the controller's Addr; guarded by mu
	office *hawser.Peer  // the controller, when there was a session; guarded by mu
	moved  chan struct{} // capacity 1: home has changed
	stager Stager
	reach  reach
	limits schedule.Limits
	mark   int64 // watermark
	verify stage.Verify
	fits   func(m proto.Mode, s *reshard.Slice) error // what a slice must be to be this member's
	source func() []*hawser.Region                    // what this member writes from. Needs mu
	open   func() []*hawser.Region                    // what others may write to. Needs mu
	// content hashes what is served; nil: nothing is.
	content func() *Content
	spans   spans

	// guarded by mu
	slices  map[proto.Key]adopted
	remotes map[proto.ID]*foreign
	imports uint64         // of descriptors
	out     *outbound      // what is being written, nil when nothing is
	staging *hawser.Region // kept from push to push
	doubt   bool
}

// adopted is a slice that fits.
type adopted struct {
	slice   *reshard.Slice // not changed any more: epochs with the same plan share it
	version proto.Version
	mode    proto.Mode
	hash    proto.Hash
}

// keptSlices is how many epochs' slices are kept.
const keptSlices = 4

// foreign is the memory of another member: what it has granted last.
type foreign struct {
	serial      uint64
	descriptors [][]byte
	session     uint64 // in which regions were imported
	regions     []*hawser.Remote
	base        []int64
}

func newMember(eng *hawser.Engine, log *slog.Logger) member {
	return member{station: newStation(eng, log), reach: near, moved: make(chan struct{}, 1), slices: map[proto.Key]adopted{}, remotes: map[proto.ID]*foreign{}}
}

// start begins to run the machine.
func (m *member) start(mm memberMachine) {
	m.mm = mm
	m.other = m.questioned
	m.begin(mm)
	m.wg.Go(m.stay)
}

// Rehome names the controller that this member belongs to from now on: one that was started again is at another address.
func (m *member) Rehome(controller string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.home = controller
	signal(m.moved)
}

// stay keeps a session with the controller.
func (m *member) stay() {
	pause := time.Duration(0)
	for m.ctx.Err() == nil {
		m.mu.Lock()
		home := m.home
		m.mu.Unlock()
		p, err := m.connect(home)
		if err != nil {
			m.log.Debug("no session with the controller", "err", err)
			pause = min(max(2*pause, 50*time.Millisecond), 2*time.Second)
			m.rest(pause)
			continue
		}
		pause = 0
		m.event(func(now proto.Time) {
			m.met(p)
			m.office = p
			m.mm.Controller(now, p.ID())
		})
		for session := p.Session(); p.Up() && p.Session() == session && m.ctx.Err() == nil; {
			if m.rest(100 * time.Millisecond) {
				break
			}
		}
	}
}

// byeMagic is the message of a member that is closing.
const byeMagic = "hwL1"

// leave tells the controller that the member is closing, so that nobody waits for it to come back, and ends it.
func (m *member) leave() {
	m.mu.Lock()
	if m.office != nil && m.office.Up() {
		m.deliver(m.known(m.office.ID()), []byte(byeMagic))
	}
	m.mu.Unlock()
	m.end()
}

func (m *member) connect(home string) (*hawser.Peer, error) {
	ctx, cancel := context.WithTimeout(m.ctx, connectLimit)
	defer cancel()
	return m.eng.Connect(ctx, home)
}

// rest waits, and reports whether the controller has moved meanwhile.
func (m *member) rest(d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-m.moved:
		return true
	case <-m.ctx.Done():
	}
	return false
}

// Adopt reads a slice, unless an epoch before had the same.
func (m *member) Adopt(e proto.Key, mode proto.Mode, v proto.Version, plan, hash proto.Hash) {
	blob := m.blobs[hash]
	var same *reshard.Slice
	for _, a := range m.slices {
		if a.hash == hash && a.mode == mode {
			same = a.slice
		}
	}
	m.do(func(context.Context) func(proto.Time) {
		s := &reshard.Slice{}
		var err error
		if same != nil {
			s = same
		} else if hash != (proto.Hash{}) {
			if s, err = reshard.ParseSlice(blob); err == nil {
				err = m.fits(mode, s)
			}
		}
		return func(now proto.Time) {
			if err == nil {
				m.adopt(e, adopted{s, v, mode, hash})
			}
			m.mm.Adopted(now, e, err)
		}
	})
}

func (m *member) adopt(e proto.Key, a adopted) {
	m.slices[e] = a
	for len(m.slices) > keptSlices {
		oldest := e
		for k := range m.slices {
			if k.Compare(oldest) < 0 {
				oldest = k
			}
		}
		delete(m.slices, oldest)
	}
}

// Fence takes a right away.
func (m *member) Fence(id proto.ID, hard bool) {
	p := m.eng.Peer(id) // also one that has only imported, and never said a word
	regions := slices.Clone(m.open())
	m.do(func(ctx context.Context) func(proto.Time) {
		err := m.fence(ctx, p, regions, hard)
		return func(now proto.Time) {
			if err != nil {
				m.log.Warn("fence has no proof, retrying", "peer", p, "err", err)
				m.mm.Unfenced(now, id, err)
				return
			}
			m.mm.Fenced(now, id)
		}
	})
}

// fenceLimit bounds one try. Safety does not depend on it.
const fenceLimit = 2 * time.Second

// fence proves that nothing of a peer can land any more. A peer that never was there has nothing.
func (m *member) fence(ctx context.Context, p *hawser.Peer, regions []*hawser.Region, hard bool) error {
	if p == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, fenceLimit)
	defer cancel()
	if hard {
		return m.eng.Fence(ctx, p)
	}
	for _, r := range regions {
		if err := r.Revoke(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// Doubt notes that the decision does not come.
func (m *member) Doubt(e *proto.Epoch, doubt bool) {
	if m.doubt = doubt; doubt {
		m.log.Warn("in doubt: the decision does not come", "epoch", e.Key, "version", e.Version)
	}
}

// Start begins to write what the member serves. A Publisher has its own.
func (m *member) Start(e *proto.Epoch, grants []proto.PeerGrant) { m.write(newOutbound(m, e, grants)) }

// write begins to write. Needs mu.
func (m *member) write(o *outbound) {
	m.out = o
	m.wg.Go(o.run)
}

// Imported is the serial of what is imported of a member. Needs mu.
func (m *member) Imported(id proto.ID) uint64 {
	if f := m.remotes[id]; f != nil && f.regions != nil && f.fresh() {
		return f.serial
	}
	return 0
}

// Drop leaves receivers out.
func (m *member) Drop(e proto.Key, members []int) {
	if o := m.out; o != nil && o.e.Key == e {
		o.drop(members)
	}
}

// Stop ends the submitting.
func (m *member) Stop(e proto.Key) {
	if o := m.out; o != nil && o.e.Key == e {
		o.cancel(errStopped)
	}
}

// errStopped: the epoch is being ended or repaired.
var errStopped = errors.New("stopped by the controller")

// describe issues descriptors of ranges of regions: each preceded by where the range begins. Nil where there is none.
func describe(regions []*hawser.Region, h []hull) ([][]byte, error) {
	all := make([][]byte, len(regions))
	for _, x := range h {
		d, err := regions[x.buffer].Descriptor(regions[x.buffer].Slice(uint64(x.lo), uint64(x.hi-x.lo)), hawser.RightWrite).MarshalBinary()
		if err != nil {
			return nil, fmt.Errorf("buffer %d: %w", x.buffer, err)
		}
		all[x.buffer] = append(le.AppendUint64(nil, uint64(x.lo)), d...)
	}
	return all, nil
}

// imported returns what a member has granted, and imports it when it has not been, or not in this session. One goroutine at a time, that of the
// outbound, calls it: it alone changes what was imported, with mu held, because the machine asks for it.
func (m *member) imported(ctx context.Context, owner proto.ID, g *proto.Grant) (*foreign, error) {
	m.mu.Lock()
	f := m.remotes[owner]
	if f == nil || (f.serial != g.Serial && g.Descriptors != nil) {
		f = &foreign{serial: g.Serial, descriptors: g.Descriptors}
		m.remotes[owner] = f
	}
	m.mu.Unlock()
	if f.serial != g.Serial || f.descriptors == nil {
		return nil, fmt.Errorf("%w: descriptors %d are granted, and only %d are here", hawser.ErrStale, g.Serial, f.serial)
	}
	if f.regions != nil && f.fresh() {
		return f, nil
	}
	regions, base, session := make([]*hawser.Remote, len(f.descriptors)), make([]int64, len(f.descriptors)), uint64(0)
	for i, b := range f.descriptors {
		if len(b) < 8 {
			continue
		}
		var d hawser.Descriptor
		if err := d.UnmarshalBinary(b[8:]); err != nil {
			return nil, fmt.Errorf("buffer %d: %w", i, err)
		}
		if d.Owner() != owner {
			return nil, fmt.Errorf("buffer %d: %w: it belongs to engine %s, not to the one that grants it", i, hawser.ErrAccess, d.Owner())
		}
		r, err := m.eng.Import(ctx, d)
		if err != nil {
			return nil, fmt.Errorf("buffer %d: %w", i, err)
		}
		regions[i], base[i], session = r, int64(le.Uint64(b)), r.Peer().Session()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f.regions, f.base, f.session = regions, base, session
	for _, r := range regions {
		if r != nil {
			m.imports++
		}
	}
	return f, nil
}

// fresh reports whether the regions are of the session that their owner has now.
func (f *foreign) fresh() bool {
	for _, r := range f.regions {
		if r != nil && (!r.Peer().Up() || r.Peer().Session() != f.session) {
			return false
		}
	}
	return true
}
