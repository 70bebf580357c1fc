package tcp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// bench is a domain without sockets and one peer that is up, for tests of what a stream does with bytes.
type bench struct {
	d      *domain
	p      *peer
	mem    []byte // registered; the peer may write to [window, window+windowSize)
	out    sink
	guard  []byte // what mem must look like outside of the window
	posted []byte // memory of the receives
}

const (
	window     = 1000
	windowSize = 3000
	// The first grant of a domain.
	benchKey = grantBit | 1<<32
)

func newBench(tb testing.TB, room, receives int) *bench {
	b := &bench{d: &domain{activeSize: 1, peers: make([]*peer, 1), vecs: make([][]byte, 0, 3)}, mem: make([]byte, 5000)}
	b.d.batch.init()
	b.p = &peer{handle: 1 << provider.PeerIndexBits, phase: up, told: true, stream: stream{fd: -1}}
	b.p.stream.rx.buf = make([]byte, bufferSize)
	b.d.peers[0] = b.p
	for i := range b.mem {
		b.mem[i] = byte(i * 7)
	}
	b.guard = bytes.Clone(b.mem)
	k, err := b.d.Register(provider.Memory{Bytes: b.mem}, provider.AccessRemoteWrite)
	if err != nil {
		tb.Fatal(err)
	}
	g, err := b.d.Grant(k, b.p.handle, window, windowSize)
	if err != nil || g.ID != benchKey || g.Base != 0 {
		tb.Fatal(g, err)
	}
	b.posted = make([]byte, 100*receives)
	for i := range receives {
		b.d.recvs.push(posted{buf: b.posted[i*100:][:100], token: uint64(i)}, recvDepth)
	}
	// Enough of our own writes and messages with the peer for it to ack.
	for range 20 {
		b.p.stream.writes.push()
		b.p.stream.msgs.push().data = make([]byte, 3)
	}
	b.p.stream.writes.sent, b.p.stream.msgs.sent, b.p.stream.msgBytes = 20, 20, 60
	b.out.cs = make([]provider.Completion, room)
	return b
}

// feed receives data in pieces, of which the next says how long each is at most, as receive does.
func (b *bench) feed(data []byte, next func() int) {
	for len(data) > 0 && b.p.phase == up {
		want := b.d.space(b.p)
		n := min(want, len(data), next())
		left := n
		for _, v := range b.d.vecs {
			k := copy(v, data[:min(left, len(v))])
			data = data[k:]
			left -= k
		}
		if left != 0 {
			panic("space promised more than it gave")
		}
		b.p.stream.land(n)
		b.d.parse(b.p, &b.out)
	}
}

// result is everything that the peer's bytes have caused.
func (b *bench) result() string {
	s := &b.p.stream
	var refused []uint32
	for i := range s.refusals.len() {
		refused = append(refused, *s.refusals.at(i))
	}
	var settled []provider.Status
	for i := range s.writes.settled {
		settled = append(settled, s.writes.at(i).status)
	}
	return fmt.Sprintf("phase %d status %v detail %d placed %d taken %d refused %v settled %v taken by peer %d, early %d/%d\n%v\n%x\n%x",
		b.p.phase, b.p.status, b.p.detail, s.placed, s.taken, refused, settled, s.msgs.settled, s.early.lens.len(), s.early.used,
		b.out.cs[:b.out.n], b.mem, b.posted)
}

func (b *bench) check(tb testing.TB) {
	tb.Helper()
	if !bytes.Equal(b.mem[:window], b.guard[:window]) || !bytes.Equal(b.mem[window+windowSize:], b.guard[window+windowSize:]) {
		tb.Fatal("a byte outside of what was granted changed")
	}
}

