package kv

import (
	"errors"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// samples has one message of each kind, with every field set.
func samples() []body {
	views := make([]wireView, small.Views())
	for i := range views {
		views[i] = wireView{region: uint32(i % 2), pages: 100, base: uint64(i) << 33, stride: 4096}
	}
	return []body{
		&hello{geometry: small, descriptors: [][]byte{[]byte("first"), []byte("second")}, views: views},
		&helloAck{},
		&helloReject{field: "layers", here: "3", there: "4", text: "no"},
		&dispatch{seq: 7, id: "81f2", imm: 0xfff00003, tokens: 33, expected: 54, parts: 2, part: 1, extents: []extent{{0, 5, 3}, {3, 9, 1}}},
		&accept{7},
		&reject{7, CodeBusy, "256 jobs are queued"},
		&cancel{7, "caller went away"},
		&cancelAck{7, 12, true},
		&failed{cancelAck{7, 12, false}, CodeTransfer, "write failed"},
		&timing{7, 0x1234, 1e18, 1e18 + 5, 24, 3},
		&bye{"done"},
	}
}

func TestMessagesSurviveTheWire(t *testing.T) {
	h := head{epoch: 3, ticket: 8, lowWater: 5, next: 9}
	seen := map[kind]bool{}
	for _, m := range samples() {
		seen[m.kind()] = true
		b := encode(h, m)
		gotHead, got, err := decode(b)
		if err != nil || gotHead != h || !reflect.DeepEqual(got, m) {
			t.Errorf("%v: got %+v %+v, %v; want %+v %+v", m.kind(), gotHead, got, err, h, m)
		}
		// Cut short anywhere, or with one byte too many, it is refused and the text names the kind or the size.
		for n := range b {
			if _, _, err := decode(b[:n]); !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v cut to %d of %d bytes: got %v, want ErrProtocol", m.kind(), n, len(b), err)
			}
		}
		if _, _, err := decode(append(b, 0)); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), "1 more bytes") {
			t.Errorf("%v with a byte more: got %v, want ErrProtocol that says so", m.kind(), err)
		}
	}
	for k := kindHello; k < kindEnd; k++ {
		if !seen[k] {
			t.Errorf("no sample of %v", k)
		}
	}
}

func TestDecodeNamesWhatIsWrong(t *testing.T) {
	good := encode(head{1, 4, 2, 3}, &accept{7})
	change := func(at int, v byte) []byte {
		b := append([]byte(nil), good...)
		b[at] = v
		return b
	}
	huge := small
	huge.Group.HeadDim = 1 << 20
	huge.Group.KVHeads = 64
	view := samples()[0].(*hello)
	view.views[3].region = 2
	for _, c := range []struct {
		name string
		b    []byte
		want string
	}{
		{"empty", nil, "message of 0 bytes, want 40 .. 65536"},
		{"too long", make([]byte, maxMessage+1), "message of 65537 bytes"},
		{"another protocol", change(0, 'G'), "not a kv message"},
		{"another version", change(2, 9), "message version 9, want 1: run the same release"},
		{"kind 0", change(3, 0), "unknown kind 0"},
		{"kind 200", change(3, 200), "unknown kind 200"},
		{"reserved", change(5, 1), "accept message: zero is 0x100, want 0"},
		{"low water", change(24, 4), "lowWater is 4, want at most next, 3"},
		{"geometry", encode(head{}, &hello{geometry: Geometry{"x", 0, small.Group}}), "layers is 0, want 1 .. 1024"},
		{"page size", encode(head{}, &hello{geometry: huge}), "a page of one plane has"},
		{"no views", encode(head{}, &hello{geometry: small}), "views is 0, want 6"},
		{"view region", encode(head{}, view), "view has region 2 of 2"},
		{"parts", encode(head{}, &dispatch{parts: 1, part: 1, tokens: 1}), "part 1 of 1"},
		{"many parts", encode(head{}, &dispatch{parts: maxParts + 1, tokens: 1}), "part 0 of"},
		{"no tokens", encode(head{}, &dispatch{parts: 1}), "has 0 tokens"},
		{"extent", encode(head{}, &dispatch{parts: 1, tokens: 1, extents: []extent{{0, 0, 0}}}), "extent has 0 pages"},
		{"extent far away", encode(head{}, &dispatch{parts: 1, tokens: 1, extents: []extent{{0, MaxPages, 1}}}), "physical 1048576"},
		{"boolean", append(encode(head{}, &cancelAck{})[:headBytes+16], 2), "exact is 2, want 0 or 1"},
	} {
		if _, _, err := decode(c.b); !errors.Is(err, ErrProtocol) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want ErrProtocol with %q", c.name, err, c.want)
		}
	}
}

// TestDispatchPartFitsAMessage has the longest fields everywhere.
func TestDispatchPartFitsAMessage(t *testing.T) {
	m := &dispatch{id: strings.Repeat("x", MaxRequestID), tokens: 1, parts: 1, extents: make([]extent, maxExtents)}
	if n := len(encode(head{}, m)); n > maxMessage {
		t.Errorf("%d bytes, want at most %d", n, maxMessage)
	}
}

func TestExtentsGiveThePagesBack(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		pages := make([]uint32, 1+r.IntN(50))
		for i := range pages {
			pages[i] = uint32(r.IntN(5000))
			if i > 0 && r.IntN(2) == 0 {
				pages[i] = pages[i-1] + 1
			}
		}
		l := &serveLink{views: []remoteView{{pages: 1 << 19}, {pages: 6000}}}
		got, err := l.place([][]extent{extentsOf(pages)}, len(pages))
		if err != nil || !reflect.DeepEqual(got, pages) {
			t.Fatalf("%v: got %v, %v", pages, got, err)
		}
	}
}

func TestPlaceRefusesWhatDoesNotCover(t *testing.T) {
	l := &serveLink{views: []remoteView{{pages: 100}, {pages: 10}}}
	for _, c := range []struct {
		name    string
		extents []extent
		want    string
	}{
		{"a page is missing", []extent{{0, 0, 2}}, "page 2 of 3 is not listed"},
		{"a page is there twice", []extent{{0, 0, 2}, {1, 5, 2}}, "page 1 is listed twice"},
		{"a page too many", []extent{{0, 0, 4}}, "the prompt has 3 pages"},
		{"beyond the smaller view", []extent{{0, 8, 3}}, "a view 10"},
		{"far beyond", []extent{{MaxPages - 1, MaxPages - 1, MaxPages}}, "the prompt has 3 pages"},
	} {
		if _, err := l.place([][]extent{c.extents}, 3); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, m := range samples() {
		f.Add(encode(head{1, 4, 2, 3}, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		h, m, err := decode(b)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("%v is no ErrProtocol", err)
			}
			return
		}
		// What is accepted has one encoding.
		if again := encode(h, m); string(again) != string(b) {
			t.Fatalf("%v: %x is encoded as %x", m.kind(), b, again)
		}
	})
}
