package proto

import (
	"errors"
	"reflect"
	"testing"
	"time"
)

// bodies has one message of each kind with every field set.
func bodies() []Body {
	return []Body{
		&Hello{Instance: "d", Member: 1, Topology: []byte{1, 2}, Descriptors: [][]byte{{3}, {4, 5}}, TailSlots: 8, TailBytes: 4096},
		&HelloAck{Instance: "p", Member: 2, Topology: []byte{6}, Granted: 7},
		&HelloReject{Code: CodeMismatch, Field: "fingerprint", Here: "a", There: "b", Text: "c"},
		&Dispatch{
			Seq: 1, Try: 2, Request: "81f2", Imm: 3, Groups: []Group{{Span{First: 128, N: 300}, []Extent{{1, 7, 1}, {2, 3, 1}}}, {Span{First: 0, N: 300}, []Extent{{0, 9, 3}}}},
			Tail: true, TailSlot: 4, Prompt: Prompt{Tokens: 2, IDs: []uint32{5, 6}, Key: "k"}, Remaining: time.Second, Priority: -3,
			Trace: [16]byte{1, 15: 2}, Plan: 8, Expected: 9, Cost: 10,
		},
		&Accept{1, 2, 3},
		&Reject{Seq: 1, Code: CodeBusy, Text: "full", RetryAfter: time.Second, Granted: 5},
		&Cancel{1, "81f2", 3, "why"},
		&CancelAck{1, 2, true, 3},
		&Failed{CancelAck{1, 2, true, 3}, CodeEngine, "text"},
		&Digest{1, []uint64{2, 3}},
		&Timing{1, 2, 3, 4, 5, 6},
		&Beat{1, 2, 3, true, 4},
		&Query{[]uint64{1, 2}},
		&State{[]AttemptState{{Seq: 1, Phase: PhaseTomb, Layer: 2, Posted: 3, Exact: true, Code: CodeLate, Sums: []uint64{4}}, {Seq: 5}}},
		&Drain{},
		&Bye{"text"},
	}
}

func TestMessagesAreReadBack(t *testing.T) {
	seen := map[Kind]bool{}
	for _, b := range bodies() {
		seen[b.Kind()] = true
		data := Encode(Head{1, 2, 3, 4}, b)
		if kind, _ := Peek(data); kind != b.Kind() {
			t.Errorf("%v: Peek says %v", b.Kind(), kind)
		}
		h, got, err := Decode(data)
		if err != nil || h != (Head{1, 2, 3, 4}) || !reflect.DeepEqual(got, b) {
			t.Errorf("%v: got %+v %+v, %v", b.Kind(), h, got, err)
		}
	}
	if _, about := Peek(Encode(Head{}, &Accept{Seq: 7})); about != 7 {
		t.Errorf("Peek says that the answer to attempt 7 is about %d", about)
	}
	for k := KindHello; k < kindEnd; k++ {
		if !seen[k] {
			t.Errorf("no message of kind %v is tested", k)
		}
	}
}

// TestCutMessagesAreRefused cuts every message at every length, and adds a byte.
func TestCutMessagesAreRefused(t *testing.T) {
	for _, b := range bodies() {
		whole := Encode(Head{1, 2, 3, 4}, b)
		for n := range whole {
			if _, _, err := Decode(whole[:n]); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v: %d of %d bytes: %v", b.Kind(), n, len(whole), err)
			}
		}
		if _, _, err := Decode(append(whole, 0)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%v: a byte more: %v", b.Kind(), err)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range bodies() {
		f.Add(Encode(Head{1, 2, 3, 4}, b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, b, err := Decode(data)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatal(err)
			}
			return
		}
		h2, b2, err := Decode(Encode(h, b))
		if err != nil || h2 != h || !reflect.DeepEqual(b2, b) {
			t.Fatalf("%+v %+v is read back as %+v %+v, %v", h, b, h2, b2, err)
		}
	})
}
