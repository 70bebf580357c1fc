package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hawser-project/hawser/internal/proc"
)

// line is the conversation of the measuring process with a receiving one, in the messages below: with a *proc.Child on this host, with a *call to
// a server.
type line interface {
	Send(kind string, v any) error

	// Next returns the next message; the error says why there is none.
	Next(ctx context.Context) (proc.Message, error)

	// Done is closed when the other side has ended, and then Err says why; nil when it was asked to.
	Done() <-chan struct{}
	Err() error

	// Stop asks the other side to end, and waits until it has, but no longer than the grace period.
	Stop(grace time.Duration) error
}

// uplink is the receiver's end of a line.
type uplink interface {
	Send(kind string, v any) error
	Next(ctx context.Context) (proc.Message, error)
}

// The conversation. Each request of the sender names what the receiver does next; to work the receiver answers "go" when it is ready,
// so that its preparation is not measured, and "done" at the end.
const (
	msgOpen   = "open"   // openRequest -> ready
	msgReady  = "ready"  // openAnswer
	msgJoin   = "join"   // joinRequest -> joined
	msgJoined = "joined" // null
	msgWork   = "work"   // workRequest -> go, then done
	msgGo     = "go"     // null
	msgDone   = "done"   // workDone
	msgVerify = "verify" // number of blocks moved -> result
	msgResult = "result" // corrupt bytes
)

// protocolVersion changes when the conversation does.
const protocolVersion = 2

// openRequest makes a receiver ready for a config. Its first field never changes.
type openRequest struct {
	Version int    `json:"version"`
	Config  Config `json:"config"`
	Index   int    `json:"index"` // of this receiver, below Config.Peers

	// Host is what a process that the sender has started itself takes for its own. A server knows better.
	Host *Host `json:"host,omitempty"`
}

type openAnswer struct {
	Descriptor string   `json:"descriptor"` // of the receiver's pool
	Member     member   `json:"member"`
	Machine    *Machine `json:"machine,omitempty"` // of a server
}

// member is how the others of a run reach a receiver.
type member struct {
	Engine string   `json:"engine"` // as Engine.Addr
	Stream endpoint `json:"stream"`
}

type joinRequest struct {
	Descriptor string   `json:"descriptor"` // of the sender's answer word
	Members    []member `json:"members"`    // all receivers, by index
}

type workRequest struct {
	Measure int  `json:"measure"` // of the scenario
	Yard    bool `json:"yard"`
	Task    task `json:"task"`
}

type workDone struct {
	CPU float64 `json:"cpu"` // seconds
}

// expect waits for a message of a kind and decodes it, unless v is nil.
func expect(ctx context.Context, l line, kind string, v any) error {
	m, err := l.Next(ctx)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	if m.Kind != kind {
		return fmt.Errorf("bench: a receiver sent %q, want %q", m.Kind, kind)
	}
	if v == nil {
		return nil
	}
	return m.Decode(v)
}
