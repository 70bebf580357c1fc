package proto

import (
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

// Limits of the fields.
const (
	MaxRequestID = 128             // bytes of a request id
	MaxPages     = layout.MaxPages // pages of a pool, and of a request per group
	MaxGroups    = 8               // groups of layers with page lists of their own
	MaxMembers   = 64              // members of an instance
	MaxTokens    = 1 << 22         // of a prompt
	MaxQuery     = 1024            // attempts in one Query or State

	maxText       = 512 // bytes of a text for people
	maxName       = 128
	maxDescriptor = 2048 // bytes of one region's descriptor
	maxRegions    = layout.MaxRegions
	maxTopology   = layout.MaxEncoded
	maxSums       = 4096 // layer groups of a Digest
)

// Prompt is what is to be computed: token ids, or a key under which the prefiller's inference engine finds them, or neither when the
// engine there gets the prompt some other way (Prefiller.Expect).
type Prompt struct {
	Tokens int      // length, at least 1
	IDs    []uint32 // Tokens of them, or none
	Key    string   // at most 128 bytes; opaque
}

func (p *Prompt) put(w *writer) {
	w.num(p.Tokens)
	w.str(p.Key, maxName)
	w.num(len(p.IDs))
	b := slices.Grow(w.b, 4*len(p.IDs))
	for _, id := range p.IDs {
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	w.b = b
}

func (p *Prompt) take(r *reader) {
	p.Tokens, p.Key = r.num("tokens"), r.str("prompt key", maxName)
	n := r.count("token ids", MaxTokens, 4)
	if r.err == nil && (p.Tokens < 1 || p.Tokens > MaxTokens || n != 0 && n != p.Tokens) {
		r.fail("prompt", fmt.Sprintf("has %d tokens and %d ids, want 1 .. %d tokens, and as many ids or none", p.Tokens, n, MaxTokens))
	}
	if r.err != nil || n == 0 {
		return
	}
	p.IDs = make([]uint32, n)
	for i := range p.IDs {
		p.IDs[i] = r.u32("token id")
	}
}

// differs reports whether two prompts cannot be the same, as far as both say what they are.
func (p *Prompt) differs(o *Prompt) bool {
	if len(p.IDs) > 0 && len(o.IDs) > 0 {
		return !slices.Equal(p.IDs, o.IDs)
	}
	return len(p.IDs) == 0 && len(o.IDs) == 0 && p.Key != "" && o.Key != "" && p.Key != o.Key
}

// Span is the tokens [First, N) of a prompt.
type Span = layout.Span

// Extent says that logical pages from Logical on lie in D's physical pages from Physical on.
type Extent struct{ Logical, Physical, Length uint32 }

const extentBytes = 12

// Hello tells P who D is and where its cache lies.
type Hello struct {
	Instance    string   // D's instance
	Member      int      // of the topology's members, this one
	Topology    []byte   // of all members of D's instance: layout.Topology, encoded
	Descriptors [][]byte // of this member's regions, in the order of its views' region numbers; the tail buffer's last, if TailBytes > 0
	TailSlots   int      // slots of the tail buffer
	TailBytes   int      // longest tail; a slot's stride. 0: no tails on this link
}

func (*Hello) Kind() Kind { return KindHello }

func (m *Hello) put(w *writer) {
	w.str(m.Instance, maxName)
	w.num(m.Member)
	w.blob(m.Topology)
	w.num(len(m.Descriptors))
	for _, d := range m.Descriptors {
		w.str(string(d), maxDescriptor)
	}
	w.num(m.TailSlots)
	w.num(m.TailBytes)
}

func (m *Hello) take(r *reader) {
	m.Instance, m.Member, m.Topology = r.str("instance", maxName), r.num("member"), r.blob("topology", maxTopology)
	n := r.count("descriptors", maxRegions, 2)
	for range n {
		m.Descriptors = append(m.Descriptors, []byte(r.str("descriptor", maxDescriptor)))
	}
	m.TailSlots, m.TailBytes = r.num("tail slots"), r.num("tail bytes")
	if m.Member >= MaxMembers || m.TailSlots > MaxPages || (m.TailSlots == 0) != (m.TailBytes == 0) {
		r.fail("hello", fmt.Sprintf("has member %d, %d tail slots of %d bytes", m.Member, m.TailSlots, m.TailBytes))
	}
}

// HelloAck says that every descriptor is imported.
type HelloAck struct {
	Instance string
	Member   int
	Topology []byte // of all members of P's instance
	Granted  uint64 // credits: see Beat
}

func (*HelloAck) Kind() Kind { return KindHelloAck }

func (m *HelloAck) put(w *writer) {
	w.str(m.Instance, maxName)
	w.num(m.Member)
	w.blob(m.Topology)
	w.u64(m.Granted)
}

func (m *HelloAck) take(r *reader) {
	m.Instance, m.Member, m.Topology, m.Granted = r.str("instance", maxName), r.num("member"), r.blob("topology", maxTopology), r.u64("granted")
	if m.Member >= MaxMembers {
		r.fail("member", fmt.Sprintf("is %d, want less than %d", m.Member, MaxMembers))
	}
}

// HelloReject names what differs; Field is empty when Text says it all.
type HelloReject struct {
	Code               Code
	Field, Here, There string // Here is P
	Text               string
}

func (*HelloReject) Kind() Kind { return KindHelloReject }

func (m *HelloReject) put(w *writer) {
	w.u8(uint8(m.Code))
	w.str(m.Field, maxText)
	w.str(m.Here, maxText)
	w.str(m.There, maxText)
	w.str(m.Text, maxText)
}

func (m *HelloReject) take(r *reader) {
	m.Code, m.Field = Code(r.u8("code")), r.str("field", maxText)
	m.Here, m.There, m.Text = r.str("here", maxText), r.str("there", maxText), r.str("text", maxText)
}

// Group is what a Dispatch says of one group of layers.
type Group struct {
	Span  Span
	Pages []Extent // where the pages of the span lie; every page of the span exactly once, in the order of Logical
}

// Dispatch asks for a prompt.
type Dispatch struct {
	Seq       uint64
	Try       int // 1 for the first
	Request   string
	Imm       uint32
	Groups    []Group
	Tail      bool // P sends a tail into TailSlot
	TailSlot  uint32
	Prompt    Prompt
	Remaining time.Duration // until the request's deadline, from receipt
	Priority  int8          // higher goes first
	Trace     [16]byte      // trace context, zero for none
	Plan      uint64        // digest of the plan: P must come to the same
	Expected  uint64        // writes, tail included, that D will count from this P member
	Cost      uint64        // in P's pages, against Granted; 0 for members other than 0
}

func (*Dispatch) Kind() Kind { return KindDispatch }

func (m *Dispatch) put(w *writer) {
	w.u64(m.Seq)
	w.num(m.Try)
	w.str(m.Request, MaxRequestID)
	w.u32(m.Imm)
	w.u8(uint8(len(m.Groups)))
	for _, g := range m.Groups {
		w.num(g.Span.First)
		w.num(g.Span.N)
		w.num(len(g.Pages))
		b := slices.Grow(w.b, extentBytes*len(g.Pages))
		for _, e := range g.Pages {
			b = binary.LittleEndian.AppendUint32(b, e.Logical)
			b = binary.LittleEndian.AppendUint32(b, e.Physical)
			b = binary.LittleEndian.AppendUint32(b, e.Length)
		}
		w.b = b
	}
	w.bool(m.Tail)
	w.u32(m.TailSlot)
	m.Prompt.put(w)
	w.u64(uint64(m.Remaining))
	w.u8(uint8(m.Priority))
	w.b = append(w.b, m.Trace[:]...)
	w.u64(m.Plan)
	w.u64(m.Expected)
	w.u64(m.Cost)
}

func (m *Dispatch) take(r *reader) {
	m.Seq, m.Try, m.Request, m.Imm = r.u64("seq"), r.num("try"), r.str("request id", MaxRequestID), r.u32("imm")
	n := int(r.u8("groups"))
	if n < 1 || n > MaxGroups || m.Request == "" || m.Try < 1 {
		r.fail("dispatch", fmt.Sprintf("has request id %q, try %d, %d groups", m.Request, m.Try, n))
		return
	}
	m.Groups = make([]Group, n)
	for i := range m.Groups {
		m.Groups[i].take(r)
	}
	m.Tail, m.TailSlot = r.bool("tail"), r.u32("tail slot")
	m.Prompt.take(r)
	m.Remaining, m.Priority = time.Duration(r.u64("remaining")), int8(r.u8("priority"))
	copy(m.Trace[:], r.bytes("trace", len(m.Trace)))
	m.Plan, m.Expected, m.Cost = r.u64("plan"), r.u64("expected"), r.u64("cost")
	if m.Remaining < 0 {
		r.fail("remaining", "is negative")
	}
}

func (g *Group) take(r *reader) {
	g.Span = Span{First: r.num("first"), N: r.num("n")}
	n := r.count("extents", MaxPages, extentBytes)
	if g.Span.First > g.Span.N || g.Span.N > MaxTokens {
		r.fail("span", fmt.Sprintf("is %d .. %d", g.Span.First, g.Span.N))
	}
	if r.err != nil {
		return
	}
	g.Pages = make([]Extent, 0, n)
	next := uint32(0)
	for range n {
		e := Extent{r.u32("logical page"), r.u32("physical page"), r.u32("pages")}
		if e.Length < 1 || e.Length > MaxPages || e.Logical >= MaxPages || e.Physical >= MaxPages || e.Logical < next {
			r.fail("extent", fmt.Sprintf("has %d pages from logical %d, physical %d, want the order of logical pages", e.Length, e.Logical, e.Physical))
			return
		}
		next = e.Logical + e.Length
		g.Pages = append(g.Pages, e)
	}
}

// Accept says that the request is queued.
type Accept struct {
	Seq      uint64
	Position int // in the queue; for people
	Granted  uint64
}

func (*Accept) Kind() Kind { return KindAccept }

func (m *Accept) put(w *writer) {
	w.u64(m.Seq)
	w.num(m.Position)
	w.u64(m.Granted)
}

func (m *Accept) take(r *reader) {
	m.Seq, m.Position, m.Granted = r.u64("seq"), r.num("position"), r.u64("granted")
}

// Reject says that nothing was written and nothing will be.
type Reject struct {
	Seq        uint64
	Code       Code
	Text       string
	RetryAfter time.Duration
	Granted    uint64
}

func (*Reject) Kind() Kind { return KindReject }

func (m *Reject) put(w *writer) {
	w.u64(m.Seq)
	w.u8(uint8(m.Code))
	w.str(m.Text, maxText)
	w.u64(uint64(m.RetryAfter))
	w.u64(m.Granted)
}

func (m *Reject) take(r *reader) {
	m.Seq, m.Code, m.Text = r.u64("seq"), Code(r.u8("code")), r.str("text", maxText)
	m.RetryAfter, m.Granted = time.Duration(r.u64("retry after")), r.u64("granted")
	if m.RetryAfter < 0 {
		r.fail("retry after", "is negative")
	}
}

// Cancel is always answered, even when Seq is unknown. With a Seq that was never dispatched it detaches this member from the job.
type Cancel struct {
	Seq     uint64
	Request string
	Cost    uint64 // of the Dispatch; comes back when the Dispatch never came
	Reason  string
}

func (*Cancel) Kind() Kind { return KindCancel }

func (m *Cancel) put(w *writer) {
	w.u64(m.Seq)
	w.str(m.Request, MaxRequestID)
	w.u64(m.Cost)
	w.str(m.Reason, maxText)
}

func (m *Cancel) take(r *reader) {
	m.Seq, m.Request, m.Cost, m.Reason = r.u64("seq"), r.str("request id", MaxRequestID), r.u64("cost"), r.str("reason", maxText)
}

// CancelAck: Posted counts the writes that completed without error; Exact is false when one did not, and then only a fence tells
// what landed. No write of the attempt is outstanding and none can start.
type CancelAck struct {
	Seq     uint64
	Posted  uint64
	Exact   bool
	Granted uint64
}

func (*CancelAck) Kind() Kind { return KindCancelAck }

func (m *CancelAck) put(w *writer) {
	w.u64(m.Seq)
	w.u64(m.Posted)
	w.bool(m.Exact)
	w.u64(m.Granted)
}

func (m *CancelAck) take(r *reader) {
	m.Seq, m.Posted, m.Exact, m.Granted = r.u64("seq"), r.u64("posted"), r.bool("exact"), r.u64("granted")
}

// Failed makes the same promise as CancelAck.
type Failed struct {
	CancelAck
	Code Code
	Text string
}

func (*Failed) Kind() Kind { return KindFailed }

func (m *Failed) put(w *writer) {
	m.CancelAck.put(w)
	w.u8(uint8(m.Code))
	w.str(m.Text, maxText)
}

func (m *Failed) take(r *reader) {
	m.CancelAck.take(r)
	m.Code, m.Text = Code(r.u8("code")), r.str("text", maxText)
}

// Digest is the sums over what was sent, by layer group, for D to compare with what it has.
type Digest struct {
	Seq  uint64
	Sums []uint64
}

func (*Digest) Kind() Kind { return KindDigest }

func (m *Digest) put(w *writer) {
	w.u64(m.Seq)
	w.num(len(m.Sums))
	for _, s := range m.Sums {
		w.u64(s)
	}
}

func (m *Digest) take(r *reader) {
	m.Seq = r.u64("seq")
	n := r.count("sums", maxSums, 8)
	for range n {
		m.Sums = append(m.Sums, r.u64("sum"))
	}
}

// Timing says how the computation went: statistics.
type Timing struct {
	Seq             uint64
	Host            uint64 // tells hosts apart, so that D knows whether the clocks are one
	Begun, Computed int64  // of the first pass, of the last layer, Unix ns
	Layers, Late    int    // layers computed over all passes; of them, those that took longer than they were meant to
}

func (*Timing) Kind() Kind { return KindTiming }

func (m *Timing) put(w *writer) {
	w.u64(m.Seq)
	w.u64(m.Host)
	w.u64(uint64(m.Begun))
	w.u64(uint64(m.Computed))
	w.num(m.Layers)
	w.num(m.Late)
}

func (m *Timing) take(r *reader) {
	m.Seq, m.Host = r.u64("seq"), r.u64("host")
	m.Begun, m.Computed = int64(r.u64("begun")), int64(r.u64("computed"))
	m.Layers, m.Late = r.num("layers"), r.num("late layers")
}

// Beat is a sign of life, and heals what lost messages have left. Granted is in source pages that P has ever allowed on this link; D may
// dispatch while what it ever used plus the next cost is at most that. It only grows, so loss and order do not matter.
type Beat struct {
	Granted  uint64 // P to D
	Queue    int    // P to D: jobs that wait
	Busy     int    // P to D: share of pages in use, per mille
	Draining bool
	Wants    uint64 // D to P: cost of the request that waits for credits, 0 for none
}

func (*Beat) Kind() Kind { return KindBeat }

func (m *Beat) put(w *writer) {
	w.u64(m.Granted)
	w.num(m.Queue)
	w.num(m.Busy)
	w.bool(m.Draining)
	w.u64(m.Wants)
}

func (m *Beat) take(r *reader) {
	m.Granted, m.Queue, m.Busy = r.u64("granted"), r.num("queue"), r.num("busy")
	m.Draining, m.Wants = r.bool("draining"), r.u64("wants")
}

// Query asks about attempts that nothing has been heard of.
type Query struct{ Seqs []uint64 }

func (*Query) Kind() Kind { return KindQuery }

func (m *Query) put(w *writer) {
	w.num(len(m.Seqs))
	for _, s := range m.Seqs {
		w.u64(s)
	}
}

func (m *Query) take(r *reader) {
	n := r.count("seqs", MaxQuery, 8)
	for range n {
		m.Seqs = append(m.Seqs, r.u64("seq"))
	}
}

// Phase is what P says of an attempt.
type Phase uint8

// The phases.
const (
	PhaseUnknown Phase = iota // never heard of it, or forgotten: no answer; only Cancel makes one
	PhaseQueued
	PhaseRunning
	PhasePausing
	PhaseTomb // ended: Posted and Exact are final
	phaseEnd
)

func (p Phase) String() string {
	if p < phaseEnd {
		return [...]string{"unknown", "queued", "running", "pausing", "tomb"}[p]
	}
	return fmt.Sprintf("phase %d", uint8(p))
}

// State answers a Query, in the order of its Seqs.
type State struct{ Of []AttemptState }

// AttemptState is State of one attempt. Sums is there when the attempt is a tomb and digests are on.
type AttemptState struct {
	Seq    uint64
	Phase  Phase
	Layer  int // last layer that was posted whole; for people
	Posted uint64
	Exact  bool
	Code   Code // of a tomb that failed
	Sums   []uint64
}

func (*State) Kind() Kind { return KindState }

func (m *State) put(w *writer) {
	w.num(len(m.Of))
	for _, a := range m.Of {
		w.u64(a.Seq)
		w.u8(uint8(a.Phase))
		w.num(a.Layer)
		w.u64(a.Posted)
		w.bool(a.Exact)
		w.u8(uint8(a.Code))
		w.num(len(a.Sums))
		for _, s := range a.Sums {
			w.u64(s)
		}
	}
}

func (m *State) take(r *reader) {
	n := r.count("states", MaxQuery, 27)
	for range n {
		a := AttemptState{Seq: r.u64("seq"), Phase: Phase(r.u8("phase")), Layer: r.num("layer"), Posted: r.u64("posted"), Exact: r.bool("exact"), Code: Code(r.u8("code"))}
		if a.Phase >= phaseEnd {
			r.fail("phase", fmt.Sprintf("is %d", uint8(a.Phase)))
		}
		for range r.count("sums", maxSums, 8) {
			a.Sums = append(a.Sums, r.u64("sum"))
		}
		m.Of = append(m.Of, a)
	}
}

// Drain says that the sender wants no new jobs (P), or makes none (D).
type Drain struct{}

func (*Drain) Kind() Kind   { return KindDrain }
func (*Drain) put(*writer)  {}
func (*Drain) take(*reader) {}

// Bye ends the link.
type Bye struct{ Text string }

func (*Bye) Kind() Kind       { return KindBye }
func (m *Bye) put(w *writer)  { w.str(m.Text, maxText) }
func (m *Bye) take(r *reader) { m.Text = r.str("text", maxText) }
