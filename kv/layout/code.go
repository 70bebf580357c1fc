package layout

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// The encoding is canonical: equal topologies have equal bytes, and nothing else is decoded. All numbers are unsigned varints.
//
//	topology  members, then each member
//	member    fingerprint (length, bytes), layers, groups, then each group: page tokens, kv heads, head dim, element size, planes,
//	          window; with more than one group the group of each layer, one byte each; ranks, then each rank
//	rank      index, first layer, layers, first head, heads, then its views
//	views     for each group and plane the views of the rank's layers in turn, as runs: length, region, step of the region,
//	          base, step of the base, pages, page, head and token stride. A run is as long as it can be; the steps of a run of
//	          one are 0. Steps are zigzag varints.
const encodingVersion = 1

// MaxEncoded is the longest encoding that is decoded. Those of caches in regular arrays are a few hundred bytes.
const MaxEncoded = 8 << 20

// AppendBinary appends the encoding of t, which Check has accepted, to b.
func (t *Topology) AppendBinary(b []byte) []byte {
	b = append(b, encodingVersion)
	b = binary.AppendUvarint(b, uint64(len(t.Members)))
	for i := range t.Members {
		b = t.Members[i].append(b)
	}
	return b
}

// AppendBinary appends the encoding of g, which Check has accepted, to b.
func (g *Geometry) AppendBinary(b []byte) []byte { return g.append(append(b, encodingVersion)) }

func (g *Geometry) append(b []byte) []byte {
	b = appendInts(b, len(g.Fingerprint))
	b = append(b, g.Fingerprint...)
	b = appendInts(b, g.Layers, len(g.Groups))
	for _, r := range g.Groups {
		b = appendInts(b, r.PageTokens, r.KVHeads, r.HeadDim, r.ElemSize, r.Planes, r.Window)
	}
	b = append(b, g.LayerGroups...)
	b = appendInts(b, len(g.Ranks))
	for i := range g.Ranks {
		r := &g.Ranks[i]
		b = appendInts(b, r.Index, r.LayerFirst, r.Layers, r.HeadFirst, r.Heads)
		for group := range g.Groups {
			for plane := range g.Groups[group].Planes {
				b = appendRuns(b, g.column(r, group, plane))
			}
		}
	}
	return b
}

// column is the views of one plane in the rank's layers of one group.
func (g *Geometry) column(r *Rank, group, plane int) []*View {
	var all []*View
	for l, planes := range r.Views {
		if g.GroupOf(r.LayerFirst+l) == group {
			all = append(all, &planes[plane])
		}
	}
	return all
}

func appendRuns(b []byte, views []*View) []byte {
	for len(views) > 0 {
		v, n := views[0], 1
		region, base := 0, int64(0)
		if len(views) > 1 {
			region, base = views[1].Region-v.Region, views[1].Base-v.Base
		}
		for n < len(views) && *views[n] == v.next(n, region, base) {
			n++
		}
		if n == 1 {
			region, base = 0, 0
		}
		b = appendInts(b, n, v.Region)
		b = binary.AppendVarint(b, int64(region))
		b = appendInts(b, int(v.Base))
		b = binary.AppendVarint(b, base)
		b = appendInts(b, v.Pages, int(v.Page), int(v.Head), int(v.Token))
		views = views[n:]
	}
	return b
}

// next is view i of the run that v begins.
func (v View) next(i, region int, base int64) View {
	v.Region += i * region
	v.Base += int64(i) * base
	return v
}

func appendInts(b []byte, v ...int) []byte {
	for _, x := range v {
		b = binary.AppendUvarint(b, uint64(x))
	}
	return b
}

// DecodeTopology decodes and checks what Topology.AppendBinary made. It shares no memory with data. Errors are ErrInvalid.
func DecodeTopology(data []byte) (*Topology, error) {
	t := &Topology{}
	r, err := newReader(data)
	if err != nil {
		return nil, err
	}
	for range r.int("members", 1, maxMembers) {
		t.Members = append(t.Members, r.member())
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	if err := t.Check(); err != nil {
		return nil, err
	}
	return t, canonical(data, t.AppendBinary(nil))
}

// DecodeGeometry decodes and checks what Geometry.AppendBinary made. It shares no memory with data. Errors are ErrInvalid.
func DecodeGeometry(data []byte) (*Geometry, error) {
	r, err := newReader(data)
	if err != nil {
		return nil, err
	}
	g := r.member()
	if err := r.end(); err != nil {
		return nil, err
	}
	if err := g.Check(); err != nil {
		return nil, err
	}
	return &g, canonical(data, g.AppendBinary(nil))
}

func canonical(got, want []byte) error {
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: encoding is not canonical", ErrInvalid)
	}
	return nil
}

