//go:build cgo

package verbs_test

import (
	"testing"
	"time"

	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/verbs"
)

// TestBatchIsOneDoorbell: a batch goes to the card in one crossing, with one doorbell for each queue pair and few completions, which come
// back many to a crossing.
func TestBatchIsOneDoorbell(t *testing.T) {
	const batch = 64
	p := newPair(t, verbs.Options{})
	p.join()
	_, src := p.memory(0, 4096, 0)
	_, dst := p.memory(1, 4096, provider.AccessRemoteWrite)
	key := p.grant(dst, 4096)
	wrs := make([]provider.WR, batch)
	for i := range wrs {
		wrs[i] = p.write(src, key, 100)
	}
	before := p.stats(0)
	p.post(0, wrs...)
	after := p.stats(0)
	if n := after.Writes - before.Writes; n != batch {
		t.Errorf("%d writes reached the card, want %d", n, batch)
	}
	if n := after.Doorbells - before.Doorbells; n != 1 {
		t.Errorf("%d doorbells, want 1", n)
	}
	if n := after.Posts - before.Posts; n != 1 {
		t.Errorf("%d crossings, want 1", n)
	}
	if n := after.Signaled - before.Signaled; n < 1 || n > batch/16 {
		t.Errorf("%d of %d writes asked for a completion", n, batch)
	}
	p.until("all complete", func() bool { return p.count(0, provider.KindWrite, p.peers[0]) == batch })
	p.until("all arrive", func() bool { return p.count(1, provider.KindImm, p.peers[1]) == batch })
}

// TestStoppedReceiverIsNotOverrun: 10,000 immediates to an owner that does not poll, and then does. The fake aborts when one of them finds
// no receive, or a completion queue overruns.
func TestStoppedReceiverIsNotOverrun(t *testing.T) {
	const burst = 10_000
	p := newPair(t, verbs.Options{})
	p.join()
	_, src := p.memory(0, 4096, 0)
	_, dst := p.memory(1, 4096, provider.AccessRemoteWrite)
	key := p.grant(dst, 4096)
	posted := 0
	push := func() {
		for posted < burst {
			if n, err := p.doms[0].Post([]provider.WR{p.write(src, key, 8)}); err != nil {
				t.Fatal(err)
			} else if n == 0 {
				return
			}
			posted++
		}
	}
	// What the receiver has receives for completes, and PeerDepth waits behind it.
	const window = verbs.MostImms
	depth := p.doms[0].Caps().PeerDepth
	outstanding := func() int { return posted - p.count(0, provider.KindWrite, p.peers[0]) }
	for end := time.Now().Add(hangGuard); posted < window+depth || outstanding() > depth; {
		push()
		p.poll(0)
		if time.Now().After(end) {
			t.Fatalf("before the receiver polls: %d posted, %d outstanding, want %d and %d", posted, outstanding(), window+depth, depth)
		}
	}
	for range 1000 {
		push()
		p.poll(0)
	}
	if posted != window+depth {
		t.Fatalf("before the receiver polls: %d posted, want %d", posted, window+depth)
	}
	p.until("all immediates arrive", func() bool { push(); return p.count(1, provider.KindImm, p.peers[1]) == burst })
}

// TestSharesNeverExceedTheDevice: receives and completions are shared out so that all peers together cannot need more than there is, also
// when the device has few.
func TestSharesNeverExceedTheDevice(t *testing.T) {
	t.Setenv("FAKE_MAX_CQE", "64")
	p := pairOn(t, onFake(t, verbs.Options{}), provider.Config{MaxPeers: 100})
	var peers []provider.Peer
	for {
		h, _, err := p.doms[0].Offer()
		if err != nil {
			break
		}
		peers = append(peers, h)
	}
	// 12 receives and 14 completions are the least that a peer needs.
	if len(peers) != 64/14 {
		t.Fatalf("%d peers share 64 completions, want %d", len(peers), 64/14)
	}
	for _, h := range peers {
		if err := p.doms[0].Disconnect(h); err != nil {
			t.Fatal(err)
		}
	}
	p.until("all are gone", func() bool { return len(p.got[0]) == len(peers) })
	p.join()
	other := p.another()
	for i := range 200 { // far more than there are receives
		for j, h := range []provider.Peer{p.peers[0], other[0]} {
			p.post(0, provider.WR{Token: uint64(2*i + j), Op: provider.OpWriteImm, Peer: h})
		}
	}
	p.until("all immediates arrive", func() bool {
		return p.count(1, provider.KindImm, p.peers[1])+p.count(1, provider.KindImm, other[1]) == 400
	})
}

