package kv

import (
	"fmt"
	"math"
	"strings"
)

// Geometry is the shape of the KV cache that one member of an instance holds. Both sides of a link must have the same one.
// It is comparable.
type Geometry struct {
	// Fingerprint is anything that changes the content: model, revision, element type. kv only compares it.
	Fingerprint string
	Layers      int
	Group       Group
}

// Group is the shape of one token's cache in one layer.
type Group struct {
	PageTokens int // tokens of one page
	KVHeads    int // heads that this member holds
	HeadDim    int
	ElemSize   int // bytes
	Planes     int // K and V are 2, a compressed latent is 1
}

// PageBytes is the size of one plane of one page in one layer: what one write moves.
func (g Group) PageBytes() uint64 {
	return uint64(g.PageTokens) * uint64(g.KVHeads) * uint64(g.HeadDim) * uint64(g.ElemSize)
}

// Pages is the number of pages that hold the given number of tokens; the last may be partly used.
func (g Geometry) Pages(tokens int) int {
	return (tokens + g.Group.PageTokens - 1) / g.Group.PageTokens
}

// Views is the number of page arrays: one per layer and plane. View v is plane v%Planes of layer v/Planes.
func (g Geometry) Views() int { return g.Layers * g.Group.Planes }

// BytesPerPage is the memory that one page takes over all layers and planes.
func (g Geometry) BytesPerPage() uint64 { return uint64(g.Views()) * g.Group.PageBytes() }

// Writes is the number of writes, and so of immediates, that move a prompt of the given number of tokens.
func (g Geometry) Writes(tokens int) uint64 { return uint64(g.Pages(tokens)) * uint64(g.Views()) }

// Bytes is what these writes move: whole pages.
func (g Geometry) Bytes(tokens int) uint64 { return uint64(g.Pages(tokens)) * g.BytesPerPage() }

// Scale keeps the share f of the layers, at least one. The shape of a page stays.
func (g Geometry) Scale(f float64) (Geometry, error) {
	if !(f > 0 && f <= 1) { // written so that NaN is refused
		return Geometry{}, fmt.Errorf("kv: scale %v of geometry %s: want more than 0 and at most 1", f, g.Fingerprint)
	}
	n := max(1, int(math.Round(float64(g.Layers)*f)))
	if n != g.Layers {
		g.Fingerprint = fmt.Sprintf("%s/%d-of-%d-layers", g.Fingerprint, n, g.Layers)
	}
	g.Layers = n
	return g, nil
}

// Limits of a geometry. They keep every product of sizes below far from overflow and a Hello below the message limit.
const (
	maxLayers      = 1024
	maxPlanes      = 4
	maxViews       = 1500     // times viewBytes < 64 KiB
	maxPageBytes   = 64 << 20 // one write
	maxFingerprint = 256
	maxDim         = 1 << 20
)

// check refuses what cannot be a KV cache; a Geometry also comes from peers.
func (g Geometry) check() error {
	for _, f := range []struct {
		name        string
		value, most int
	}{
		{"layers", g.Layers, maxLayers},
		{"page tokens", g.Group.PageTokens, maxDim},
		{"kv heads", g.Group.KVHeads, maxDim},
		{"head dim", g.Group.HeadDim, maxDim},
		{"element size", g.Group.ElemSize, 16},
		{"planes", g.Group.Planes, maxPlanes},
	} {
		if f.value < 1 || f.value > f.most {
			return fmt.Errorf("geometry %q: %s is %d, want 1 .. %d", g.Fingerprint, f.name, f.value, f.most)
		}
	}
	if n := float64(g.Group.PageTokens) * float64(g.Group.KVHeads) * float64(g.Group.HeadDim) * float64(g.Group.ElemSize); n > maxPageBytes {
		return fmt.Errorf("geometry %q: a page of one plane has %.0f bytes, want at most %d", g.Fingerprint, n, maxPageBytes)
	}
	if g.Views() > maxViews {
		return fmt.Errorf("geometry %q: layers times planes is %d, want at most %d", g.Fingerprint, g.Views(), maxViews)
	}
	if len(g.Fingerprint) > maxFingerprint {
		return fmt.Errorf("geometry: fingerprint has %d bytes, want at most %d", len(g.Fingerprint), maxFingerprint)
	}
	return nil
}

// mismatch names the first field in which two geometries differ.
func (g Geometry) mismatch(there Geometry) *MismatchError {
	for _, f := range []struct {
		name        string
		here, there any
	}{
		{"fingerprint", g.Fingerprint, there.Fingerprint},
		{"layers", g.Layers, there.Layers},
		{"page tokens", g.Group.PageTokens, there.Group.PageTokens},
		{"kv heads", g.Group.KVHeads, there.Group.KVHeads},
		{"head dim", g.Group.HeadDim, there.Group.HeadDim},
		{"element size", g.Group.ElemSize, there.Group.ElemSize},
		{"planes", g.Group.Planes, there.Group.Planes},
	} {
		if f.here != f.there {
			return &MismatchError{Field: f.name, Here: fmt.Sprint(f.here), There: fmt.Sprint(f.there)}
		}
	}
	return nil
}

// builtin are the geometries that have a name, all of 2-byte elements.
var builtin = []Geometry{
	{"mini", 8, Group{PageTokens: 128, KVHeads: 2, HeadDim: 64, ElemSize: 2, Planes: 2}},
	{"qwen3-8b", 36, Group{PageTokens: 128, KVHeads: 8, HeadDim: 128, ElemSize: 2, Planes: 2}},
	// One rank of four: 4 KV heads, one each.
	{"qwen3-235b-tp4", 94, Group{PageTokens: 128, KVHeads: 1, HeadDim: 128, ElemSize: 2, Planes: 2}},
}

// BuiltinGeometry returns a geometry by name: mini, qwen3-8b, or qwen3-235b-tp4 (one rank of four). The error of an
// unknown name lists them.
func BuiltinGeometry(name string) (Geometry, error) {
	var names []string
	for _, g := range builtin {
		if g.Fingerprint == name {
			return g, nil
		}
		names = append(names, g.Fingerprint)
	}
	return Geometry{}, fmt.Errorf("kv: unknown geometry %q: want one of %s", name, strings.Join(names, ", "))
}