// script is a run of frames of all kinds, good ones and refused ones.
func script() []byte {
	var b []byte
	frame := func(h header, payload int) {
		h.len = uint32(payload)
		b = append(b, encode(h)...)
		for i := range payload {
			b = append(b, byte(len(b)+i*31))
		}
	}
	frame(header{kind: frameWriteImm, imm: 5, key: benchKey, addr: 0}, 8)
	frame(header{kind: frameWrite, key: benchKey, addr: 100, ack: 3}, 700)
	frame(header{kind: frameMessage, ack: 3}, 50)
	frame(header{kind: frameWriteImm, imm: 6, key: benchKey, addr: windowSize - 4, ack: 3}, 5) // one byte too far
	frame(header{kind: frameNack, ack: 5}, 0)
	frame(header{kind: frameAck, ack: 7, imm: 2}, 0)
	frame(header{kind: frameWrite, ack: 7}, 0)
	frame(header{kind: frameWriteImm, ack: 7, imm: 1 << 31, flags: flagAsk}, 0)
	frame(header{kind: frameWrite, key: 1, addr: 8, ack: 8}, 200) // no such key
	frame(header{kind: frameMessage, ack: 8}, 130)                // longer than the receive
	frame(header{kind: frameMessage, ack: 8}, 0)
	frame(header{kind: frameMessage, ack: 8}, 99) // no receive is left
	frame(header{kind: frameWriteImm, imm: 7, key: benchKey, addr: 2000, ack: 8, flags: flagAsk}, 1000)
	return b
}

func TestStreamIsTheSameHoweverItIsCut(t *testing.T) {
	data := script()
	whole := newBench(t, 64, 3)
	whole.feed(data, func() int { return len(data) })
	whole.check(t)
	want := whole.result()
	if whole.p.phase != up || whole.p.stream.placed != 7 || whole.p.stream.taken != 3 || whole.p.stream.refusals.len() != 2 ||
		whole.p.stream.early.lens.len() != 1 || whole.out.n != 7 {
		t.Fatalf("the script was not executed as meant: %.300s", want)
	}
	for cut := 1; cut < len(data); cut++ {
		b := newBench(t, 64, 3)
		first := true
		b.feed(data, func() int {
			if first {
				first = false
				return cut
			}
			return len(data)
		})
		if got := b.result(); got != want {
			t.Fatalf("cut after %d bytes:\n%.400s\nwant\n%.400s", cut, got, want)
		}
	}
	for size := 1; size < 100; size++ {
		b := newBench(t, 64, 3)
		b.feed(data, func() int { return size })
		if got := b.result(); got != want {
			t.Fatalf("in pieces of %d bytes:\n%.400s\nwant\n%.400s", size, got, want)
		}
	}
}

// With room for one completion at a time a stream stops and goes on, and nothing is lost or doubled.
func TestStreamStopsWhenCompletionsAreFull(t *testing.T) {
	data := script()
	whole := newBench(t, 64, 3)
	whole.feed(data, func() int { return len(data) })
	b := newBench(t, 1, 3)
	var got []provider.Completion
	b.p.stream.rx.tail = copy(b.p.stream.rx.buf, data)
	for !b.d.parse(b.p, &b.out) || b.out.n > 0 || b.p.listed && b.d.recvs.len() > 0 {
		got = append(got, b.out.cs[:b.out.n]...)
		b.out.n = 0
		b.d.handOver(b.p, &b.out)
	}
	kinds := func(cs []provider.Completion) (n [provider.KindRefused + 1]int) {
		for _, c := range cs {
			n[c.Kind]++
		}
		return n
	}
	if kinds(got) != kinds(whole.out.cs[:whole.out.n]) || b.p.stream.placed != whole.p.stream.placed || !bytes.Equal(b.mem, whole.mem) {
		t.Fatalf("got %v, want %v", got, whole.out.cs[:whole.out.n])
	}
}