// TestWaitingMessagesAreBounded: messages without bytes that nobody takes do not grow the receiver.
func TestWaitingMessagesAreBounded(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	for i := range p.doms[0].Caps().PeerDepth {
		p.post(0, provider.WR{Token: uint64(i), Op: provider.OpSend, Peer: p.peers[0]})
	}
	for range 2000 {
		p.poll(0)
		p.poll(1)
	}
	if n := p.count(0, provider.KindSend, p.peers[0]); n != 0 {
		t.Fatalf("%d messages ended without a receive", n)
	}
	for i := range p.doms[0].Caps().PeerDepth {
		p.post(1, provider.WR{Token: uint64(i), Op: provider.OpRecv})
	}
	p.until("all are taken", func() bool {
		return p.count(0, provider.KindSend, p.peers[0]) == p.doms[0].Caps().PeerDepth
	})
}

// TestRangeIsCheckedByTheWriter: a write outside of its grant ends here, and the card, which would let it through, does not see it.
func TestRangeIsCheckedByTheWriter(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	_, src := p.memory(0, 4096, 0)
	b, dst := p.memory(1, 4096, provider.AccessRemoteWrite)
	key := p.grant(dst, 100)
	before := p.stats(0)
	for i, r := range [][2]uint64{{100, 1}, {0, 101}, {99, 2}, {1 << 63, 8}} {
		wr := p.write(src, key, int(r[1]))
		wr.RemoteAddr += r[0]
		p.post(0, wr)
		p.until("the write ends", func() bool { return p.count(0, provider.KindWrite, p.peers[0]) == i+1 })
		if c := p.last(0, provider.KindWrite, p.peers[0]); c.Status != provider.StatusAccess {
			t.Errorf("%d bytes at %d of a grant of 100 ended with %v", r[1], r[0], c.Status)
		}
	}
	for i, v := range b {
		if v != 0 {
			t.Fatalf("byte %d changed", i)
		}
	}
	if after := p.stats(0); after.Renewals != before.Renewals {
		t.Error("the card had to refuse")
	}
}

// TestFenceTakesWhatArrived: what ended well at the writer is delivered though the queue pairs are destroyed at once, as for soft-RoCE.
func TestFenceTakesWhatArrived(t *testing.T) {
	const total = 300 // more than one Poll takes
	t.Setenv("FAKE_VENDOR", "16777215")
	p := newPair(t, verbs.Options{})
	p.join()
	for i := range total {
		p.post(0, provider.WR{Token: uint64(i), Op: provider.OpWriteImm, Peer: p.peers[0]})
	}
	for end := time.Now().Add(hangGuard); p.count(0, provider.KindWrite, p.peers[0]) < total; p.poll(0) {
		if time.Now().After(end) {
			t.Fatal("the writes do not complete")
		}
	}
	if err := p.doms[1].Fence(p.peers[1]); err != nil {
		t.Fatal(err)
	}
	p.until("the fence ends", func() bool { return p.count(1, provider.KindFenced, p.peers[1]) == 1 })
	if n := p.count(1, provider.KindImm, p.peers[1]); n != total {
		t.Errorf("%d of %d immediates that ended well were delivered", n, total)
	}
}

