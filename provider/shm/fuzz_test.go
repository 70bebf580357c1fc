package shm

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/hawser-project/hawser/provider"
)

// FuzzPages lets a peer write anything into the pages that two sides share, while both work: it costs that peer its connection at
// most, and changes nothing for another one.
func FuzzPages(f *testing.F) {
	word := func(at uint32, v uint64) []byte {
		return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint32(nil, at), v)
	}
	f.Add(word(0, 1<<63))
	f.Add(append(word(256, 1), word(384, 2)...))
	f.Add(append(word(4096, 1<<32|7), word(4104, 1<<33)...))
	f.Add(word(4096+2*ringEntries*16, frameWord))
	f.Fuzz(func(t *testing.T, data []byte) {
		h := newHostile(t)
		span, k := h.victim.memory(4096)
		if _, err := h.victim.d.Grant(k, h.evilPeer, 0, 4096); err != nil {
			t.Fatal(err)
		}
		for n := 0; len(data) >= 12 && n < 16; n++ {
			if h.p() == nil || h.p().pairMem == nil {
				break // the breach has cost the connection, and evil has unmapped its end
			}
			page := h.p().pairMem
			at := int(binary.LittleEndian.Uint32(data)) % len(page)
			binary.NativeEndian.PutUint64(page[min(at&^7, len(page)-8):], binary.LittleEndian.Uint64(data[4:]))
			data = data[12:]
			_, _ = h.victim.d.Post([]provider.WR{
				{Op: provider.OpRecv, LocalKey: k.ID, Len: 4096},
				{Op: provider.OpWriteImm, Peer: h.evilPeer},
				{Op: provider.OpSend, Peer: h.evilPeer, LocalKey: k.ID, Len: 100},
			})
			_, _ = h.evil.d.Post([]provider.WR{{Op: provider.OpWriteImm, Peer: h.evil.peer, Len: 8, RemoteKey: k.ID}})
			h.victim.poll()
			h.evil.poll()
		}
		h.wantGoodUnhurt(t)
		_ = span
		for _, s := range []*side{h.victim, h.evil, h.good} {
			if err := s.d.Close(); err != nil && !errors.Is(err, provider.ErrClosed) {
				t.Fatal(err)
			}
		}
	})
}

// frameWord announces a message of 100 bytes.
const frameWord = 0x4d534721<<32 | 100
