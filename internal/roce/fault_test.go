//go:build vm

package roce

import (
	"testing"
	"time"
)

// stream runs rounds until end is closed, then one more, and returns how many there were.
func (d *duo) stream(t testing.TB, end <-chan struct{}) int {
	t.Helper()
	for n := 1; ; n++ {
		d.round(t, uint64(n))
		select {
		case <-end:
			d.round(t, uint64(n+1))
			return n + 1
		default:
		}
	}
}

// beside runs f on a goroutine and returns what is closed when it has ended.
func beside(t testing.TB, f func() error) <-chan struct{} {
	end := make(chan struct{})
	go func() {
		defer close(end)
		if err := f(); err != nil {
			t.Error(err)
		}
	}()
	return end
}

// A cable that is out for less than what the cards try again goes unnoticed; for longer, the link is lost and comes back. All data and all
// immediates arrive, once.
func TestCableOutInMidTransfer(t *testing.T) {
	for _, tc := range []struct {
		name string
		out  time.Duration
		lost bool
	}{
		{"for a moment", 50 * time.Millisecond, false},
		{"for long", 3 * time.Second, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := pairs(t, 1)[0]
			d := newDuo(t, overVerbs(p))
			d.round(t, 0)
			end := beside(t, func() error {
				if err := p.link("down"); err != nil {
					return err
				}
				time.Sleep(tc.out)
				return p.link("up")
			})
			n := d.stream(t, end)
			eventually(t, "link in service", func() bool { return d.links()[0].Ready })
			t.Logf("%d rounds, %d connections lost, %d requests again", n, d.stats().Losses, d.stats().Resent)
			if tc.lost != (d.stats().Losses > 0) {
				t.Errorf("%d connections were lost", d.stats().Losses)
			}
		})
	}
}

// Packets that are lost, late and out of order cost time and nothing else.
func TestLossAndDelay(t *testing.T) {
	p := pairs(t, 1)[0]
	d := newDuo(t, overVerbs(p))
	before := counters(t, p.dev[:]...)
	p.bad(t, "loss", "1%", "delay", "1ms", "1ms")
	for i := range 4 {
		d.round(t, uint64(i))
	}
	now := counters(t, p.dev[:]...)
	again := now["completer_retry_err"] + now["out_of_seq_request"] + now["rcvd_seq_err"] - before["completer_retry_err"] - before["out_of_seq_request"] - before["rcvd_seq_err"]
	t.Logf("%d packets, %d events of loss, %d connections lost", now["sent_pkts"]-before["sent_pkts"], again, d.stats().Losses)
	if again == 0 {
		t.Error("the cable lost nothing")
	}
}

// With two cards, one whose cable is out is replaced by the other, and used again when it is back.
func TestFailoverFromVerbsToVerbs(t *testing.T) {
	ps := pairs(t, 2)
	d := newDuo(t, overVerbs(ps...))
	d.failover(t, ps[0], 0)
}

// With one card, tcp replaces it.
func TestFailoverFromVerbsToTCP(t *testing.T) {
	p := pairs(t, 1)[0]
	d := newDuo(t, overVerbs(p), overTCP())
	d.failover(t, p, 0)
}

// failover takes a cable out, sees that others carry what went over it, puts it back, and sees it used again.
func (d *duo) failover(t *testing.T, p pair, link int) {
	t.Helper()
	d.round(t, 0)
	bytes := func() uint64 { return d.links()[link].TxBytes }
	before := bytes()
	if before == 0 {
		t.Fatalf("nothing went over link %d: %+v", link, d.links())
	}
	end := beside(t, func() error {
		if err := p.link("down"); err != nil {
			return err
		}
		return await("link out of service", func() bool { return !d.links()[link].Ready })
	})
	n := d.stream(t, end)
	quiet := bytes()
	for i := range 3 {
		d.round(t, uint64(100+i))
	}
	if now := bytes(); now != quiet {
		t.Errorf("%d bytes went over the link whose cable is out", now-quiet)
	}
	if err := p.link("up"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "link in service", func() bool { return d.links()[link].Ready })
	back := bytes()
	eventually(t, "link in use", func() bool {
		d.round(t, 200)
		return bytes() > back
	})
	t.Logf("%d rounds while it went out, %d requests again", n, d.stats().Resent)
}