// TestFenceIsToldOnce: a goodbye that nobody answers comes back when the queue pairs are destroyed, and the handle ends then.
func TestFenceIsToldOnce(t *testing.T) {
	for name, vendor := range map[string]string{"hardware": "", "soft": "16777215"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("FAKE_VENDOR", vendor)
			p := newPair(t, verbs.Options{})
			p.join()
			if err := verbs.Silence(p.doms[0], p.peers[0]); err != nil {
				t.Fatal(err)
			}
			if err := p.doms[1].Fence(p.peers[1]); err != nil {
				t.Fatal(err)
			}
			fenced := func() int { return p.count(1, provider.KindFenced, p.peers[1]) }
			for end := time.Now().Add(hangGuard); fenced() == 0; p.poll(1) {
				if time.Now().After(end) {
					t.Fatal("the fence does not end")
				}
				p.doms[1].Arm()
			}
			for range 10 {
				p.poll(1)
			}
			if n := fenced(); n != 1 {
				t.Errorf("the fence was told %d times", n)
			}
		})
	}
}

// TestDeregisteredSourceIsReadToTheEnd: requests that the card has got read their memory though its key has ended.
func TestDeregisteredSourceIsReadToTheEnd(t *testing.T) {
	const total = 64
	p := newPair(t, verbs.Options{})
	p.join()
	_, src := p.memory(0, 1<<20, 0)
	_, dst := p.memory(1, 1<<20, provider.AccessRemoteWrite)
	key := p.grant(dst, 1<<20)
	wrs := make([]provider.WR, total)
	for i := range wrs {
		wrs[i] = p.write(src, key, 1<<20)
	}
	p.post(0, wrs...)
	if err := p.doms[0].Deregister(src); err != nil {
		t.Fatal(err)
	}
	p.until("the writes end", func() bool { return p.count(0, provider.KindWrite, p.peers[0]) == total })
	for _, c := range p.got[0] {
		if c.Kind == provider.KindWrite && c.Status != provider.StatusOK {
			t.Fatalf("a write that the card had got ended with %v", c.Status)
		}
	}
}

// TestArmSeesWhatCameBefore: a completion from before Arm rings no bell, so Arm must find it.
func TestArmSeesWhatCameBefore(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	p.until("nothing is left to do", func() bool { return !p.doms[1].Arm() })
	// The one completion that the card was told to tell of is used up, and not looked at.
	for i := range 2 {
		p.post(0, provider.WR{Token: uint64(i), Op: provider.OpWriteImm, Peer: p.peers[0]})
		for end := time.Now().Add(hangGuard); p.count(0, provider.KindWrite, p.peers[0]) <= i; p.poll(0) {
			if time.Now().After(end) {
				t.Fatal("the write does not complete")
			}
		}
	}
	if !p.doms[1].Arm() {
		t.Fatal("arm lets the owner sleep though an immediate is there")
	}
}

// TestTheLastReceiveIsAwaited: whoever destroys a queue pair before loses what has arrived.
func TestTheLastReceiveIsAwaited(t *testing.T) {
	p := newPair(t, verbs.Options{})
	p.join()
	for _, d := range p.doms {
		verbs.WaitForLast(d)
	}
	for i := range p.doms {
		p.post(i, provider.WR{Token: 1 << 40, Op: provider.OpWriteImm, Peer: p.peers[i]})
	}
	p.until("each has an immediate", func() bool {
		return p.count(0, provider.KindImm, p.peers[0])+p.count(1, provider.KindImm, p.peers[1]) == 2
	})
	t.Setenv("FAKE_LATE", "20")
	p.refused(0)
	if err := p.doms[0].Fence(p.peers[0]); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(hangGuard); p.count(0, provider.KindFenced, p.peers[0]) == 0; p.poll(0) {
		if time.Now().After(end) {
			t.Fatal("the fence does not end")
		}
	}
	t.Setenv("FAKE_LATE", "")
}
