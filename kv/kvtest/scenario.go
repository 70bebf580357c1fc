package kvtest

import (
	"math/rand/v2"
	"time"
)

// Scenario is all that is decided before a run: who is there, what is asked for, what goes wrong when. Seed decides the rest, as
// delays. Equal scenarios run equally. It is plain data, so that one which failed can be kept as a file.
type Scenario struct {
	Seed       uint64
	Shape      string
	Decoders   int // instances
	Prefillers int
	Imms       int // immediates of a decoder
	TailSlots  int
	Tries      int
	Digests    bool
	Net        Net
	Engine     Engine
	Requests   []Request
	Faults     []Fault
	// Checks is after how many events the machines' own checks run; 0: only at the end.
	Checks int `json:",omitempty"`
	// Close ends a run by closing the machines, instead of letting them be.
	Close bool `json:",omitempty"`
	// Warm makes decoders connect at once.
	Warm bool `json:",omitempty"`
	// Bring makes users bring the pages, as they must when a decoder has several members.
	Bring bool `json:",omitempty"`
}

// Net is how bad the network is. Chances are between 0 and 1.
type Net struct {
	Loss       float64       // of messages
	Slow       float64       // of anything, by up to SlowFor
	SlowFor    time.Duration //
	WriteError float64       // of a write
	Unknown    float64       // that a write with an error may land all the same
	EarlyDone  float64       // that a write completes at its sender before it lands
	LateCount  float64       // that a write is counted after it landed, not with it
	NoRoom     float64       // that the engine takes no write now
	NoImm      float64       // that Take finds none
	LateTick   float64       // that a timer is late
	Import     float64       // that an import fails
	Corrupt    float64       // that a write lands with another content; only with digests
}

// Engine is the inference engine of the prefillers.
type Engine struct {
	Words   bool          // progress by words, not by calls
	Chunk   int           // tokens of a pass
	Layer   time.Duration // of computing
	Ahead   int           // passes that are begun before they run
	Abort   float64       // of a pass
	Preempt float64       // of a job, per pass
	Fail    float64       // of a job, per pass
	Refuse  float64       // of a job
	Cache   bool          // prefixes are kept
}

// Request is what a user asks a decoder for.
type Request struct {
	At       time.Duration
	Decoder  int   // instance
	Sources  []int // instances of prefillers, the preferred one first
	Family   int   // prompts of one family begin with the same tokens
	Shared   int   // how many
	Tokens   int
	Tail     bool          `json:",omitempty"`
	Meet     Meeting       `json:",omitempty"`
	Expect   time.Duration `json:",omitempty"` // when the prompt comes to the prefiller, from At on; may be negative
	Cancel   time.Duration `json:",omitempty"` // after At; 0: not
	Deadline time.Duration `json:",omitempty"` // 0: the decoder's
	Hold     time.Duration // from ready to release
	Priority int8          `json:",omitempty"`
	Alias    bool          `json:",omitempty"` // the prefillers are asked for by another address of theirs
	Skip     bool          `json:",omitempty"` // the decoder's second member does not ask
}

// Meeting is how the prompt gets to the prefiller.
type Meeting uint8

const (
	// ByIDs sends the token ids.
	ByIDs Meeting = iota
	// ByKey sends a key that the inference engine knows.
	ByKey
	// ByExpect sends nothing: the prompt comes to the prefiller some other way.
	ByExpect
)

// FaultKind is something that goes wrong.
type FaultKind uint8

// The faults. A and B are instances; Member says which member of those.
const (
	CrashP  FaultKind = iota // prefiller A dies; another comes back at its address after For
	CrashD                   // decoder A dies, likewise
	FreezeP                  // prefiller A stands still for For
	FreezeD                  // decoder A stands still for For
	Cut                      // nothing gets from decoder A to prefiller B or back, for For
	Snap                     // the session of decoder A and prefiller B breaks
	DrainP                   // prefiller A drains
	CloseP                   // prefiller A closes, and another comes at its address after For
	DrainD                   // decoder A drains
	Join                     // another prefiller comes
	Full                     // the engine of prefiller A takes no writes for For
	faultKinds
)

var faultNames = [...]string{
	"prefiller crashes", "decoder crashes", "prefiller freezes", "decoder freezes",
	"network is cut", "session breaks", "prefiller drains", "prefiller closes", "decoder drains", "prefiller joins", "no room for writes",
}

func (k FaultKind) String() string { return faultNames[k%faultKinds] }

// Fault is a fault.
type Fault struct {
	At     time.Duration
	Kind   FaultKind
	A, B   int           `json:",omitempty"`
	Member int           `json:",omitempty"`
	For    time.Duration `json:",omitempty"`
	Mid    bool          `json:",omitempty"` // frozen in the middle of a copy: no fence has a proof before it goes on
}

// faultTime is when the last requests and faults begin.
const faultTime = 6 * time.Second

