package simllm

import (
	"errors"
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
)

// DefaultPool is the KV memory of a process in bytes.
const DefaultPool = 1 << 30

// Shape is how a process holds the cache of a model: all ranks in one member.
type Shape struct {
	Model      layout.Model // with one group of layers
	TP         int          // the model's when 0
	PageTokens int          // the model's when 0
	Pool       uint64       // bytes, over all ranks; DefaultPool when 0
}

// Pages is how many pages the pool has, and how many bytes one of them takes over all ranks, layers and planes.
func (s Shape) Pages() (pages int, bytes uint64, err error) {
	if len(s.Model.Groups) != 1 {
		return 0, 0, fmt.Errorf("%w: geometry %s has %d groups of layers, want 1", hawser.ErrInvalid, s.Model.Name, len(s.Model.Groups))
	}
	_, sizes, err := layout.Build(s.spec(1))
	if err != nil {
		return 0, 0, err
	}
	for _, n := range sizes {
		bytes += uint64(n)
	}
	if s.Pool == 0 {
		s.Pool = DefaultPool
	}
	if pages = int(min(s.Pool/bytes, layout.MaxPages)); pages < 1 {
		return 0, bytes, fmt.Errorf("%w: a pool of %d bytes does not hold one page of geometry %s (%d bytes over all ranks and layers): raise the pool or keep fewer layers",
			hawser.ErrInvalid, s.Pool, s.Model.Name, bytes)
	}
	return pages, bytes, nil
}

// Holds reports whether a prompt fits into the pool.
func (s Shape) Holds(tokens int) bool {
	pages, _, err := s.Pages()
	return err == nil && (tokens+s.pageTokens()-1)/s.pageTokens() <= pages
}

func (s Shape) pageTokens() int {
	if s.PageTokens != 0 {
		return s.PageTokens
	}
	return s.Model.Groups[0].PageTokens
}

func (s Shape) spec(pages int) layout.Spec {
	return layout.Spec{Model: s.Model, TP: s.TP, PageTokens: s.PageTokens, Pages: pages}
}

// memory is the KV memory of a process, and of its tails.
type memory struct {
	geometry layout.Geometry
	regions  []*hawser.Region // one per rank
	rows     []Rows           // of all ranks, layers and planes
	tails    *hawser.Region
	pool     *pool.Pool
	bytes    uint64 // of a page, over all ranks, layers and planes
}

// tailBytes is the size of a tail: a hidden state of 4,096 elements of 2 bytes.
const tailBytes = 8192

// newMemory allocates everything; close gives it back.
func newMemory(eng *hawser.Engine, s Shape, tails int, seed uint64) (*memory, error) {
	pages, bytes, err := s.Pages()
	if err != nil {
		return nil, err
	}
	g, sizes, err := layout.Build(s.spec(pages))
	if err != nil {
		return nil, err
	}
	m := &memory{geometry: g, bytes: bytes}
	if m.pool, err = pool.New(pages, seed); err != nil {
		return nil, err
	}
	for _, n := range append(sizes, int64(tails)*tailBytes) {
		r, err := eng.Alloc(uint64(n), hawser.MemOptions{})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("KV memory: %w", err), m.close())
		}
		m.regions = append(m.regions, r)
	}
	last := len(m.regions) - 1
	m.regions, m.tails = m.regions[:last], m.regions[last]
	m.rows = cacheRows(&g, m.regions)
	return m, nil
}

// cacheRows says where the content of a member lies.
func cacheRows(g *layout.Geometry, regions []*hawser.Region) (all []Rows) {
	for i := range g.Ranks {
		k := &g.Ranks[i]
		for l, planes := range k.Views {
			group := g.Groups[g.GroupOf(k.LayerFirst+l)]
			for plane, v := range planes {
				all = append(all, Rows{
					Memory: regions[v.Region].Bytes(), Base: v.Base, Page: v.Page, Head: v.Head, Token: v.Token,
					PageTokens: group.PageTokens, RowBytes: int(group.HeadBytes()),
					Rank: i, Layer: k.LayerFirst + l, Plane: plane, HeadFirst: k.HeadFirst, Heads: k.Heads,
				})
			}
		}
	}
	return all
}

// held is how many pages somebody holds, those out of service apart.
func (m *memory) held() (held, quarantined int) {
	c := m.pool.Counts()
	return c.Leased + c.Pinned, c.Quarantined
}

func (m *memory) topology() *layout.Topology {
	return &layout.Topology{Members: []layout.Geometry{m.geometry}}
}

func (m *memory) close() error {
	var errs []error
	for _, r := range m.regions {
		errs = append(errs, r.Close())
	}
	if m.tails != nil {
		errs = append(errs, m.tails.Close())
	}
	return errors.Join(errs...)
}

// Feeds says why a prefiller of shape s cannot serve a decoder of shape d, nil when it can.
func (s Shape) Feeds(d Shape) error {
	src, _, err := layout.Build(s.spec(1))
	if err != nil {
		return err
	}
	dst, _, err := layout.Build(d.spec(1))
	if err != nil {
		return err
	}
	_, err = layout.NewPair(&layout.Topology{Members: []layout.Geometry{src}}, &layout.Topology{Members: []layout.Geometry{dst}}, layout.Options{})
	return err
}
