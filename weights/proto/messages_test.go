package proto

import (
	"errors"
	"reflect"
	"testing"
)

// bodies has one message of each kind with every field set.
func bodies() []Body {
	id := func(n byte) ID { return ID{n, 15: n} }
	key := func(n uint64) Key { return Key{Term{n, id(byte(n))}, n + 1} }
	m := Member{ID: id(1), Addr: "a", Role: RoleReceiver, Rank: 2, Instance: 3, Shard: 4, Leader: true, Shadow: true, Layout: Hash{5}}
	d := Decision{Of: key(1), Version: 2, Commit: true, Instances: []int{3, 4}, Operator: true}
	return []Body{
		&Ack{1},
		&Join{
			Member: m, Name: "n", Group: 2, State: StatePrepared, Version: 3, Pending: 9, Root: Hash{4}, Held: 5, Epoch: key(6), Log: id(7), Since: key(8),
			Last: d, Others: []Member{m}, Stuck: []ID{id(9)},
		},
		&Joined{},
		&Stale{Term{1, id(2)}},
		&Want{Hash{1}},
		&Plan{ModeCopy, Hash{1}, Hash{2}},
		&PlannedBy{},
		&Begin{ModePush, id(1), key(2), Hash{3}, Hash{4}, []Member{m, m}, []uint64{9}, []int{1}, []int{0}},
		&Stopped{},
		&GrantOf{Grant{1, []uint32{2, 3}, [][]byte{{4}, {5, 6}}}, []Import{{7, 8}}},
		&Start{[]PeerGrant{{1, Grant{2, []uint32{3}, [][]byte{{4}}}}}},
		&Drop{[]int{1}},
		&Stage{[]StageSum{{1, 2, 3, 4, 5, 6}}},
		&Quiet{QuietLeft, []int{1}, []int{2, 3}},
		&Prepared{Hash{1}},
		&Failed{CodeDigest, 1, "text"},
		&Halt{1, true, []int{1}},
		&Halted{1, []uint64{1, 2}, []ID{id(3)}},
		&Decided{d, key(1), true, []ID{id(2)}, CodeLost, "text"},
		&OutOf{key(1), key(2), true, CodeFlip, "text"},
		&Done{key(1), true, CodeFlip, "text", []ID{id(2)}},
		&Flip{d},
		&Flipped{true, "text"},
		&Ask{key(1), id(2)},
		&Told{key(1), true, true, d},
	}
}

var someHead = Head{Seq: 1, Term: Term{2, ID{3}}, Epoch: 4, Version: 5}

func TestMessagesAreReadBack(t *testing.T) {
	seen := map[Kind]bool{}
	for _, b := range bodies() {
		seen[b.Kind()] = true
		h, got, err := Decode(Encode(someHead, b))
		if err != nil || h != someHead || !reflect.DeepEqual(got, b) {
			t.Errorf("%v: got %+v %+v, %v", b.Kind(), h, got, err)
		}
	}
	for k := KindAck; k < kindEnd; k++ {
		if !seen[k] {
			t.Errorf("no message of kind %v is tested", k)
		}
	}
}

// TestCutMessagesAreRefused cuts every message at every length, and adds a byte.
func TestCutMessagesAreRefused(t *testing.T) {
	for _, b := range bodies() {
		whole := Encode(someHead, b)
		for n := range whole {
			if _, _, err := Decode(whole[:n]); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v: %d of %d bytes: %v", b.Kind(), n, len(whole), err)
			}
		}
		if _, _, err := Decode(append(whole, 0)); !errors.Is(err, ErrProtocol) {
			t.Fatalf("%v: a byte too many: %v", b.Kind(), err)
		}
	}
}

// FuzzMessages: whatever is read can be written, and reads the same again.
func FuzzMessages(f *testing.F) {
	for _, b := range bodies() {
		f.Add(Encode(someHead, b))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h, b, err := Decode(data)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("error %v", err)
			}
			return
		}
		again := Encode(h, b)
		if len(again) != len(data) {
			t.Fatalf("%v: %d bytes became %d", b.Kind(), len(data), len(again))
		}
		if h2, b2, err := Decode(again); err != nil || h2 != h || !reflect.DeepEqual(b, b2) {
			t.Fatalf("%v: %+v became %+v, %v", b.Kind(), b, b2, err)
		}
	})
}

func TestRecordsAreReadBack(t *testing.T) {
	r := Record{Seq: 1, Term: Term{2, ID{3}}, Decision: Decision{Of: Key{Term{4, ID{5}}, 6}, Version: 7, Commit: true, Instances: []int{8}}, By: Key{Term{9, ID{10}}, 11}}
	data := r.Encode()
	if got, err := DecodeRecord(data); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("got %+v, %v", got, err)
	}
	for n := range data {
		if _, err := DecodeRecord(data[:n]); !errors.Is(err, ErrProtocol) {
			t.Fatalf("%d of %d bytes: %v", n, len(data), err)
		}
	}
}
