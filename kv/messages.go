package kv

import "fmt"

// Limits of the fields.
const (
	// MaxRequestID is the length of a request id in bytes.
	MaxRequestID = 128
	// MaxPages is how many pages a pool and a request may have.
	MaxPages = 1 << 20

	maxText       = 512  // bytes of a text for people
	maxDescriptor = 2048 // bytes of one region's descriptor
	maxRegions    = 64   // regions that the views of one member lie in
	viewBytes     = 24
	extentBytes   = 12
	// maxExtents of one Dispatch part: with the other fields they stay below maxMessage.
	maxExtents = 5000
	// maxParts is enough for MaxPages pages that are all scattered.
	maxParts = (MaxPages + maxExtents - 1) / maxExtents
)

// hello tells P where the cache of D lies.
type hello struct {
	geometry    Geometry
	descriptors [][]byte   // one per region
	views       []wireView // one per layer and plane
}

// wireView is the page array of one plane of one layer: page i of it begins at base + i*stride of a region.
type wireView struct {
	region uint32 // index in descriptors
	pages  uint32
	base   uint64
	stride uint64
}

func (*hello) kind() kind { return kindHello }

func (m *hello) put(w *writer) {
	g := m.geometry
	w.str(g.Fingerprint, maxFingerprint)
	for _, v := range [...]int{g.Layers, g.Group.PageTokens, g.Group.KVHeads, g.Group.HeadDim, g.Group.ElemSize, g.Group.Planes} {
		w.u32(uint32(v))
	}
	w.u32(uint32(len(m.descriptors)))
	for _, d := range m.descriptors {
		w.str(string(d), maxDescriptor)
	}
	w.u32(uint32(len(m.views)))
	for _, v := range m.views {
		w.u32(v.region)
		w.u32(v.pages)
		w.u64(v.base)
		w.u64(v.stride)
	}
}

func (m *hello) take(r *reader) {
	m.geometry.Fingerprint = r.str("fingerprint", maxFingerprint)
	m.geometry.Layers = r.number("layers")
	m.geometry.Group = Group{
		PageTokens: r.number("page tokens"),
		KVHeads:    r.number("kv heads"),
		HeadDim:    r.number("head dim"),
		ElemSize:   r.number("element size"),
		Planes:     r.number("planes"),
	}
	if err := m.geometry.check(); err != nil {
		r.fail("geometry", err.Error())
		return
	}
	for range r.count("regions", maxRegions, 2) {
		m.descriptors = append(m.descriptors, []byte(r.str("descriptor", maxDescriptor)))
	}
	if n := r.count("views", maxViews, viewBytes); n != m.geometry.Views() {
		r.fail("views", fmt.Sprintf("is %d, want %d, layers times planes", n, m.geometry.Views()))
		return
	}
	for range m.geometry.Views() {
		v := wireView{r.u32("view region"), r.u32("view pages"), r.u64("view base"), r.u64("view stride")}
		if int(v.region) >= len(m.descriptors) || v.pages < 1 || v.pages > MaxPages {
			r.fail("view", fmt.Sprintf("has region %d of %d and %d pages", v.region, len(m.descriptors), v.pages))
			return
		}
		m.views = append(m.views, v)
	}
}

type helloAck struct{}

func (*helloAck) kind() kind   { return kindHelloAck }
func (*helloAck) put(*writer)  {}
func (*helloAck) take(*reader) {}

// helloReject names what differs; field is empty when text says it all.
type helloReject struct {
	field, here, there string // here is P
	text               string
}

func (*helloReject) kind() kind { return kindHelloReject }

func (m *helloReject) put(w *writer) {
	w.str(m.field, maxText)
	w.str(m.here, maxText)
	w.str(m.there, maxText)
	w.str(m.text, maxText)
}

func (m *helloReject) take(r *reader) {
	m.field, m.here, m.there, m.text = r.str("field", maxText), r.str("here", maxText), r.str("there", maxText), r.str("text", maxText)
}

// err is the reject as D sees it.
func (m *helloReject) err() error {
	if m.field == "" {
		return fmt.Errorf("refused: %s", m.text)
	}
	return &MismatchError{Field: m.field, Here: m.there, There: m.here}
}

// dispatch asks for a prompt. When its page list is too long for one message it comes in parts, in any order; all fields but
// part and extents are the same in each.
type dispatch struct {
	seq      uint64
	id       string
	imm      uint32
	tokens   int
	expected uint64 // writes that D will count: P must come to the same number
	parts    int
	part     int
	extents  []extent
}

// extent says that logical pages from logical on lie in D's physical pages from physical on.
type extent struct{ logical, physical, n uint32 }

