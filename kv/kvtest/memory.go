package kvtest

import (
	"encoding/binary"
	"fmt"

	"github.com/hawser-project/hawser/kv/layout"
)

// memory is the cache of one member, and the tails.
type memory struct {
	of    *layout.Geometry
	bytes []byte
}

func newMemory(g *layout.Geometry) *memory {
	return &memory{g, make([]byte, g.RegionBytes()[0])}
}

// at is where a word lies.
func at(v *layout.View, page uint32, head, token int) int64 {
	return v.Base + int64(page)*v.Page + int64(head)*v.Head + int64(token)*v.Token
}

// prompt is the tokens of a request.
type prompt struct {
	ids    []uint32
	prefix []uint32 // of each token: a hash of it and all before
}

func newPrompt(family, shared, tokens int, unique uint32) *prompt {
	p := &prompt{make([]uint32, tokens), make([]uint32, tokens)}
	h := uint32(7)
	for i := range p.ids {
		p.ids[i] = uint32(family+1)<<8 + uint32(i)
		if i >= shared {
			p.ids[i] += unique << 16
		}
		h = mix(h, p.ids[i])
		p.prefix[i] = h
	}
	return p
}

func mix(h, x uint32) uint32 {
	h = (h ^ x) * 0x9e3779b1
	h ^= h >> 15
	h *= 0x85ebca77
	return h ^ h>>13
}

// genMask are the bits of a word that tell computations of the same token apart: they may differ.
const genMask = 0xff

// word is what the cache holds of a token.
func (p *prompt) word(token, layer, plane, head int, gen uint8) uint32 {
	return mix(p.prefix[token], uint32(layer)<<16|uint32(plane)<<8|uint32(head))&^genMask | uint32(gen)
}

// tail is the content of its tail.
func (p *prompt) tail() uint32 { return mix(p.prefix[len(p.prefix)-1], 99) }

// fill computes tokens [from, to) of a layer on all ranks. pages are physical, by logical page.
func (m *memory) fill(p *prompt, layer, from, to int, pages []uint32, gen uint8) {
	g := m.of.Groups[m.of.GroupOf(layer)]
	for i := range m.of.Ranks {
		r := &m.of.Ranks[i]
		if !r.HasLayer(layer) {
			continue
		}
		for plane := range r.Views[layer-r.LayerFirst] {
			v := &r.Views[layer-r.LayerFirst][plane]
			for t := from; t < to; t++ {
				page := pages[t/g.PageTokens]
				for h := range r.Heads {
					binary.LittleEndian.PutUint32(m.bytes[at(v, page, h, t%g.PageTokens):], p.word(t, layer, plane, r.HeadFirst+h, gen))
				}
			}
		}
	}
}

// check looks for tokens [from, to) of a group in pages, of which the first holds the token first.
func (m *memory) check(p *prompt, group, first, from, to int, pages []uint32) error {
	g := m.of.Groups[group]
	for i := range m.of.Ranks {
		r := &m.of.Ranks[i]
		for l, planes := range r.Views {
			layer := r.LayerFirst + l
			if m.of.GroupOf(layer) != group {
				continue
			}
			for plane := range planes {
				v := &planes[plane]
				for t := from; t < to; t++ {
					page := pages[(t-first)/g.PageTokens]
					for h := range r.Heads {
						got := binary.LittleEndian.Uint32(m.bytes[at(v, page, h, t%g.PageTokens):])
						if want := p.word(t, layer, plane, r.HeadFirst+h, 0); got&^genMask != want {
							return fmt.Errorf("token %d, page %d, layer %d, plane %d, rank %d, head %d: %#x, want %#x", t, page, layer, plane, r.Index, h, got, want)
						}
					}
				}
			}
		}
	}
	return nil
}
