package wire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"
)

// samples is one filled value of every message.
func samples() []Message {
	rails := []Rail{{Provider: "shm", Fabric: "f", LinkBits: 1}, {Provider: "tcp", Fabric: "g"}}
	links := []Link{{Dialer: 1, Answerer: 2, Addr: []byte("secret")}, {Dialer: 3}}
	return []Message{
		&Hello{Magic: Magic, Min: 1, Max: 2, ID: ID{1}, Want: ID{2}, Nonce: [32]byte{3}, Keyed: 1, Name: "n", Require: "tcp", Rails: rails},
		&Welcome{Version: 1, ID: ID{4}, Nonce: [32]byte{5}, Name: "n", Rails: rails, MAC: [32]byte{6}},
		&Auth{MAC: [32]byte{7}},
		&Refuse{Code: RefusePath, Text: "why"},
		&Links{Path: "shm", Reason: "r", Links: links},
		&LinksReply{Links: links},
		&LinksDone{Fault: "f"},
		&Resolve{Descriptor: Descriptor{Owner: ID{1}, Region: 2, Gen: 3, Off: 4, Len: 5, Rights: 1, MAC: [16]byte{6}, Addr: "a"}},
		&Resolved{Fault: FaultStale, Text: "t", Keys: []Key{{ID: 1, Base: 2}}},
		&Bye{Reason: "done"},
		&BulkOffer{Len: 7},
		&BulkAck{Received: 5},
		&LinkNotice{Step: LinkReport, Link: 1, Epoch: 2, Ordered: 1, Imms: 3, Refusals: 4, Refused: []uint64{5, 6}, Messages: 7, Buckets: []uint32{8, 9}},
		&LinkNotice{Step: LinkOffer, Link: 1, Epoch: 2, Class: 3, Rail: 4, Addr: []byte("secret"), Fault: "f"},
		&Addr{ID: ID{9}, Host: "h", Unix: "u", Listen: []string{"127.0.0.1:1", "[::1]:2"}},
	}
}

func TestMessagesComeBackEqual(t *testing.T) {
	for _, m := range samples() {
		b := Append(nil, m)
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
		if err := Parse(b, got); err != nil {
			t.Errorf("%T: %v", m, err)
		} else if !reflect.DeepEqual(got, m) {
			t.Errorf("%T: got %+v, want %+v", m, got, m)
		}
		for n := range b { // every prefix is refused
			if err := Parse(b[:n], reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)); !errors.Is(err, ErrMalformed) {
				t.Fatalf("%T cut to %d of %d bytes: %v", m, n, len(b), err)
			}
		}
		if err := Parse(append(b, 0), reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%T with a byte too many: %v", m, err)
		}
	}
}

// A reason that is too long for a message arrives cut, not as a message that its reader refuses.
func TestLongTextsAreCut(t *testing.T) {
	long := strings.Repeat("x", 3*maxText)
	var r Refuse
	if err := Parse(Append(nil, &Refuse{Code: RefusePath, Text: long}), &r); err != nil || r.Text != long[:maxText] {
		t.Fatalf("%d bytes, %v", len(r.Text), err)
	}
}

// A message may be used again: what it held before does not mix with what is read.
func TestParseReplacesLists(t *testing.T) {
	for _, m := range samples() {
		b := Append(nil, m)
		if err := Parse(b, m); err != nil || !bytes.Equal(Append(nil, m), b) {
			t.Errorf("%T: %v, %+v", m, err, m)
		}
	}
}

// A length that the message does not have room for costs no memory.
func TestHugeLengthsAreRefusedBeforeAllocation(t *testing.T) {
	huge := []byte{0xff, 0xff, 0xff, 0xff}
	for _, m := range []Message{&LinksReply{}, &Bye{}} {
		if n := testing.AllocsPerRun(10, func() { _ = Parse(huge, m) }); n > 20 {
			t.Errorf("%T: %v allocations", m, n)
		}
		if err := Parse(huge, m); !errors.Is(err, ErrMalformed) {
			t.Errorf("%T: %v", m, err)
		}
	}
}

func TestAddrStringIsCheckedWhole(t *testing.T) {
	a := &Addr{ID: ID{1, 2}, Host: "boot", Unix: "sock", Listen: []string{"[::1]:4"}}
	s := a.String()
	got, err := ParseAddr(s)
	if err != nil || !reflect.DeepEqual(got, a) {
		t.Fatalf("%+v, %v", got, err)
	}
	for i := range s {
		b := []byte(s)
		b[i] ^= 4
		if _, err := ParseAddr(string(b)); !errors.Is(err, ErrMalformed) {
			t.Fatalf("character %d changed: %v", i, err)
		}
		if _, err := ParseAddr(s[:i]); !errors.Is(err, ErrMalformed) {
			t.Fatalf("cut to %d characters: %v", i, err)
		}
	}
}

func TestFramesComeBackAndAreBounded(t *testing.T) {
	b := AppendFrame(nil, TypeBye, 77, &Bye{Reason: "x"})
	b = AppendFrame(b, TypeBeat, 0, nil)
	r := bytes.NewReader(b)
	f, err := ReadFrame(r, nil)
	if err != nil || f.Type != TypeBye || f.Request != 77 || len(f.Payload) != 5 {
		t.Fatalf("%+v, %v", f, err)
	}
	if f, err = ReadFrame(r, nil); err != nil || f.Type != TypeBeat || len(f.Payload) != 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	if _, err := ReadFrame(r, nil); err != io.EOF {
		t.Fatalf("at the end: %v", err)
	}
	if _, err := ReadFrame(bytes.NewReader(b[:18]), nil); err != io.ErrUnexpectedEOF {
		t.Fatalf("cut in the payload: %v", err)
	}
	long := AppendFrame(nil, TypeBye, 0, nil)
	long[2] = 0xff
	if _, err := ReadFrame(bytes.NewReader(long), nil); !errors.Is(err, ErrMalformed) {
		t.Fatalf("length above the limit: %v", err)
	}
}

// Whatever parses is encoded to the same bytes again: there is one encoding of everything.
func FuzzParse(f *testing.F) {
	for i, m := range samples() {
		f.Add(uint8(i), Append(nil, m))
	}
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		all := samples()
		m := reflect.New(reflect.TypeOf(all[int(which)%len(all)]).Elem()).Interface().(Message)
		if Parse(b, m) == nil && !bytes.Equal(Append(nil, m), b) {
			t.Fatalf("%T %+v has two encodings: %x", m, m, b)
		}
	})
}

func FuzzParseAddr(f *testing.F) {
	f.Add((&Addr{ID: ID{1}, Listen: []string{"a:1"}}).String())
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddr(s)
		if err == nil {
			if back, err := ParseAddr(a.String()); err != nil || !reflect.DeepEqual(a, back) {
				t.Fatalf("%q: %+v, %v", s, back, err)
			}
		}
	})
}

func FuzzReadFrame(f *testing.F) {
	f.Add(AppendFrame(nil, TypeBye, 1, &Bye{Reason: "x"}))
	f.Fuzz(func(t *testing.T, b []byte) {
		fr, err := ReadFrame(bytes.NewReader(b), nil)
		if err == nil && len(fr.Payload) > MaxPayload {
			t.Fatalf("payload of %d bytes", len(fr.Payload))
		}
	})
}