func (*dispatch) kind() kind { return kindDispatch }

func (m *dispatch) put(w *writer) {
	w.u64(m.seq)
	w.str(m.id, MaxRequestID)
	w.u32(m.imm)
	w.u32(uint32(m.tokens))
	w.u64(m.expected)
	w.u32(uint32(m.parts))
	w.u32(uint32(m.part))
	w.u32(uint32(len(m.extents)))
	for _, e := range m.extents {
		w.u32(e.logical)
		w.u32(e.physical)
		w.u32(e.n)
	}
}

func (m *dispatch) take(r *reader) {
	m.seq, m.id, m.imm = r.u64("seq"), r.str("request id", MaxRequestID), r.u32("imm")
	m.tokens, m.expected = r.number("tokens"), r.u64("expected")
	m.parts, m.part = r.number("parts"), r.number("part")
	if m.parts < 1 || m.parts > maxParts || m.part >= m.parts || m.tokens < 1 {
		r.fail("dispatch", fmt.Sprintf("has %d tokens, part %d of %d", m.tokens, m.part, m.parts))
	}
	n := r.count("extents", maxExtents, extentBytes)
	if r.err == nil {
		m.extents = make([]extent, 0, n)
	}
	for range n {
		e := extent{r.u32("logical page"), r.u32("physical page"), r.u32("pages")}
		if e.n < 1 || e.n > MaxPages || e.logical >= MaxPages || e.physical >= MaxPages {
			r.fail("extent", fmt.Sprintf("has %d pages from logical %d, physical %d", e.n, e.logical, e.physical))
			return
		}
		m.extents = append(m.extents, e)
	}
}

type accept struct{ seq uint64 }

func (*accept) kind() kind       { return kindAccept }
func (m *accept) put(w *writer)  { w.u64(m.seq) }
func (m *accept) take(r *reader) { m.seq = r.u64("seq") }

type reject struct {
	seq  uint64
	code Code
	text string
}

func (*reject) kind() kind { return kindReject }

func (m *reject) put(w *writer) {
	w.u64(m.seq)
	w.u8(uint8(m.code))
	w.str(m.text, maxText)
}

func (m *reject) take(r *reader) {
	m.seq, m.code, m.text = r.u64("seq"), Code(r.u8("code")), r.str("text", maxText)
}

type cancel struct {
	seq    uint64
	reason string
}

func (*cancel) kind() kind { return kindCancel }

func (m *cancel) put(w *writer) {
	w.u64(m.seq)
	w.str(m.reason, maxText)
}

func (m *cancel) take(r *reader) { m.seq, m.reason = r.u64("seq"), r.str("reason", maxText) }

// cancelAck: posted counts the writes that completed without error; exact is false when one did not, and then only a fence
// tells what landed.
type cancelAck struct {
	seq    uint64
	posted uint64
	exact  bool
}

func (*cancelAck) kind() kind { return kindCancelAck }

func (m *cancelAck) put(w *writer) {
	w.u64(m.seq)
	w.u64(m.posted)
	w.bool(m.exact)
}

func (m *cancelAck) take(r *reader) {
	m.seq, m.posted, m.exact = r.u64("seq"), r.u64("posted"), r.bool("exact")
}

type failed struct {
	cancelAck
	code Code
	text string
}

func (*failed) kind() kind { return kindFailed }

func (m *failed) put(w *writer) {
	m.cancelAck.put(w)
	w.u8(uint8(m.code))
	w.str(m.text, maxText)
}

func (m *failed) take(r *reader) {
	m.cancelAck.take(r)
	m.code, m.text = Code(r.u8("code")), r.str("text", maxText)
}

// timing is Timing on the wire.
type timing struct {
	seq    uint64
	host   uint64
	begun  int64
	done   int64
	layers uint32
	late   uint32
}

func (*timing) kind() kind { return kindTiming }

func (m *timing) put(w *writer) {
	w.u64(m.seq)
	w.u64(m.host)
	w.u64(uint64(m.begun))
	w.u64(uint64(m.done))
	w.u32(m.layers)
	w.u32(m.late)
}

func (m *timing) take(r *reader) {
	m.seq, m.host = r.u64("seq"), r.u64("host")
	m.begun, m.done = int64(r.u64("begun")), int64(r.u64("done"))
	m.layers, m.late = r.u32("layers"), r.u32("late layers")
}

type bye struct{ text string }

func (*bye) kind() kind       { return kindBye }
func (m *bye) put(w *writer)  { w.str(m.text, maxText) }
func (m *bye) take(r *reader) { m.text = r.str("text", maxText) }