func TestViolationsEndTheConnection(t *testing.T) {
	many := func(n int, h header) (hs []header) {
		for range n {
			hs = append(hs, h)
		}
		return hs
	}
	for _, tc := range []struct {
		name string
		hs   []header
		want violation
	}{
		{"unknown kind", []header{{kind: 77}}, badKind},
		{"huge write", []header{{kind: frameWrite, len: 1<<32 - 1, key: benchKey}}, badLength},
		{"ack of what was not sent", []header{{kind: frameAck, ack: 21}}, badAck},
		{"ack that goes back", []header{{kind: frameAck, ack: 5}, {kind: frameAck, ack: 4}}, badAck},
		{"far ack", []header{{kind: frameWrite, ack: 1 << 31}}, badAck},
		{"nack of what was not sent", []header{{kind: frameNack, ack: 21}}, badAck},
		{"nack of what was acked", []header{{kind: frameAck, ack: 5}, {kind: frameNack, ack: 5}}, badAck},
		{"takes messages that were not sent", []header{{kind: frameAck, imm: 21}}, badTaken},
		{"takes back messages", []header{{kind: frameAck, imm: 5}, {kind: frameAck, imm: 4}}, badTaken},
		{"as many writes as the window", many(peerDepth, header{kind: frameWrite}), badNothing},
		{"more writes than the window", many(peerDepth+1, header{kind: frameWrite}), badWindow},
		{"more refused writes than the window", many(peerDepth+1, header{kind: frameWrite, key: 99}), badWindow},
		{"as many early messages as there is room", many(messageCount, header{kind: frameMessage}), badNothing},
		{"more early messages than there is room", many(messageCount+1, header{kind: frameMessage}), badCredit},
	} {
		b := newBench(t, 2000, 0)
		b.feed(encode(tc.hs...), func() int { return 1 << 20 })
		if got := violation(b.p.detail); got != tc.want || (tc.want != badNothing) != (b.p.phase == down) {
			t.Errorf("%s: violation %d, want %d", tc.name, got, tc.want)
		}
		if tc.want != badNothing && b.p.status != provider.StatusProtocol {
			t.Errorf("%s: status %v, want protocol", tc.name, b.p.status)
		}
		b.check(t)
	}
	// Two of the largest messages fit, a byte more does not.
	b := newBench(t, 1, 0)
	big := append(encode(header{kind: frameMessage, len: maxSend}), make([]byte, maxSend)...)
	b.feed(append(append(big, big...), encode(header{kind: frameMessage, len: 1})...), func() int { return 9999 })
	if b.p.stream.early.lens.len() != 2 || violation(b.p.detail) != badCredit {
		t.Errorf("after two of the largest messages and one byte: %d messages, violation %d", b.p.stream.early.lens.len(), b.p.detail)
	}
}

// FuzzStream gives a stream any bytes, cut anywhere: nothing outside of what was granted changes, nothing panics, and where it
// is cut makes no difference.
func FuzzStream(f *testing.F) {
	f.Add(script(), []byte{1})
	f.Add(script(), []byte{32, 1, 200})
	f.Add(encode(header{kind: frameWrite, len: 900, key: benchKey, addr: 5}), []byte{33})
	f.Fuzz(func(t *testing.T, data, cuts []byte) {
		whole, pieces := newBench(t, len(data), 3), newBench(t, len(data), 3)
		whole.feed(data, func() int { return len(data) })
		i := 0
		pieces.feed(data, func() int {
			if len(cuts) == 0 {
				return len(data)
			}
			i++
			return max(1, int(cuts[i%len(cuts)]))
		})
		whole.check(t)
		pieces.check(t)
		if a, b := whole.result(), pieces.result(); a != b {
			t.Fatalf("whole:\n%.600s\nin pieces:\n%.600s", a, b)
		}
	})
}

// take gathers and "sends" at most n bytes a call until there is nothing left, and returns the bytes.
func take(s *stream, b *batch, n func() int) (all []byte) {
	for {
		s.gather(b, false)
		if b.bytes == 0 {
			return all
		}
		whole := slices.Concat(b.vecs...)
		if len(whole) != b.bytes {
			panic("the batch does not know its length")
		}
		k := min(n(), len(whole))
		all = append(all, whole[:k]...)
		s.sent(b, k)
	}
}

// sender is a stream with work of every kind.
func sender() *stream {
	s := &stream{fd: -1}
	for i := range 40 {
		n := i * i % 97
		if i%9 == 0 {
			n = copyBelow + 1 + i
		}
		data := bytes.Repeat([]byte{byte(i)}, n)
		*s.writes.push() = request{data: data, key: uint64(i), addr: uint64(i) << 20, imm: uint32(i), op: provider.OpWrite + provider.Op(i%2)}
		if i%5 == 0 {
			*s.msgs.push() = request{data: data, op: provider.OpSend}
		}
	}
	for seq := uint32(1); seq <= 100; seq++ {
		if seq%3 == 0 || seq > 90 {
			s.refusals.push(seq, peerDepth)
		}
	}
	s.placed, s.taken = 100, 4
	return s
}

