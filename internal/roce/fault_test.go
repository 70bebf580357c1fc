//go:build vm

package roce

import (
	"errors"
	"testing"
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

// A link that is down is lost at once, and comes back. All data and all immediates arrive, once.
func TestLinkDownAndUpInMidTransfer(t *testing.T) {
	p := pairs(t, 1)[0]
	d := newDuo(t, overVerbs(p))
	d.round(t, 0)
	end := beside(t, func() error {
		if err := p.link(t, "down"); err != nil {
			return err
		}
		if err := await("link out of service", func() bool { return d.stats().Losses > 0 }); err != nil {
			return err
		}
		return p.link(t, "up")
	})
	n := d.stream(t, end)
	eventually(t, "link in service", func() bool { return d.links()[0].Ready })
	t.Logf("%d rounds, %d connections lost, %d requests again", n, d.stats().Losses, d.stats().Resent)
}

// A network that is silent for longer than the cards try again loses the connection, though both links are up.
func TestSilentNetwork(t *testing.T) {
	p := pairs(t, 1)[0]
	d := newDuo(t, overVerbs(p))
	d.round(t, 0)
	end := beside(t, func() error {
		mend, err := p.bad("loss", "100%")
		if err != nil {
			return err
		}
		err = await("link out of service", func() bool { return d.stats().Losses > 0 })
		return errors.Join(err, mend())
	})
	n := d.stream(t, end)
	eventually(t, "link in service", func() bool { return d.links()[0].Ready })
	t.Logf("%d rounds, %d connections lost, %d requests again", n, d.stats().Losses, d.stats().Resent)
}

// Packets that are lost or late cost time and nothing else.
func TestLossAndDelay(t *testing.T) {
	p := pairs(t, 1)[0]
	d := newDuo(t, overVerbs(p))
	before := counters(t, p.dev[:]...)
	mend, err := p.bad("loss", "0.5%", "delay", "500us")
	if err != nil {
		t.Fatal(err)
	}
	seen := func() (packets, events uint64) {
		now := counters(t, p.dev[:]...)
		for _, name := range []string{"completer_retry_err", "out_of_seq_request", "rcvd_seq_err"} {
			events += now[name] - before[name]
		}
		return now["sent_pkts"] - before["sent_pkts"], events
	}
	rounds := 0
	for events := uint64(0); events < 3 && rounds < 20; rounds++ {
		d.round(t, uint64(rounds))
		_, events = seen()
	}
	packets, events := seen()
	if err := mend(); err != nil {
		t.Error(err)
	}
	t.Logf("%d rounds, %d packets, %d events of loss, %d connections lost", rounds, packets, events, d.stats().Losses)
	if events == 0 {
		t.Error("the network lost nothing")
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
		if err := p.link(t, "down"); err != nil {
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
	if err := p.link(t, "up"); err != nil {
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
