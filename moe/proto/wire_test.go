package proto

import (
	"bytes"
	"errors"
	"testing"
)

func testLayout(t testing.TB) *Layout {
	t.Helper()
	l, err := NewLayout(Config{MaxRanks: 3, MaxTokens: 4, Hidden: 8, TopK: 2, Experts: 7, InBytes: 1, WireBytes: 2, FirstChunk: 1, ChunkRecords: 2, PoolRecords: 4})
	if err != nil {
		t.Fatal(err)
	}
	return &l
}

func someHeader(l *Layout) []byte {
	b := make([]byte, l.HeadBytes)
	l.PutHeader(b, &Header{View: 3, Step: 1 << 40, Source: 2, Flags: FlagReuse, Tokens: 4, Records: 6, Base: 2, RouteHash: 9}, []uint32{1, 2, 3})
	return b
}

func someReady() *Ready {
	return &Ready{
		View: 7, Round: 2, Source: 1, From: ID{1}, To: ID{2}, Config: 5, Has: 6, Unfenced: true,
		Lanes: [MaxLanes]LaneState{{4, 3}, {1 << 50, 1 << 49}}, Descriptors: []byte("abc"),
	}
}

// TestRecordsGoThrough: what is put is what is parsed.
func TestRecordsGoThrough(t *testing.T) {
	l := testLayout(t)
	b := someHeader(l)
	h, err := l.ParseHeader(b)
	if err != nil || h != (Header{View: 3, Step: 1 << 40, Source: 2, Flags: FlagReuse, Tokens: 4, Records: 6, Base: 2, RouteHash: 9}) || Count(b, 2) != 3 {
		t.Errorf("header %+v, %v", h, err)
	}
	g, b := Grant{Step: 1<<32 + 5, Seq: 1, Chunk: 1}, make([]byte, GrantBytes)
	g.Put(b)
	if got, err := ParseGrant(b, g.Step, 1, 2); err != nil || got != g {
		t.Errorf("grant %+v, %v", got, err)
	}
	c, b := Cancel{Step: 1 << 60, View: 4, Code: CodeLimit, Blamed: 2}, make([]byte, CancelBytes)
	c.Put(b)
	if got, err := l.ParseCancel(b); err != nil || got != c {
		t.Errorf("cancel %+v, %v", got, err)
	}
	r := someReady()
	got, err := l.ParseReady(r.Append(nil, l.Lanes))
	if err != nil || !bytes.Equal(got.Descriptors, r.Descriptors) {
		t.Errorf("ready %+v, %v", got, err)
	}
	got.Descriptors = nil
	if want := *r; got.View != want.View || got.Lanes != want.Lanes || got.From != want.From || got.To != want.To || !got.Unfenced || got.Config != 5 || got.Has != 6 || got.Source != 1 {
		t.Errorf("ready %+v, want %+v", got, want)
	}
}

// TestEveryBitCounts: no record with a bit turned over is taken, and none that is too short.
func TestEveryBitCounts(t *testing.T) {
	l := testLayout(t)
	grant, cancel := make([]byte, GrantBytes), make([]byte, CancelBytes)
	(&Grant{5, 1, 1}).Put(grant)
	(&Cancel{Step: 6, View: 4, Code: CodeLimit, Blamed: 2}).Put(cancel)
	for name, x := range map[string]struct {
		b     []byte
		parse func([]byte) error
	}{
		"header": {someHeader(l), func(b []byte) error { _, err := l.ParseHeader(b); return err }},
		"grant":  {grant, func(b []byte) error { _, err := ParseGrant(b, 5, 1, 2); return err }},
		"cancel": {cancel, func(b []byte) error { _, err := l.ParseCancel(b); return err }},
		"ready":  {someReady().Append(nil, l.Lanes), func(b []byte) error { _, err := l.ParseReady(b); return err }},
	} {
		if err := x.parse(x.b); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i := range 8 * len(x.b) {
			b := bytes.Clone(x.b)
			b[i/8] ^= 1 << (i % 8)
			if err := x.parse(b); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s with bit %d turned over: %v", name, i, err)
			}
		}
		for n := range x.b {
			if err := x.parse(x.b[:n]); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%s of %d bytes: %v", name, n, err)
			}
		}
	}
}

// TestHeaderFields: a header whose check is right, and a field is not.
func TestHeaderFields(t *testing.T) {
	l := testLayout(t)
	good := Header{View: 3, Step: 4, Source: 2, Tokens: 4, Records: 6, Base: 2}
	counts := []uint32{1, 2, 3}
	for name, f := range map[string]func(h *Header){
		"source": func(h *Header) { h.Source = 3 }, "flags": func(h *Header) { h.Flags = FlagMeta }, "tokens": func(h *Header) { h.Tokens = 5 },
		"records": func(h *Header) { h.Records = 9 }, "slots": func(h *Header) { h.Base = 3 }, "sum": func(h *Header) { h.Records = 5 },
	} {
		h, b := good, make([]byte, l.HeadBytes)
		f(&h)
		if l.PutHeader(b, &h, counts); errorOf(l, b) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	other, b := *l, make([]byte, l.HeadBytes)
	other.Dispatch += 16
	if other.PutHeader(b, &good, counts); errorOf(l, b) == nil {
		t.Error("another record size: taken")
	}
	if l.PutHeader(b, &good, []uint32{1, 2, 3, 1}); errorOf(l, b) == nil { // beyond the experts of a rank
		t.Error("padding: taken")
	}
}

func errorOf(l *Layout, b []byte) error { _, err := l.ParseHeader(b); return err }

func FuzzHeader(f *testing.F) {
	l := testLayout(f)
	f.Add(someHeader(l))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := l.ParseHeader(b)
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			return
		}
		again, counts := make([]byte, l.HeadBytes), make([]uint32, l.Local)
		for i := range counts {
			counts[i] = Count(b, i)
		}
		if l.PutHeader(again, &h, counts); !bytes.Equal(again, b[:l.HeadBytes]) {
			t.Fatalf("%x is not the same as %x", again, b)
		}
	})
}

func FuzzGrant(f *testing.F) {
	b := make([]byte, GrantBytes)
	(&Grant{5, 1, 1}).Put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if g, err := ParseGrant(b, 5, 1, 2); err == nil && (g.Seq != 1 || g.Chunk > 1) {
			t.Fatalf("%+v", g)
		}
	})
}

func FuzzCancel(f *testing.F) {
	l, b := testLayout(f), make([]byte, CancelBytes)
	(&Cancel{Step: 6, View: 4, Code: CodeLimit, Blamed: 2}).Put(b)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := l.ParseCancel(b)
		if err != nil {
			return
		}
		again := make([]byte, CancelBytes)
		if c.Put(again); !bytes.Equal(again, b[:CancelBytes]) {
			t.Fatalf("%x is not the same as %x", again, b)
		}
	})
}

func FuzzReady(f *testing.F) {
	l := testLayout(f)
	f.Add(someReady().Append(nil, l.Lanes))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := l.ParseReady(b)
		if err == nil && !bytes.Equal(r.Append(nil, l.Lanes), b) {
			t.Fatalf("%+v is not the same as %x", r, b)
		}
	})
}
