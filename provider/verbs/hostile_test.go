//go:build cgo

package verbs_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/verbs"
)

// A peer that breaks the protocol costs itself the connection, and nobody else anything.

// wantViolation checks that domain 1 has ended the connection, and serves another one.
func (p *pair) wantViolation(other [2]provider.Peer) {
	p.Helper()
	p.until("the victim ends the connection", func() bool { return p.count(1, provider.KindPeerDown, p.peers[1]) == 1 })
	if c := p.last(1, provider.KindPeerDown, p.peers[1]); c.Status != provider.StatusProtocol {
		p.Errorf("the connection ended with %v, want protocol", c.Status)
	}
	if n := p.stats(1).Violations; n != 1 {
		p.Errorf("%d violations are counted, want 1", n)
	}
	before := p.count(1, provider.KindImm, other[1])
	p.post(0, provider.WR{Token: 1 << 40, Op: provider.OpWriteImm, Peer: other[0], Imm: 1})
	p.until("another connection works", func() bool { return p.count(1, provider.KindImm, other[1]) > before })
}

func TestBadRecordEndsTheConnection(t *testing.T) {
	u32 := binary.BigEndian.PutUint32
	for name, change := range map[string]func(b *[64]byte){
		"no kind":                 func(b *[64]byte) { b[0] = 0 },
		"unknown kind":            func(b *[64]byte) { b[0] = 99 },
		"a second hello":          func(b *[64]byte) { b[0] = byte(verbs.RecHello) },
		"grant of a far slot":     func(b *[64]byte) { b[0] = byte(verbs.RecGrant); u32(b[16:], 1<<19); u32(b[20:], 1) },
		"grant without a serial":  func(b *[64]byte) { b[0] = byte(verbs.RecGrant) },
		"grant that wraps":        func(b *[64]byte) { b[0] = byte(verbs.RecGrant); u32(b[20:], 1); u32(b[32:], 1<<31); u32(b[40:], 1<<31) },
		"end of an unknown grant": func(b *[64]byte) { b[0] = byte(verbs.RecEnd); u32(b[16:], 7) },
		"renewal of round 0":      func(b *[64]byte) { b[0] = byte(verbs.RecRenew) },
		"renewal of round 2":      func(b *[64]byte) { b[0] = byte(verbs.RecRenew); u32(b[16:], 2) },
		"renewed unasked":         func(b *[64]byte) { b[0] = byte(verbs.RecRenewed) },
		"credit for immediates":   func(b *[64]byte) { u32(b[4:], 1) },
		"credit for notes":        func(b *[64]byte) { u32(b[8:], 1000) },
		"credit taken back":       func(b *[64]byte) { u32(b[8:], 1<<32-1) },
		"messages never sent":     func(b *[64]byte) { u32(b[12:], 1) },
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, verbs.Options{})
			p.join()
			other := p.another()
			verbs.Forge(p.doms[0], p.peers[0], change)
			p.wantViolation(other)
		})
	}
}

func TestBadNotificationEndsTheConnection(t *testing.T) {
	for name, n := range map[string][2]uint32{
		"announces nothing": {0, 0}, "unknown": {77, 64}, "short record": {verbs.NoteRecord, 63}, "long record": {verbs.NoteRecord, 65},
		"long message": {verbs.NoteMessage, provider.MinMaxSend + 1},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, verbs.Options{})
			p.join()
			other := p.another()
			verbs.ForgeNote(p.doms[0], p.peers[0], n[0], n[1])
			p.wantViolation(other)
		})
	}
}

// TestWindowsAreEnforced: who uses more receives than it was given takes them from others.
func TestWindowsAreEnforced(t *testing.T) {
	t.Run("immediates", func(t *testing.T) {
		// So little above the window that any credit in between would hide it.
		const total = verbs.MostImms + 40
		p := newPair(t, verbs.Options{})
		p.join()
		other := p.another()
		for sent, end := 0, time.Now().Add(hangGuard); p.count(0, provider.KindWrite, p.peers[0]) < total; p.poll(0) {
			verbs.ForgeCredit(p.doms[0], p.peers[0])
			if sent < total {
				n, err := p.doms[0].Post([]provider.WR{{Token: uint64(sent), Op: provider.OpWriteImm, Peer: p.peers[0]}})
				if err != nil {
					t.Fatal(err)
				}
				sent += n
			}
			if time.Now().After(end) {
				t.Fatal("the immediates are not sent")
			}
		}
		// The victim has something to say before it has counted them all.
		_, k := p.memory(1, 4096, provider.AccessRemoteWrite)
		if _, err := p.doms[1].Grant(k, p.peers[1], 0, 64); !errors.Is(err, provider.ErrBusy) {
			t.Fatal(err)
		}
		p.wantViolation(other)
		if n := p.count(1, provider.KindImm, p.peers[1]); n > verbs.MostImms {
			t.Errorf("%d immediates of a peer that was granted %d were delivered", n, verbs.MostImms)
		}
	})
	t.Run("notifications", func(t *testing.T) {
		p := newPair(t, verbs.Options{})
		p.join()
		other := p.another()
		for range 20 {
			verbs.ForgeCredit(p.doms[0], p.peers[0])
			verbs.ForgeNote(p.doms[0], p.peers[0], verbs.NoteMessage, 0)
			for p.poll(0); !verbs.Sent(p.doms[0], p.peers[0]); {
				p.poll(0)
			}
		}
		p.wantViolation(other)
	})
}

// TestWaitingMessagesOfALiarAreBounded: messages without bytes beyond the mail that they have to take.
func TestWaitingMessagesOfALiarAreBounded(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	other := p.another()
	for range 3000 {
		if p.count(1, provider.KindPeerDown, p.peers[1]) > 0 || p.count(0, provider.KindPeerDown, p.peers[0]) > 0 || verbs.Gone(p.doms[0], p.peers[0]) {
			break
		}
		verbs.ForgeNote(p.doms[0], p.peers[0], verbs.NoteMessage, 0)
		for end := time.Now().Add(hangGuard); !verbs.Room(p.doms[0], p.peers[0]); { // without sleep: it is thousands of times
			p.poll(0)
			p.poll(1)
			if time.Now().After(end) {
				t.Fatal("the peer has no room")
			}
		}
	}
	p.wantViolation(other)
}

// TestReceivesAreNotTakenOverOurWrites: a peer that sends over the queue pair of our writes takes receives from others. Over the fake
// card a write stands for what a card lets through there, a send.
func TestReceivesAreNotTakenOverOurWrites(t *testing.T) {
	for _, renewed := range []bool{false, true} {
		p := newPair(t, verbs.Options{})
		p.join()
		other := p.another()
		if renewed {
			p.refused(1)
		}
		if err := verbs.SendOverArrivals(p.doms[0], p.peers[0]); err != nil {
			t.Fatal(err)
		}
		p.wantViolation(other)
	}
}
