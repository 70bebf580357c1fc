package providertest

import (
	"context"
	"fmt"
	"io"

	"github.com/hawser-project/hawser/provider"
)

// Decorate returns p with every Domain that it opens passed through wrap: faults are decorators over the contract.
func Decorate(p provider.Provider, wrap func(provider.Domain) provider.Domain) provider.Provider {
	return &decorated{Provider: p, wrap: wrap}
}

type decorated struct {
	provider.Provider
	wrap func(provider.Domain) provider.Domain
}

// Open opens the device and wraps the Domain.
func (d *decorated) Open(ctx context.Context, dev provider.Device, cfg provider.Config) (provider.Domain, error) {
	dom, err := d.Provider.Open(ctx, dev, cfg)
	if err != nil {
		return nil, err
	}
	return d.wrap(dom), nil
}

// Faulty returns d with requests that fail before they reach the network. fault is called for each write and send, numbered from
// 0, on the owner's goroutine; anything but StatusOK is how it completes. StatusAccess and StatusLocal are faults that leave
// the connection alone. The peer hears nothing of them: for a write with an immediate where Caps.Refusals is true only StatusLocal
// keeps the contract.
func Faulty(d provider.Domain, fault func(n uint64, wr *provider.WR) provider.Status) provider.Domain {
	return &faulty{powered: powered{d}, fault: fault}
}

type faulty struct {
	powered
	fault  func(uint64, *provider.WR) provider.Status
	n      uint64
	failed []provider.Completion
	pass   []provider.WR
}

// Post passes on what fault lets through. A WR that the network does not accept now is judged again when it comes back.
func (f *faulty) Post(wrs []provider.WR) (int, error) {
	for i := range wrs {
		wr := &wrs[i]
		if wr.Op != provider.OpRecv {
			if st := f.fault(f.n, wr); st != provider.StatusOK {
				f.n++
				f.failed = append(f.failed, failure(wr, st))
				continue
			}
		}
		f.pass = append(f.pass[:0], *wr)
		n, err := f.Domain.Post(f.pass)
		if n == 0 || err != nil {
			return i, err
		}
		if wr.Op != provider.OpRecv {
			f.n++
		}
	}
	return len(wrs), nil
}

func failure(wr *provider.WR, st provider.Status) provider.Completion {
	c := provider.Completion{Token: wr.Token, Len: wr.Len, Peer: wr.Peer, Kind: provider.KindWrite, Status: st}
	if wr.Op == provider.OpSend {
		c.Kind = provider.KindSend
	}
	return c
}

// Poll delivers the faults first: a failed request must not come after its peer's end.
func (f *faulty) Poll(cs []provider.Completion) (int, error) {
	n := copy(cs, f.failed)
	f.failed = f.failed[:copy(f.failed, f.failed[n:])]
	if n == len(cs) {
		return n, nil
	}
	m, err := f.Domain.Poll(cs[n:])
	return n + m, err
}

// Arm is true while a fault waits.
func (f *faulty) Arm() bool { return len(f.failed) > 0 || f.Domain.Arm() }

// Logged returns d with a line on w for each call that does something.
func Logged(d provider.Domain, name string, w io.Writer) provider.Domain {
	return &logged{powered: powered{d}, name: name, w: w}
}

type logged struct {
	powered
	name string
	w    io.Writer
}

func (l *logged) log(format string, args ...any) {
	fmt.Fprintf(l.w, l.name+": "+format+"\n", args...)
}

func (l *logged) Register(m provider.Memory, acc provider.Access) (provider.Key, error) {
	k, err := l.Domain.Register(m, acc)
	l.log("register %d bytes, access %d: key %#x, %v", m.Len(), acc, k.ID, err)
	return k, err
}

func (l *logged) Deregister(k provider.Key) error {
	err := l.Domain.Deregister(k)
	l.log("deregister key %#x: %v", k.ID, err)
	return err
}

func (l *logged) Grant(k provider.Key, p provider.Peer, off, n uint64) (provider.Key, error) {
	g, err := l.Domain.Grant(k, p, off, n)
	l.log("grant [%#x,+%#x) of key %#x to peer %#x: key %#x, %v", off, n, k.ID, p, g.ID, err)
	return g, err
}

func (l *logged) Revoke(k provider.Key, p provider.Peer) error {
	err := l.powered.Revoke(k, p)
	l.log("revoke key %#x from peer %#x: %v", k.ID, p, err)
	return err
}

func (l *logged) Offer() (provider.Peer, provider.Addr, error) {
	p, a, err := l.Domain.Offer()
	l.log("offer: peer %#x, %v", p, err)
	return p, a, err
}

func (l *logged) Connect(p provider.Peer, a provider.Addr, active bool) error {
	err := l.Domain.Connect(p, a, active)
	l.log("connect peer %#x, active %v: %v", p, active, err)
	return err
}

func (l *logged) Disconnect(p provider.Peer) error {
	err := l.Domain.Disconnect(p)
	l.log("disconnect peer %#x: %v", p, err)
	return err
}

func (l *logged) Fence(p provider.Peer) error {
	err := l.Domain.Fence(p)
	l.log("fence peer %#x: %v", p, err)
	return err
}

func (l *logged) Post(wrs []provider.WR) (int, error) {
	n, err := l.Domain.Post(wrs)
	for i := range wrs[:n] {
		wr := &wrs[i]
		l.log("post %v to peer %#x: token %#x, %d bytes, imm %#x", wr.Op, wr.Peer, wr.Token, wr.Len, wr.Imm)
	}
	if n < len(wrs) || err != nil {
		l.log("post: %d of %d accepted, %v", n, len(wrs), err)
	}
	return n, err
}

func (l *logged) Poll(cs []provider.Completion) (int, error) {
	n, err := l.Domain.Poll(cs)
	for i := range cs[:n] {
		c := &cs[i]
		l.log("poll %v of peer %#x: token %#x, %d bytes, imm %#x, %v", c.Kind, c.Peer, c.Token, c.Len, c.Imm, c.Status)
	}
	if err != nil {
		l.log("poll: %v", err)
	}
	return n, err
}

func (l *logged) Close() error {
	err := l.Domain.Close()
	l.log("close: %v", err)
	return err
}
