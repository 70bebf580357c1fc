package proc

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
)

// maxLine bounds one message, bytes: a report with thousands of samples fits.
const maxLine = 16 << 20

// kindError is the message by which a child tells its parent why it fails.
const kindError = "error"

// ErrParentGone is the cause of the context of Attach when the parent has closed the pipe or died.
var ErrParentGone = errors.New("the parent process is gone")

// Message is one line.
type Message struct {
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data,omitempty"`
}

// Decode decodes the data.
func (m Message) Decode(v any) error {
	if err := json.Unmarshal(m.Data, v); err != nil {
		return fmt.Errorf("message %q: %w", m.Kind, err)
	}
	return nil
}

// Parent is the other end of the pipes of a child. Send may be called from any goroutine, Next from one.
type Parent struct {
	mu    sync.Mutex
	out   io.Writer // guarded by mu
	lines chan Message
	ended error // why lines was closed; written before
}

// Attach is called once by a process that Start started, before it does anything else. The context ends when the parent is gone, or
// sends what is no message; it is for the whole life of the process.
func Attach(ctx context.Context) (*Parent, context.Context) {
	signal.Ignore(syscall.SIGINT) // the terminal sends it to the whole group; the parent decides
	p := &Parent{out: os.Stdout, lines: make(chan Message)}
	ctx, cancel := context.WithCancelCause(ctx)
	// Not joined: it lives as long as the process, which ends when it ends.
	go p.read(ctx, cancel, os.Stdin)
	return p, ctx
}

func (p *Parent) read(ctx context.Context, cancel context.CancelCauseFunc, in io.Reader) {
	defer close(p.lines)
	for r := newReader(in); ; {
		m, err := r.next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = ErrParentGone
			}
			p.ended = err
			cancel(err)
			return
		}
		select {
		case p.lines <- m:
		case <-ctx.Done():
			p.ended = context.Cause(ctx)
			return
		}
	}
}

// Send sends the parent one message.
func (p *Parent) Send(kind string, v any) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return send(p.out, kind, v)
}

// Fail tells the parent why this process is about to exit with a failure.
func (p *Parent) Fail(err error) { _ = p.Send(kindError, err.Error()) }

// Next returns the parent's next message; the error is ErrParentGone, what is wrong with what the parent sent, or the context's.
func (p *Parent) Next(ctx context.Context) (Message, error) {
	select {
	case m, ok := <-p.lines:
		if !ok {
			return m, p.ended
		}
		return m, nil
	case <-ctx.Done():
		return Message{}, context.Cause(ctx)
	}
}

func send(w io.Writer, kind string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("send %q: %w", kind, err)
	}
	line, err := json.Marshal(Message{Kind: kind, Data: data})
	if err != nil {
		return fmt.Errorf("send %q: %w", kind, err)
	}
	if _, err := w.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("send %q: %w", kind, err)
	}
	return nil
}

type reader struct{ s *bufio.Scanner }

func newReader(r io.Reader) reader {
	s := bufio.NewScanner(r)
	s.Buffer(nil, maxLine)
	return reader{s}
}

func (r reader) next() (Message, error) {
	if !r.s.Scan() {
		if err := r.s.Err(); err != nil {
			return Message{}, err
		}
		return Message{}, io.EOF
	}
	var m Message
	if err := json.Unmarshal(r.s.Bytes(), &m); err != nil {
		return Message{}, fmt.Errorf("line %.60q is no message: %w", r.s.Text(), err)
	}
	return m, nil
}