// reader takes numbers off b. After the first fault it returns the least value of all, and keeps the fault in err.
type reader struct {
	b     []byte
	views int // that may still come
	err   error
}

func newReader(data []byte) (*reader, error) {
	if len(data) == 0 || len(data) > MaxEncoded {
		return nil, fmt.Errorf("%w: encoding of %d bytes, want 1 .. %d", ErrInvalid, len(data), MaxEncoded)
	}
	if data[0] != encodingVersion {
		return nil, fmt.Errorf("%w: encoding version %d, want %d: run the same release on both sides", ErrInvalid, data[0], encodingVersion)
	}
	return &reader{b: data[1:], views: maxViews}, nil
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		return fmt.Errorf("%w: %d bytes after the end", ErrInvalid, len(r.b))
	}
	return r.err
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %w", ErrInvalid, fmt.Errorf(format, args...))
	}
}

// int takes a number in [low, limit].
func (r *reader) int(name string, low, limit int) int {
	if r.err != nil {
		return 0
	}
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.fail("%s is cut off", name)
		return 0
	}
	if r.b = r.b[n:]; v < uint64(low) || v > uint64(limit) {
		r.fail("%s is %d, want %d .. %d", name, v, low, limit)
		return 0
	}
	return int(v)
}

// step takes a number of either sign.
func (r *reader) step(name string, limit int64) int64 {
	if r.err != nil {
		return 0
	}
	v, n := binary.Varint(r.b)
	if n <= 0 {
		r.fail("%s is cut off", name)
		return 0
	}
	if r.b = r.b[n:]; v < -limit || v > limit {
		r.fail("%s is %d, want %d .. %d", name, v, -limit, limit)
		return 0
	}
	return v
}

func (r *reader) bytes(name string, n int) []byte {
	if n > len(r.b) {
		r.fail("%s needs %d bytes, %d are left", name, n, len(r.b))
	}
	if r.err != nil || n == 0 {
		return nil
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) member() (g Geometry) {
	g.Fingerprint = string(r.bytes("fingerprint", r.int("length of the fingerprint", 0, MaxFingerprint)))
	g.Layers = r.int("layers", 1, maxLayers)
	for range r.int("groups", 1, maxGroups) {
		g.Groups = append(g.Groups, Group{
			r.int("page tokens", 1, maxTokenPage), r.int("kv heads", 1, maxDim), r.int("head dim", 1, maxDim),
			r.int("element size", 1, maxElem), r.int("planes", 1, maxPlanes), r.int("window", 0, maxWindow),
		})
	}
	if len(g.Groups) > 1 {
		g.LayerGroups = bytes.Clone(r.bytes("groups of the layers", g.Layers))
	}
	if r.err == nil {
		r.err = checkLayerGroups(&g)
	}
	ranks := r.int("ranks", 1, maxRanks)
	for i := 0; i < ranks && r.err == nil; i++ {
		g.Ranks = append(g.Ranks, r.rank(&g))
	}
	return g
}

func (r *reader) rank(g *Geometry) (k Rank) {
	k.Index = r.int("rank index", 0, maxIndex)
	k.LayerFirst = r.int("first layer", 0, g.Layers-1)
	k.Layers = r.int("layers of the rank", 1, g.Layers-k.LayerFirst)
	k.HeadFirst = r.int("first head", 0, maxDim)
	k.Heads = r.int("heads", 1, maxDim)
	if r.err != nil {
		return k
	}
	for l := range k.Layers {
		planes := g.Groups[g.GroupOf(k.LayerFirst+l)].Planes
		if r.views -= planes; r.views < 0 {
			r.fail("more than %d views", maxViews)
			return k
		}
		k.Views = append(k.Views, make([]View, planes))
	}
	for group := range g.Groups {
		for plane := range g.Groups[group].Planes {
			r.runs(g.column(&k, group, plane))
		}
	}
	return k
}

func (r *reader) runs(views []*View) {
	for len(views) > 0 && r.err == nil {
		n := r.int("length of a run of views", 1, len(views))
		v := View{Region: r.int("region", 0, MaxRegions-1)}
		region := int(r.step("step of the region", MaxRegions))
		v.Base = int64(r.int("base", 0, maxBase))
		base := r.step("step of the base", maxBase)
		v.Pages = r.int("pages", 1, MaxPages)
		v.Page = int64(r.int("page stride", 1, maxStride))
		v.Head = int64(r.int("head stride", 1, maxStride))
		v.Token = int64(r.int("token stride", 1, maxStride))
		if r.err != nil {
			return
		}
		for i := range n {
			*views[i] = v.next(i, region, base) // Check looks at the sum
		}
		views = views[n:]
	}
}