// Random makes the scenario of a seed.
func Random(seed uint64) *Scenario {
	g := gen{rand.New(rand.NewPCG(seed, 1))}
	s := &Scenario{
		Seed: seed, Shape: shapes[g.IntN(len(shapes))].name, Decoders: 1 + g.IntN(2), Prefillers: 1 + g.IntN(2),
		Imms: g.pick(2, 3, 8), TailSlots: g.pick(1, 2, 4), Tries: g.pick(1, 2, 3, 3), Digests: g.chance(0.25),
		Checks: g.pick(1, 16, 64, 256), Close: g.chance(0.3), Bring: g.chance(0.1), Warm: g.chance(0.2),
	}
	s.Net = g.net()
	s.Engine = g.engine()
	burst := g.chance(0.5)
	for range 1 + g.IntN(8) {
		s.Requests = append(s.Requests, g.request(s, burst))
	}
	if !g.chance(0.2) {
		for range 1 + g.IntN(4) {
			s.Faults = append(s.Faults, g.fault(s))
		}
	}
	return s
}

type gen struct{ *rand.Rand }

func (g gen) chance(p float64) bool { return g.Float64() < p }

func (g gen) pick(of ...int) int { return of[g.IntN(len(of))] }

// rate is mostly nothing.
func (g gen) rate(of ...float64) float64 {
	if g.chance(0.4) {
		return 0
	}
	return of[g.IntN(len(of))]
}

func (g gen) upTo(d time.Duration) time.Duration { return time.Duration(g.Int64N(int64(d))) }

func (g gen) net() Net {
	return Net{
		Loss: g.rate(0.02, 0.1, 0.3), Slow: g.rate(0.02, 0.1, 0.3), SlowFor: time.Duration(g.pick(50, 300, 1500, 6000)) * time.Millisecond,
		WriteError: g.rate(0.002, 0.02), Unknown: g.rate(0.5, 1), EarlyDone: g.rate(0.1, 0.5), LateCount: g.rate(0.1, 0.5),
		NoRoom: g.rate(0.05, 0.3), NoImm: g.rate(0.1), LateTick: g.rate(0.1, 0.5), Import: g.rate(0.1), Corrupt: g.rate(0.001, 0.01),
	}
}

func (g gen) engine() Engine {
	return Engine{
		Words: g.chance(0.5), Chunk: g.pick(6, 16, 64), Layer: time.Duration(g.pick(200, 2000, 30000)) * time.Microsecond, Ahead: 1 + g.IntN(4),
		Abort: g.rate(0.1, 0.3), Preempt: g.rate(0.05, 0.3), Fail: g.rate(0.05), Refuse: g.rate(0.05), Cache: g.chance(0.5),
	}
}

func (g gen) request(s *Scenario, burst bool) Request {
	r := Request{
		At: g.upTo(faultTime), Decoder: g.IntN(s.Decoders), Family: g.IntN(2), Tokens: 1 + g.IntN(maxTokens), Tail: g.chance(0.5),
		Hold: g.upTo(500 * time.Millisecond), Priority: int8(g.IntN(3) - 1), Skip: g.chance(0.2), Alias: g.chance(0.03),
	}
	if burst {
		r.At = g.upTo(300 * time.Millisecond)
	}
	if g.chance(0.7) {
		r.Shared = g.pick(4, 8, 12, 16)
	}
	first := g.IntN(s.Prefillers)
	r.Sources = append(r.Sources, first)
	if s.Prefillers > 1 && g.chance(0.7) {
		r.Sources = append(r.Sources, 1-first)
	}
	switch {
	case g.chance(0.15):
		r.Meet, r.Expect = ByExpect, g.upTo(2*time.Second)-time.Second
	case g.chance(0.1):
		r.Meet = ByKey
	}
	if g.chance(0.3) {
		r.Cancel = 1 + g.upTo(time.Duration(g.pick(5, 100, 2000))*time.Millisecond)
	}
	if g.chance(0.1) {
		r.Deadline = 1 + g.upTo(3*time.Second)
	}
	return r
}

func (g gen) fault(s *Scenario) Fault {
	f := Fault{
		At: g.upTo(faultTime), Kind: FaultKind(g.IntN(int(faultKinds))),
		For: g.upTo(time.Duration(g.pick(20, 1000, 4000)) * time.Millisecond), Member: g.IntN(2), Mid: g.chance(0.7),
	}
	if g.chance(0.5) && len(s.Requests) > 0 { // near something
		f.At = s.Requests[g.IntN(len(s.Requests))].At + g.upTo(30*time.Millisecond)
	}
	f.A, f.B = g.IntN(s.Decoders), g.IntN(s.Prefillers)
	switch f.Kind {
	case CrashP, FreezeP, DrainP, CloseP, Full:
		f.A, f.B = g.IntN(s.Prefillers), 0
	}
	return f
}
