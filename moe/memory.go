package moe

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
)

// memory is what a lane reads and writes: its own regions, and those of its peers.
type memory struct {
	areas   [exec.Areas]*hawser.Region
	remotes []remotes // by rank; empty for who is no peer

	unfenced bool // peers may yet write, and other regions could not be had
}

// remotes are what a lane may write at a peer: its own block there, the pool, the results.
type remotes struct {
	peer                 *hawser.Peer
	block, pool, results *hawser.Remote
}

// newMemory allocates the regions of a lane.
func newMemory(e *hawser.Engine, l *proto.Layout) (*memory, error) {
	m := &memory{remotes: make([]remotes, l.MaxRanks)}
	for a := range exec.Areas {
		if err := m.alloc(e, l, a); err != nil {
			return nil, errors.Join(err, m.close())
		}
	}
	return m, nil
}

func (m *memory) alloc(e *hawser.Engine, l *proto.Layout, a exec.Area) error {
	r, err := e.Alloc(uint64(exec.PlacesOf(l).Bytes(a)), hawser.MemOptions{})
	if err != nil {
		return fmt.Errorf("memory of a lane: %w", err)
	}
	m.areas[a] = r
	return nil
}

// written are the areas that peers write to.
var written = [...]exec.Area{exec.Blocks, exec.Pool, exec.Results}

// renew puts fresh regions in the place of those that peers write to, which it returns.
func (m *memory) renew(e *hawser.Engine, l *proto.Layout) (old []*hawser.Region, err error) {
	before := *m
	for i, a := range written {
		if err := m.alloc(e, l, a); err != nil {
			for _, a := range written[:i] {
				err = errors.Join(err, m.areas[a].Close())
			}
			m.areas = before.areas
			return nil, err
		}
	}
	for _, a := range written {
		old = append(old, before.areas[a])
	}
	return old, nil
}

// close frees the regions.
func (m *memory) close() error {
	var errs []error
	for a, r := range m.areas {
		if r == nil {
			continue
		}
		if err := r.Close(); err != nil {
			errs = append(errs, fmt.Errorf("memory of a lane: %w", err))
			continue
		}
		m.areas[a] = nil
	}
	return errors.Join(errs...)
}

// bytes are the own regions.
func (m *memory) bytes() (b exec.Memory) {
	for a, r := range m.areas {
		b[a] = r.Bytes()
	}
	return b
}

// ofBackend are those that a backend uses.
func (m *memory) ofBackend() backend.Memory {
	b := m.bytes()
	return backend.Memory{Send: b[exec.Send], Results: b[exec.Results], Y: b[exec.Y]}
}

// lent is how many descriptors of a lane a source holds: of its block, of the pool, of the results.
const lent = len(written)

// describe appends the descriptors for a source, each after its length in two bytes.
func (m *memory) describe(b []byte, l *proto.Layout, rank int) []byte {
	block := uint64(exec.PlacesOf(l).Block())
	for _, s := range [lent]hawser.Slice{
		m.areas[exec.Blocks].Slice(uint64(rank)*block, block), m.areas[exec.Pool].All(), m.areas[exec.Results].All(),
	} {
		d, err := s.Region.Descriptor(s, hawser.RightWrite).MarshalBinary()
		if err != nil {
			panic(fmt.Sprintf("moe: a descriptor that was just made: %v", err))
		}
		b = binary.LittleEndian.AppendUint16(b, uint16(len(d)))
		b = append(b, d...)
	}
	return b
}

// parseDescriptors takes what describe made for all lanes of a member.
func parseDescriptors(b []byte, l *proto.Layout, m proto.Member) ([]hawser.Descriptor, error) {
	p := exec.PlacesOf(l)
	want := [lent]int64{p.Block(), p.Bytes(exec.Pool), p.Bytes(exec.Results)}
	all := make([]hawser.Descriptor, lent*l.Lanes)
	for i := range all {
		if len(b) < 2 || len(b)-2 < int(binary.LittleEndian.Uint16(b)) {
			return nil, fmt.Errorf("%w: %d of %d descriptors", proto.ErrCorrupt, i, len(all))
		}
		n := 2 + int(binary.LittleEndian.Uint16(b))
		if err := all[i].UnmarshalBinary(b[2:n]); err != nil {
			return nil, err
		}
		b = b[n:]
		if d := all[i]; proto.ID(d.Owner()) != m.ID || int64(d.Len()) != want[i%lent] {
			return nil, fmt.Errorf("%w: descriptor %d is of %d bytes of %v, want %d of %v", proto.ErrCorrupt, i, d.Len(), d.Owner(), want[i%lent], hawser.ID(m.ID))
		}
	}
	if len(b) > 0 {
		return nil, fmt.Errorf("%w: %d bytes after the descriptors", proto.ErrCorrupt, len(b))
	}
	return all, nil
}

// importAll resolves the descriptors of a member, in one session.
func importAll(ctx context.Context, e *hawser.Engine, all []hawser.Descriptor) ([]remotes, error) {
	r := make([]*hawser.Remote, len(all))
	for i := range all {
		var err error
		if r[i], err = e.Import(ctx, all[i]); err != nil {
			return nil, err
		}
	}
	out := make([]remotes, 0, len(all)/lent)
	for i := 0; i < len(r); i += lent {
		out = append(out, remotes{r[i].Peer(), r[i], r[i+1], r[i+2]})
	}
	return out, nil
}