func TestSentBytesAreTheSameHoweverTheSocketTakesThem(t *testing.T) {
	var b batch
	b.init()
	want := take(sender(), &b, func() int { return 1 << 30 })
	checkFrames(t, want)
	for size := 1; size <= 200; size++ {
		s := sender()
		if got := take(s, &b, func() int { return size }); !bytes.Equal(got, want) {
			at := 0
			for at < len(got) && at < len(want) && got[at] == want[at] {
				at++
			}
			t.Fatalf("at %d bytes a call the bytes differ from %d on", size, at)
		}
		if s.writes.sent != s.writes.tail || s.msgs.sent != s.msgs.tail || s.refusals.len() != 0 || s.owing() || s.cut.off != 0 {
			t.Fatalf("at %d bytes a call something is left", size)
		}
	}
	for cut := range want {
		first := true
		got := take(sender(), &b, func() int {
			if first {
				first = false
				return cut
			}
			return 1 << 30
		})
		if !bytes.Equal(got, want) {
			t.Fatalf("cut after %d bytes the bytes differ", cut)
		}
	}
}

// What changes while a frame is cut must not change the frame.
func TestCutFrameKeepsItsHeader(t *testing.T) {
	var b batch
	b.init()
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		s := sender()
		more := 0
		got := take(s, &b, func() int {
			if more < 300 {
				more++
				s.placed++ // the peer goes on writing meanwhile
				if more%10 == 0 {
					s.refusals.push(s.placed, peerDepth)
				}
			}
			return 1 + rng.IntN(90)
		})
		checkFrames(t, got)
	}
}

// checkFrames parses sent bytes: frames are whole, acks only grow, and every refusal is named before it is acked.
func checkFrames(t *testing.T, b []byte) {
	t.Helper()
	var acked uint32
	writes, msgs := 0, 0
	for len(b) > 0 {
		h, bad := parseHeader(b)
		if bad != badNothing || int(h.len) > len(b)-headerSize {
			t.Fatalf("frame %+v: violation %d", h, bad)
		}
		if h.ack < acked || h.kind == frameNack && h.ack == acked {
			t.Fatalf("frame %+v after an ack of %d", h, acked)
		}
		for seq := acked + 1; seq <= h.ack; seq++ {
			refused := seq <= 100 && (seq%3 == 0 || seq > 90) || seq > 100 && (seq-100)%10 == 0
			if named := h.kind == frameNack && seq == h.ack; refused != named {
				t.Fatalf("frame %+v after an ack of %d: write %d is refused: %v, named: %v", h, acked, seq, refused, named)
			}
		}
		acked = h.ack
		payload := b[headerSize:][:h.len]
		b = b[headerSize+int(h.len):]
		switch h.kind {
		case frameWrite, frameWriteImm:
			if h.key != uint64(writes) || h.addr != uint64(writes)<<20 || bytes.Count(payload, []byte{byte(writes)}) != len(payload) {
				t.Fatalf("write %d is sent as %+v", writes, h)
			}
			writes++
		case frameMessage:
			msgs++
		}
	}
	if writes != 40 || msgs != 8 || acked < 100 {
		t.Fatalf("%d writes, %d messages, %d acked", writes, msgs, acked)
	}
}

func TestMessagesWaitForRoomAtThePeer(t *testing.T) {
	var b batch
	b.init()
	s := &stream{fd: -1}
	for range 5 {
		s.msgs.push().data = make([]byte, maxSend)
	}
	*s.writes.push() = request{data: make([]byte, 8), op: provider.OpWrite}
	take(s, &b, func() int { return 70_000 })
	if s.msgs.sent != 2 || s.writes.sent != 1 || s.sendable() {
		t.Fatalf("%d messages and %d writes sent, want 2 and 1", s.msgs.sent, s.writes.sent)
	}
	if !s.took(1) || !s.sendable() {
		t.Fatal("a message that was taken makes no room")
	}
	take(s, &b, func() int { return 70_000 })
	if s.msgs.sent != 3 {
		t.Fatalf("%d messages sent, want 3", s.msgs.sent)
	}
}

