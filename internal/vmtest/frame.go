package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// kind is what a frame says. A frame is its kind, the length of its body (4 bytes, big endian), and the body.
type kind byte

const (
	frameHello  kind = 'h' // VM: it is ready; JSON hello
	frameRun    kind = 'r' // client: run this; JSON job, followed by job.Size bytes of the program in frameFile
	frameFile   kind = 'f'
	frameSignal kind = 's' // client: one byte, the number of the signal; 0 when the client has gone
	frameOut    kind = 'o' // VM: standard output
	frameErr    kind = 'e' // VM: standard error
	frameExit   kind = 'x' // VM: JSON outcome; ends the job
	framePower  kind = 'p' // VM: it was told to lose its power
	frameNote   kind = 'n' // session to client: text for a person
)

// maxBody bounds a frame: a longer one is a stream that went astray.
const maxBody = 1 << 20

// job is a program to run in a VM.
type job struct {
	VM   int
	Args []string
	Env  []string
	Dir  string
	Size int64 // of the program, which comes after; 0: Args[0] is one of the VM's
}

// outcome is how a program ended.
type outcome struct {
	Code int
	Err  string // why it did not start; empty if it did
}

// hello is what a VM tells when it is ready.
type hello struct {
	Seconds float64  // since its kernel started
	Env     []string // for programs: what devices there are
	Err     string   // what went wrong at boot; empty if nothing did
}

// frames writes frames, from several goroutines; each body in one piece.
type frames struct {
	mu sync.Mutex
	w  io.Writer
}

func (f *frames) send(k kind, body []byte) error {
	head := make([]byte, 5, 5+len(body))
	head[0] = byte(k)
	binary.BigEndian.PutUint32(head[1:], uint32(len(body)))
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := f.w.Write(append(head, body...)); err != nil {
		return fmt.Errorf("send frame %c: %w", k, err)
	}
	return nil
}

func (f *frames) sendJSON(k kind, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("send frame %c: %w", k, err)
	}
	return f.send(k, body)
}

// as returns a writer whose bytes become frames of one kind.
func (f *frames) as(k kind) io.Writer { return frameWriter{f, k} }

type frameWriter struct {
	f *frames
	k kind
}

func (w frameWriter) Write(p []byte) (int, error) {
	for sent := 0; sent < len(p); {
		n := min(len(p)-sent, 64<<10)
		if err := w.f.send(w.k, p[sent:sent+n]); err != nil {
			return sent, err
		}
		sent += n
	}
	return len(p), nil
}

// readFrame reads one frame. The body is the caller's.
func readFrame(r *bufio.Reader) (kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", err)
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxBody {
		return 0, nil, fmt.Errorf("read frame: %d bytes of kind %q, more than %d", n, head[0], maxBody)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, fmt.Errorf("read frame: %w", err)
	}
	return kind(head[0]), body, nil
}
