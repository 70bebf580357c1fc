package kv

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-project/hawser"
)

// script runs f with a decoder and a prefiller on a network that does nothing bad by itself. Time is virtual.
func script(t *testing.T, f func(t *testing.T, d *chaosDecoder, p *chaosPrefiller)) {
	synctest.Test(t, func(t *testing.T) {
		r := newChaosRig(t, 1)
		r.c.calm = true
		defer r.end()
		p, d := r.prefiller(), r.decoder()
		f(t, d, p)
	})
}

// snap breaks the session of the two hosts; its fence has no proof for a while.
func (s *chaosDecoder) snap(p *chaosPrefiller, proof time.Duration) {
	c := s.r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	x := s.h.sessions[p.h]
	x.unproven = time.Now().Add(proof)
	x.leave(s.h)
}

// TestLinkWaitsForTheFence: the engine may have its proof, and a new session, before the decoder has tried again. A link that began
// in between would be ended by that try.
func TestLinkWaitsForTheFence(t *testing.T) {
	script(t, func(t *testing.T, d *chaosDecoder, p *chaosPrefiller) {
		p.slow = 400 * time.Millisecond
		x, err := d.d.Fetch(t.Context(), FetchRequest{ID: "lost", Tokens: chaosPrompt, From: p.h.name})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		d.snap(p, 1100*time.Millisecond)
		time.Sleep(100 * time.Millisecond)
		d.h.set(func() { d.h.late = 3 * time.Second })
		if _, err := x.Wait(t.Context()); !errors.Is(err, hawser.ErrPeerDown) {
			t.Errorf("got %v, want ErrPeerDown", err)
		}
		if n := d.d.Stats().Quarantined; n != chaosGeometry.Pages(chaosPrompt) {
			t.Errorf("%d pages quarantined, want %d", n, chaosGeometry.Pages(chaosPrompt))
		}
		if err := d.one(t.Context(), p.h, "next", chaosPrompt, 0); err != nil {
			t.Error(err)
		}
	})
}

// TestLateReportEndsNoLink: a PeerDown that is told late, because somebody else's callback took its time, must not end the next link.
func TestLateReportEndsNoLink(t *testing.T) {
	for _, side := range []string{"decoder", "prefiller"} {
		t.Run(side, func(t *testing.T) {
			script(t, func(t *testing.T, d *chaosDecoder, p *chaosPrefiller) {
				p.slow = 400 * time.Millisecond
				slow := map[string]*host{"decoder": d.h, "prefiller": p.h}[side]
				slow.set(func() { slow.late = time.Second })
				x, err := d.d.Fetch(t.Context(), FetchRequest{ID: "lost", Tokens: chaosPrompt, From: p.h.name})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(1500 * time.Millisecond)
				d.d.mu.Lock()
				d.d.endLink(x.link, ErrProtocol) // before its engine says anything
				d.d.mu.Unlock()
				if _, err := x.Wait(t.Context()); !errors.Is(err, ErrProtocol) {
					t.Errorf("got %v, want ErrProtocol", err)
				}
				if err := d.one(t.Context(), p.h, "next", chaosPrompt, 0); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestNoRoomIsTriedAgain: the engine has no room for a write although nothing of the prefiller is outstanding.
func TestNoRoomIsTriedAgain(t *testing.T) {
	script(t, func(t *testing.T, d *chaosDecoder, p *chaosPrefiller) {
		p.h.set(func() { p.h.full = 50 })
		start := time.Now()
		if err := d.one(t.Context(), p.h, "r", chaosPrompt, 0); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("took %v", d)
		}
	})
}

// TestClosesAtOnce: both come to an end.
func TestClosesAtOnce(t *testing.T) {
	script(t, func(t *testing.T, d *chaosDecoder, p *chaosPrefiller) {
		p.slow = 400 * time.Millisecond
		if _, err := d.d.Fetch(t.Context(), FetchRequest{ID: "r", Tokens: chaosPrompt, From: p.h.name}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), chaosPatience)
		defer cancel()
		errs := make(chan error)
		for range 2 {
			go func() { errs <- d.d.Close(ctx) }()
			go func() { errs <- p.p.Close(ctx) }()
		}
		for range 4 {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLowWaterIsTheOldestLiveAttempt: the prefiller drops what is about attempts below it, so it must not be above one that is live.
func TestLowWaterIsTheOldestLiveAttempt(t *testing.T) {
	script(t, func(t *testing.T, d *chaosDecoder, p *chaosPrefiller) {
		p.slow = time.Hour
		var all []*Pending
		for range 3 {
			x, err := d.d.Fetch(t.Context(), FetchRequest{ID: "r", Tokens: 5, From: p.h.name})
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, x)
		}
		for i, x := range []*Pending{all[1], all[2], all[0]} {
			start := time.Now()
			x.Cancel("test")
			<-x.Quiesced()
			if took := time.Since(start); took > time.Second {
				t.Errorf("quiet %v after the cancel", took)
			}
			d.d.mu.Lock()
			if got, want := d.d.head(x.link).lowWater, []uint64{1, 1, 4}[i]; got != want {
				t.Errorf("low water is %d after %d cancels, want %d", got, i+1, want)
			}
			d.d.mu.Unlock()
		}
	})
}

// TestSeqWindowHoldsRequestsBack: as long as an old attempt lives, a decoder does not go so far that the prefiller had to remember more
// than it does.
func TestSeqWindowHoldsRequestsBack(t *testing.T) {
	script(t, func(t *testing.T, d *chaosDecoder, p *chaosPrefiller) {
		p.slow = 400 * time.Millisecond
		old, err := d.d.Fetch(t.Context(), FetchRequest{ID: "old", Tokens: 5, From: p.h.name})
		if err != nil {
			t.Fatal(err)
		}
		d.d.mu.Lock()
		d.d.nextSeq += maxSeqWindow - 1 // as if as many had come and gone
		d.d.mu.Unlock()
		young, err := d.d.Fetch(t.Context(), FetchRequest{ID: "young", Tokens: 5, From: p.h.name})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
		if n := d.d.Stats().Waiting; n != 1 {
			t.Errorf("%d requests wait, want the young one", n)
		}
		for _, x := range []*Pending{old, young} {
			res, err := x.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			res.Release()
		}
	})
}