// Counts are compared modulo 2^32.
func TestCountsWrap(t *testing.T) {
	q := sendq{ring: make([]request, peerDepth)}
	start := ^uint32(0) - 3
	q.done, q.settled, q.sent, q.tail = start, start, start, start
	for i := range 10 {
		q.push().token = uint64(i)
	}
	q.sent = q.tail
	for _, tc := range []struct {
		count uint32
		ok    bool
	}{{start + 11, false}, {start - 1, false}, {start + 6, true}, {start + 5, false}, {start + 10, true}} {
		if got := q.settle(tc.count); got != tc.ok {
			t.Errorf("settle at %d from the start: %v", int32(tc.count-start), got)
		}
	}
	out := sink{cs: make([]provider.Completion, 4)}
	for i := 0; q.done != q.tail; out.n = 0 {
		q.deliver(1, provider.KindWrite, q.settled, &out)
		for _, c := range out.cs[:out.n] {
			if c.Token != uint64(i) || c.Status != provider.StatusOK {
				t.Fatalf("completion %d is %+v", i, c)
			}
			i++
		}
	}
}

// early against a model: a queue of whole messages.
func TestEarlyRing(t *testing.T) {
	var e early
	var model [][]byte
	rng := rand.New(rand.NewPCG(3, 4))
	used := 0
	for i := range 20_000 {
		n := rng.IntN(2000)
		if rng.IntN(50) == 0 {
			n = maxSend - rng.IntN(3)
		}
		if fits := used+n <= messageBytes && len(model) < messageCount; e.reserve(n) != fits {
			t.Fatalf("step %d: %d bytes with %d used and %d messages: room is %v", i, n, used, len(model), !fits)
		} else if fits {
			msg := make([]byte, n)
			for j := range msg {
				msg[j] = byte(rng.Uint32())
			}
			for off := 0; off < n; { // it arrives in pieces
				k := min(n-off, 1+rng.IntN(n))
				a, b := e.space(off, k)
				copy(b, msg[off : off+k][copy(a, msg[off:off+k]):])
				off += k
			}
			e.commit()
			model = append(model, msg)
			used += n
		}
		for len(model) > 0 && rng.IntN(3) > 0 {
			dst := make([]byte, rng.IntN(maxSend+1))
			n := e.pop(dst)
			if n != len(model[0]) || !bytes.Equal(dst[:min(n, len(dst))], model[0][:min(n, len(dst))]) {
				t.Fatalf("step %d: a message came out changed", i)
			}
			used -= n
			model = model[1:]
		}
	}
}

func TestGrantSlotsAreReused(t *testing.T) {
	b := newBench(t, 1, 0)
	seen := map[uint64]bool{benchKey: true}
	for i := range 1000 {
		k, err := b.d.Register(provider.Memory{Bytes: make([]byte, 16)}, provider.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		g, err := b.d.Grant(k, b.p.handle, 0, 16)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := b.d.Grant(k, b.p.handle, 0, 16); err != nil || again != g {
			t.Fatal("granting a range again gave another key", err)
		}
		if seen[g.ID] || b.d.target(b.p, g.ID, 0, 16) == nil {
			t.Fatalf("grant %d: key %#x was used before, or is not good", i, g.ID)
		}
		seen[g.ID] = true
		if err := b.d.Deregister(k); err != nil {
			t.Fatal(err)
		}
		for id := range seen {
			if id != benchKey && b.d.target(b.p, id, 0, 1) != nil {
				t.Fatalf("key %#x outlives its registration", id)
			}
		}
	}
	if n := len(b.p.grants.table); n > 32 {
		t.Fatalf("%d slots for two grants at a time", n)
	}
	if b.d.target(b.p, benchKey, 0, windowSize) == nil {
		t.Fatal("a grant that nobody ended has ended")
	}
	var local [8]byte
	binary.LittleEndian.PutUint64(local[:], 1<<32) // the key of the first registration itself
	if b.d.target(b.p, binary.LittleEndian.Uint64(local[:]), 0, 1) != nil {
		t.Fatal("a local key passes for a granted one")
	}
}
