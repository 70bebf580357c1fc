package versus

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
)

// request is what a driver is asked, one JSON object a line. bench/peers/README.md describes the protocol.
type request struct {
	Op string `json:"op"`
	*Opening
	First *uint64 `json:"first,omitempty"` // of opRun: number of the first block since the start of the run
	Moved *uint64 `json:"moved,omitempty"` // of opVerify: blocks moved so far

	LayerNS int64 `json:"layer_ns,omitempty"` // of opRun with Layers: computation of each
	Whole   bool  `json:"whole,omitempty"`    // and nothing is posted before the last one is computed

	Warm  int `json:"warm,omitempty"`  // of opRun with Alltoall: steps that do not count, before the others
	Steps int `json:"steps,omitempty"` // that count
}

// The operations of a driver.
const (
	opOpen   = "open"
	opRun    = "run"
	opVerify = "verify"
)

// Opening is what a driver needs to know before it can measure.
type Opening struct {
	Scenario   Scenario `json:"scenario"`
	Transport  string   `json:"transport"`
	Size       uint64   `json:"size"`
	Pool       uint64   `json:"pool"`
	Count      int      `json:"count"`
	Depth      int      `json:"depth"`
	Batch      int      `json:"batch"`
	Pings      int      `json:"pings"`
	Order      string   `json:"order"` // path of a file of pairs of slots
	Seed       uint64   `json:"seed"`
	Congestion string   `json:"congestion"`
	Target     uint64   `json:"target,omitempty"`  // of Layers: bytes of the destination
	Foreign    bool     `json:"foreign,omitempty"` // ours: register memory instead of allocating it; peers always do

	*Alltoall
}

// reply is what a driver answers.
type reply struct {
	OK  bool   `json:"ok"`
	Why string `json:"why,omitempty"`

	Name     string `json:"name,omitempty"` // to opOpen
	Version  string `json:"version,omitempty"`
	Settings string `json:"settings,omitempty"`

	Seconds float64 `json:"seconds,omitempty"` // to opRun
	CPU     float64 `json:"cpu,omitempty"`     // user and system time of all processes of the driver
	P50     float64 `json:"p50,omitempty"`     // one way, microseconds, of Latency
	P99     float64 `json:"p99,omitempty"`
	P999    float64 `json:"p999,omitempty"`
	Exposed float64 `json:"exposed,omitempty"` // of Layers: seconds since the last layer was computed

	Whole []float64 `json:"us,omitempty"`       // of Alltoall: of each step, microseconds, the longest of all ranks
	Forth []float64 `json:"forth_us,omitempty"` // rows, and what is known before they can move
	Back  []float64 `json:"back_us,omitempty"`  // results

	Corrupt uint64 `json:"corrupt,omitempty"` // to opVerify: bytes
}

// slot is where a block comes from and where it goes, as numbers of blocks in the two pools.
type slot struct{ src, dst uint32 }

// slotBytes is the size of a slot in the order file.
const slotBytes = 8

// writeOrder writes the order of a case to a file, for all drivers.
func writeOrder(path string, slots int, seed uint64) error {
	src, dst := permutation(slots, seed, 1), permutation(slots, seed, 2)
	data := make([]byte, 0, slots*slotBytes)
	for i := range slots {
		data = binary.LittleEndian.AppendUint32(data, src[i])
		data = binary.LittleEndian.AppendUint32(data, dst[i])
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("versus: order of blocks: %w", err)
	}
	return nil
}

func permutation(n int, seed, stream uint64) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(i)
	}
	rand.New(rand.NewPCG(seed, stream)).Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

func readOrder(path string, slots uint64) ([]slot, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("order of blocks: %w", err)
	}
	if uint64(len(data)) != slots*slotBytes {
		return nil, fmt.Errorf("order of blocks: %s has %d bytes, want %d slots of %d", path, len(data), slots, slotBytes)
	}
	all := make([]slot, slots)
	for i := range all {
		s := slot{binary.LittleEndian.Uint32(data[i*slotBytes:]), binary.LittleEndian.Uint32(data[i*slotBytes+4:])}
		if uint64(s.src) >= slots || uint64(s.dst) >= slots {
			return nil, fmt.Errorf("order of blocks: %s: slot %d is beyond the pool", path, i)
		}
		all[i] = s
	}
	return all, nil
}

// word is the content of a source slot at a byte offset that is a multiple of 8.
func word(seed, slot, offset uint64) uint64 { return seed<<48 | slot<<24 | offset/8 }

// driver is a driver that is written in Go; its methods are called by one goroutine. run and verify follow an open that succeeded.
type driver interface {
	open(Opening) (reply, error)
	run(first uint64) (reply, error)
	verify(moved uint64) (reply, error)
	close() error
}

// serve answers requests until the end of in. An error that was answered is not returned.
func serve(d driver, in io.Reader, out io.Writer) (err error) {
	defer func() { err = errors.Join(err, d.close()) }()
	enc, opened := json.NewEncoder(out), false
	for lines := bufio.NewReader(in); ; {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("driver: %w", err)
		}
		var q request
		if err := json.Unmarshal(line, &q); err != nil {
			return fmt.Errorf("driver: request: %w", err)
		}
		answer, err := handle(d, q, opened)
		opened = true
		answer.OK = err == nil
		if err != nil {
			answer.Why = err.Error()
		}
		if sent := enc.Encode(answer); sent != nil {
			return fmt.Errorf("driver: %w", sent)
		}
		if err != nil {
			return nil
		}
	}
}

func handle(d driver, q request, opened bool) (reply, error) {
	switch {
	case q.Op == opOpen && q.Opening != nil && !opened:
		return d.open(*q.Opening)
	case q.Op == opRun && q.First != nil && opened:
		return d.run(*q.First)
	case q.Op == opVerify && q.Moved != nil && opened:
		return d.verify(*q.Moved)
	}
	return reply{}, fmt.Errorf("unexpected request %q", q.Op)
}
