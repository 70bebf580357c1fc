package hawser

import (
	"context"
	"crypto/subtle"
	"errors"
	"fmt"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
)

// Remote is memory of a peer that this engine may write to, made from a Descriptor by Import. It lives as long as the session
// with the peer; operations on it fail with ErrStale afterwards.
type Remote struct {
	sess *session
	area *area
	rr   rail.Remote
	d    wire.Descriptor
}

// RemoteSlice is a part of a Remote.
type RemoteSlice struct {
	Remote   *Remote
	Off, Len uint64 // bytes, from the beginning of the descriptor's range
}

// Import asks the owner of d for the keys of its networks, connecting first if needed: also when the session that is there turns out
// to have ended on the other side.
func (e *Engine) Import(ctx context.Context, d Descriptor) (*Remote, error) {
	if d.Owner() == (ID{}) {
		return nil, fmt.Errorf("import: %w: an empty descriptor", ErrInvalid)
	}
	for try := 1; ; try++ {
		p, err := e.connect(ctx, target{id: d.d.Owner, addr: d.d.Addr})
		if err != nil {
			return nil, fmt.Errorf("import: %w", err)
		}
		s, err := p.session()
		if s != nil && err != nil && s.endedThere() && try < importTries {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("import: %w", err)
		}
		r, err := s.importFrom(ctx, &d)
		if err == nil && !r.area.hold.Revoked() {
			return r, nil
		}
		if err == nil {
			err = fmt.Errorf("%w: %w", ErrStale, errTaken)
		} else if !s.endedThere() {
			return nil, fmt.Errorf("import from %s: %w", p, err)
		}
		if try == importTries {
			return nil, fmt.Errorf("import from %s: %w", p, err)
		}
	}
}

// importTries is how often a region may be taken back, or a session end, while a region is imported: the descriptor may have been
// issued after that.
const importTries = 3

// endedThere reports whether the session has ended, and not because this side wanted it.
func (s *session) endedThere() bool {
	why := s.cause()
	return errors.Is(why, ErrPeerDown) && !errors.Is(why, errFenced) && !errors.Is(why, errBroken)
}

func (s *session) importFrom(ctx context.Context, d *Descriptor) (*Remote, error) {
	a := s.lent.areas.get(s, d.d.Region) // before the owner grants: what it takes back after that is seen
	var res wire.Resolved
	if err := s.ask(ctx, wire.TypeResolve, &wire.Resolve{Descriptor: d.d}, &res); err != nil {
		return nil, err
	}
	if err := faultError(&res); err != nil {
		return nil, err
	}
	r := &Remote{sess: s, area: a, d: d.d}
	r.rr.Hold = &a.hold
	r.rr.Init(s.links.Load(), r, railKeys(res.Keys))
	return r, nil
}

func faultError(res *wire.Resolved) error {
	switch res.Fault {
	case wire.FaultNone:
		return nil
	case wire.FaultStale:
		return fmt.Errorf("%w: %s", ErrStale, res.Text)
	case wire.FaultAccess:
		return fmt.Errorf("%w: %s", ErrAccess, res.Text)
	case wire.FaultUnsupported:
		return fmt.Errorf("%w: %s", ErrUnsupported, res.Text)
	}
	return errors.New(res.Text)
}

// Len is the length in bytes.
func (r *Remote) Len() uint64 { return r.d.Len }

// Peer is the owner.
func (r *Remote) Peer() *Peer { return r.sess.peer }

// All is the whole range.
func (r *Remote) All() RemoteSlice { return RemoteSlice{Remote: r, Len: r.d.Len} }

// Slice is n bytes from off. Bounds are checked by the operation that uses it.
func (r *Remote) Slice(off, n uint64) RemoteSlice { return RemoteSlice{Remote: r, Off: off, Len: n} }

// resolve answers a peer that wants to import d. It runs on the session's reader.
func (s *session) resolve(d *wire.Descriptor) *wire.Resolved {
	e := s.e
	want := e.sign(d)
	if subtle.ConstantTimeCompare(want[:], d.MAC[:]) != 1 {
		return &wire.Resolved{Fault: wire.FaultAccess, Text: "descriptor was not issued by this engine"}
	}
	if Rights(d.Rights)&RightWrite == 0 {
		return &wire.Resolved{Fault: wire.FaultAccess, Text: "descriptor has no right to write"}
	}
	if d.Gen <= e.staleSerial(s.peer.id) {
		return &wire.Resolved{Fault: wire.FaultStale, Text: "descriptor was issued before this peer was fenced"}
	}
	r := e.region(d.Region)
	if r == nil {
		return &wire.Resolved{Fault: wire.FaultStale, Text: fmt.Sprintf("region %d is closed", d.Region)}
	}
	if r.readOnly {
		return &wire.Resolved{Fault: wire.FaultAccess, Text: fmt.Sprintf("region %d was registered as ReadOnly", d.Region)}
	}
	ctx, cancel := context.WithTimeout(s.ctx, e.opts.PeerTimeout/2) // beats wait behind us
	defer cancel()
	var keys []rail.LinkKey
	err := e.worker.retry(ctx, func(g *rail.Group) (err error) {
		if !r.grants.begin(s, d.Gen) { // here, because the worker also ends grants
			return fmt.Errorf("%w: %w", ErrStale, errTaken)
		}
		keys, err = g.Grant(&r.mr, s.links.Load(), d.Off, d.Len)
		return err
	})
	switch {
	case errors.Is(err, ErrUnsupported):
		return &wire.Resolved{Fault: wire.FaultUnsupported, Text: err.Error()}
	case errors.Is(err, ErrStale):
		return &wire.Resolved{Fault: wire.FaultStale, Text: err.Error()}
	case err != nil:
		return &wire.Resolved{Fault: wire.FaultInternal, Text: err.Error()}
	}
	res := &wire.Resolved{}
	for _, k := range keys {
		res.Keys = append(res.Keys, wire.Key{Link: uint16(k.Link), Epoch: k.Epoch, ID: k.Key.ID, Base: k.Key.Base})
	}
	return res
}
