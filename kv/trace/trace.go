package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// BlockTokens is the number of prompt tokens that one hash id stands for.
const BlockTokens = 512

// Request is one line of a trace.
type Request struct {
	Arrival time.Duration // since the start of the trace
	Input   int           // prompt tokens, at least 1
	Output  int           // generated tokens
	Hashes  []uint64      // one per block of the prompt; the last block may be partly used
}

// Bounds of a line: they keep a broken or hostile file from taking all memory.
const (
	maxLine   = 1 << 20 // bytes; a prompt of 128k tokens needs 4 KiB
	maxTokens = 1 << 24
	maxMillis = 1 << 42 // 139 years
)

// LineError is what Read returns for a line that is not a valid request.
type LineError struct {
	File string
	Line int // from 1
	Err  error
}

func (e *LineError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

func (e *LineError) Unwrap() error { return e.Err }

// Open reads at most limit requests of a file, all when limit is 0.
func Open(path string, limit int) ([]Request, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	return Read(f, path, limit)
}

// Read reads at most limit requests, all when limit is 0; name is what errors call the source. Empty lines are allowed,
// a trace without requests is not. The error is a *LineError when a line is at fault.
func Read(r io.Reader, name string, limit int) ([]Request, error) {
	var all []Request
	lines := bufio.NewScanner(r)
	lines.Buffer(make([]byte, 0, 64<<10), maxLine)
	n := 0
	for (limit == 0 || len(all) < limit) && lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		req, err := parse(line)
		if err == nil && len(all) > 0 && req.Arrival < all[len(all)-1].Arrival {
			err = fmt.Errorf("timestamp is %d, want at least %d, that of the request before: a trace is in order of arrival",
				req.Arrival.Milliseconds(), all[len(all)-1].Arrival.Milliseconds())
		}
		if err != nil {
			return nil, &LineError{File: name, Line: n, Err: err}
		}
		all = append(all, req)
	}
	switch err := lines.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return nil, &LineError{File: name, Line: n + 1, Err: fmt.Errorf("line is longer than %d bytes", maxLine)}
	case err != nil:
		return nil, fmt.Errorf("trace %s: %w", name, err)
	case len(all) == 0:
		return nil, fmt.Errorf("trace %s: no request in it", name)
	}
	return all, nil
}

// line is the JSON form; pointers tell a missing field from a zero.
type line struct {
	Timestamp *int64   `json:"timestamp"`
	Input     *int64   `json:"input_length"`
	Output    *int64   `json:"output_length"`
	Hashes    []uint64 `json:"hash_ids"`
}

func parse(b []byte) (Request, error) {
	var l line
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&l); err != nil {
		return Request{}, fmt.Errorf("not a request: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return Request{}, fmt.Errorf("not a request: more data after the object, want one object a line")
	}
	for _, f := range []struct {
		name        string
		value       *int64
		least, most int64
	}{
		{"timestamp", l.Timestamp, 0, maxMillis},
		{"input_length", l.Input, 1, maxTokens},
		{"output_length", l.Output, 0, maxTokens},
	} {
		switch {
		case f.value == nil:
			return Request{}, fmt.Errorf("field %s is missing", f.name)
		case *f.value < f.least || *f.value > f.most:
			return Request{}, fmt.Errorf("%s is %d, want %d .. %d", f.name, *f.value, f.least, f.most)
		}
	}
	if l.Hashes == nil {
		return Request{}, errors.New("field hash_ids is missing")
	}
	if want := blocks(int(*l.Input)); len(l.Hashes) != want {
		return Request{}, fmt.Errorf("hash_ids has %d ids, want %d: one per %d tokens of input_length %d",
			len(l.Hashes), want, BlockTokens, *l.Input)
	}
	return Request{
		Arrival: time.Duration(*l.Timestamp) * time.Millisecond,
		Input:   int(*l.Input),
		Output:  int(*l.Output),
		Hashes:  l.Hashes,
	}, nil
}

// Write writes requests in the form that Read takes.
func Write(w io.Writer, requests []Request) error {
	enc := json.NewEncoder(w)
	for _, r := range requests {
		at, in, out := r.Arrival.Milliseconds(), int64(r.Input), int64(r.Output)
		if err := enc.Encode(line{&at, &in, &out, r.Hashes}); err != nil {
			return fmt.Errorf("trace: write: %w", err)
		}
	}
	return nil
}

func blocks(tokens int) int { return (tokens + BlockTokens - 1) / BlockTokens }
