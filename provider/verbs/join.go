//go:build cgo

package verbs

import (
	"crypto/subtle"
	"time"

	"github.com/hawser-project/hawser/provider"
)

// How long a connection may take. The side that waits outlasts the one that calls, so that calls which go nowhere do not end it.
const (
	activeTime  = provider.ConnectTimeout / 2
	passiveTime = provider.ConnectTimeout - 200*time.Millisecond
)

// Connect implements [provider.Domain]. Both sides ready their queue pairs and greet each other; whoever comes first is not heard
// and greets again.
func (d *domain) Connect(h provider.Peer, remote provider.Addr, active bool) error {
	if d.closed {
		return d.errorf("connect: %w", provider.ErrClosed)
	}
	p := d.peer(h)
	if p == nil || p.phase > up || p.released {
		return d.errorf("connect peer %#x: %w", h, provider.ErrStale)
	}
	if p.phase != offered {
		return d.errorf("connect peer %#x: %w: already called", h, provider.ErrInvalid)
	}
	o, err := parseOffer(remote)
	if err != nil {
		return d.errorf("connect peer %#x: %w", h, err)
	}
	if o.ethernet != d.at.ethernet {
		return d.errorf("connect peer %#x: %w: InfiniBand and Ethernet do not meet", h, provider.ErrInvalid)
	}
	p.remote, p.active, p.phase = o, active, joining
	wait := passiveTime
	if active {
		wait = activeTime
	}
	d.setDeadline(p, time.Now().Add(wait))
	c, ctl, out, in := d.card, p.ctl, p.out, p.in
	toCtl, toOut, toIn := d.controlRoute(p), d.writesRoute(p), d.arrivalsRoute(p)
	d.start(p, func() error {
		for _, step := range []struct {
			qp   queuePair
			to   *route
			send bool
		}{{in, &toIn, false}, {out, &toOut, true}, {ctl, &toCtl, true}} {
			if err := c.readyToReceive(step.qp, step.to); err != nil {
				return err
			}
			if step.send {
				if err := c.readyToSend(step.qp, step.to); err != nil {
					return err
				}
			}
		}
		return nil
	}, func(err error) {
		if p.phase != joining {
			return
		}
		if err != nil {
			d.lose(p, provider.StatusRefused, detailOf(err))
			return
		}
		p.phase = greeting
		d.greet(p)
	})
	return nil
}

// start runs what may take long on a goroutine of its own, and then, with its error, on the owner's.
func (d *domain) start(p *peer, run func() error, then func(error)) {
	p.jobs++
	d.jobs.Add(1)
	go func() {
		defer d.jobs.Done()
		err := run()
		d.results.mu.Lock()
		d.results.list = append(d.results.list, result{p, err, then})
		d.results.mu.Unlock()
		d.bell.Wake()
	}()
}

// collect takes what goroutines have finished, and reports whether there was something.
func (d *domain) collect() bool {
	d.results.mu.Lock()
	list := d.results.list
	d.results.list = nil
	d.results.mu.Unlock()
	for _, r := range list {
		r.peer.jobs--
		r.then(r.err)
		d.activate(r.peer)
	}
	return len(list) > 0
}

// routeTo is the way to a queue pair of the peer.
func (d *domain) routeTo(p *peer, qpn, receivePSN, sendPSN uint32) route {
	r := route{
		gid: p.remote.gid, qpn: qpn, rqPSN: receivePSN, sqPSN: sendPSN, lid: p.remote.lid, pkeyIndex: uint16(d.opts.PKeyIndex),
		sgidIndex: d.at.index, hopLimit: 64, trafficClass: d.opts.TrafficClass, sl: d.opts.ServiceLevel, port: uint8(d.at.port),
		mtu: min(d.at.mtu, p.remote.mtu), timeout: uint8(d.opts.Timeout), retries: uint8(d.opts.Retries), rnrRetries: rnrRetries,
	}
	if d.at.global || p.remote.global {
		r.global = 1
	}
	return r
}

// rnrRetries is finite (7 is not): credits make it that no receive is ever missing, and a peer that breaks them is disconnected.
const rnrRetries = 6

// controlRoute counts the peer's hello, where it has arrived: the packet will not come again.
func (d *domain) controlRoute(p *peer) route {
	heard := uint32(0)
	if p.helloed {
		heard = 1
	}
	r := d.routeTo(p, p.remote.ctl, psn(&p.remote.secret, &p.secret, forControl, 0)+heard, psn(&p.secret, &p.remote.secret, forControl, 0))
	r.rqPSN &= 1<<24 - 1
	return r
}

// writesRoute is that of our writes, arrivalsRoute that of the peer's. Each has a new sequence of packets in each round.
func (d *domain) writesRoute(p *peer) route {
	return d.routeTo(p, p.remote.in, 0, psn(&p.secret, &p.remote.secret, forWrites, p.writes.round))
}

func (d *domain) arrivalsRoute(p *peer) route {
	return d.routeTo(p, p.remote.out, psn(&p.remote.secret, &p.secret, forWrites, p.arrived.round), 0)
}

// greet sends our hello.
func (d *domain) greet(p *peer) {
	h := derived(&p.secret, &p.remote.secret, forHello, 0)
	r := record{kind: recHello}
	copy(r.proof[:], h[:])
	d.sendRecord(p, &r)
}

// greetAgain has a control queue pair whose hello was not answered start from the beginning. The peer was not there yet: it ignores
// what comes before it is ready.
func (d *domain) greetAgain(p *peer) {
	p.again = false
	d.drain() // a reset drops completions: the peer's hello may be among them
	if p.phase != greeting {
		return
	}
	p.control.restart()
	c, q, pkey, to := d.card, p.ctl, d.opts.PKeyIndex, d.controlRoute(p)
	d.start(p, func() error {
		if err := c.resetQP(q); err != nil {
			return err
		}
		if err := c.initQP(q, pkey, true); err != nil {
			return err
		}
		if err := c.readyToReceive(q, &to); err != nil {
			return err
		}
		return c.readyToSend(q, &to)
	}, func(err error) {
		if p.phase != greeting {
			return
		}
		if err != nil {
			d.lose(p, provider.StatusRefused, detailOf(err))
			return
		}
		d.hear() // what is told of before the reset
		p.ctl.empty = false
		d.greet(p)
	})
}

// heardHello takes the peer's hello.
func (d *domain) heardHello(p *peer, r *record) {
	want := derived(&p.remote.secret, &p.secret, forHello, 0)
	if p.helloed || subtle.ConstantTimeCompare(want[:len(r.proof)], r.proof[:]) != 1 {
		d.violate(p)
		return
	}
	p.helloed = true
	if p.greeted && p.phase == greeting {
		d.rise(p)
	}
}

// rise tells the owner that a connection is up, and what came over it before.
func (d *domain) rise(p *peer) {
	p.phase, p.deadline = up, time.Time{}
	d.setAlarm(time.Now().Add(probeEvery))
	d.ready.push(provider.Completion{Peer: p.handle, Kind: provider.KindPeerUp})
	for _, c := range p.early {
		d.ready.push(c)
	}
	p.early = nil
	d.activate(p)
}

// detailOf is the error number in err, for Completion.Detail.
func detailOf(err error) uint32 {
	if e, ok := asErrno(err); ok {
		return uint32(e)
	}
	return 0
}
