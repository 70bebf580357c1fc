package hawser

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/host"
	"github.com/hawser-project/hawser/internal/wire"
)

// listen opens the control listeners: an abstract unix socket for this host, and TCP.
func (e *Engine) listen(ctx context.Context) error {
	var b [16]byte
	_, _ = rand.Read(b[:])
	name := "hawser-" + hex.EncodeToString(b[:])
	var lc net.ListenConfig
	ul, err := lc.Listen(ctx, "unix", "@"+name)
	if err != nil {
		return fmt.Errorf("control socket: %w", err)
	}
	e.addListener(ul)
	tl, err := lc.Listen(ctx, "tcp", e.opts.Listen)
	if err != nil {
		if errors.Is(err, unix.EADDRINUSE) {
			return fmt.Errorf("listen %s: %w: another process has this port: choose another one, or port 0", e.opts.Listen, ErrBusy)
		}
		return fmt.Errorf("listen %s: %w", e.opts.Listen, err)
	}
	e.addListener(tl)
	e.addr = wire.Addr{ID: e.id, Host: hostKey(), Unix: name, Listen: e.opts.Advertise}
	if len(e.addr.Listen) == 0 {
		e.addr.Listen = advertise(tl.Addr())
	}
	printed := e.addr.String()
	if _, err := wire.ParseAddr(printed); err != nil || len(printed) > wire.MaxAddr {
		return fmt.Errorf("advertise %d addresses: %w: more, or longer ones, than peers accept: at most 16, together 3,000 bytes", len(e.addr.Listen), ErrInvalid)
	}
	for _, l := range e.listeners {
		e.wg.Go(func() { e.accept(l) })
	}
	return nil
}

func (e *Engine) addListener(l net.Listener) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listeners = append(e.listeners, l)
}

// hostKey is equal for processes that can use each other's unix sockets, and empty when that cannot be told.
func hostKey() string {
	id, err := host.ID()
	if err != nil {
		return ""
	}
	return fmt.Sprintf("%s uid %d", id, os.Geteuid())
}

// advertise is where a listener can be dialed. An unspecified address is not an address: the interfaces' are.
func advertise(a net.Addr) []string {
	ap, err := netip.ParseAddrPort(a.String())
	if err != nil || !ap.Addr().IsUnspecified() {
		return []string{a.String()}
	}
	var out []string
	addrs, _ := net.InterfaceAddrs() // no interfaces, no addresses
	for _, ia := range addrs {
		p, err := netip.ParsePrefix(ia.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() || len(out) == maxAdvertise {
			continue
		}
		out = append(out, netip.AddrPortFrom(p.Addr().Unmap(), ap.Port()).String())
	}
	return append(out, netip.AddrPortFrom(netip.IPv6Loopback(), ap.Port()).String(), netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ap.Port()).String())
}

// maxAdvertise keeps an address short on hosts with very many interfaces.
const maxAdvertise = 8

// accept serves one listener until it is closed. Each listener has places of its own: strangers on the network cannot keep
// processes of this host out.
func (e *Engine) accept(l net.Listener) {
	places := make(chan struct{}, maxHandshakes)
	_, near := l.(*net.UnixListener) // processes of our own user
	for {
		if !near {
			pause(e.ctx, e.newcomers.take(1))
		}
		conn, err := l.Accept()
		if err != nil {
			if e.ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return
			}
			e.opts.Log.Warn("accept", "err", err) // out of descriptors, most likely
			select {
			case <-time.After(acceptPause):
				continue
			case <-e.ctx.Done():
				return
			}
		}
		if err := checkUser(conn); err != nil {
			e.refuse(RefusedUser, conn.RemoteAddr(), err)
			_ = conn.Close()
			continue
		}
		select {
		case places <- struct{}{}:
			e.wg.Go(func() {
				defer func() { <-places }()
				stop := context.AfterFunc(e.ctx, func() { _ = conn.SetDeadline(time.Now()) })
				defer stop()
				e.serve(conn)
			})
		default:
			e.refuse(RefusedCrowd, conn.RemoteAddr(), errTooMany)
			_ = conn.Close()
		}
	}
}

var errTooMany = errors.New("too many handshakes at once")

// acceptPause keeps a listener that cannot accept from spinning.
const acceptPause = 50 * time.Millisecond

// checkUser refuses processes of other users on the unix socket. TCP says nothing about users; the cluster key does.
func checkUser(conn net.Conn) error {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return err
	}
	if cerr != nil {
		return fmt.Errorf("read peer credentials: %w", cerr)
	}
	if int(cred.Uid) != os.Geteuid() {
		return fmt.Errorf("process %d of user %d: %w: this engine serves user %d", cred.Pid, cred.Uid, ErrAccess, os.Geteuid())
	}
	return nil
}

// dial is one attempt to connect, shared by everybody who wants the same peer.
type dial struct {
	id   ID            // zero when only an endpoint is known
	done chan struct{} // closed when peer and err are set
	peer *Peer
	err  error
}

// Connect connects to the engine at addr: what its Addr returned, or host:port of its control listener. It returns at once when
// the peer is up. Callers that want the same peer share one attempt.
func (e *Engine) Connect(ctx context.Context, addr string) (*Peer, error) {
	to := target{addr: addr}
	if wire.IsAddr(addr) {
		a, err := wire.ParseAddr(addr)
		if err != nil {
			return nil, fmt.Errorf("connect: %w: %w", ErrInvalid, err)
		}
		to.id = a.ID
	} else if err := checkEndpoint(addr); err != nil {
		return nil, fmt.Errorf("connect %q: neither an engine's address nor host:port: %w", addr, err)
	}
	p, err := e.connect(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	return p, nil
}

// target is whom to dial.
type target struct {
	id    ID     // zero when only the address is known
	addr  string // printable Addr, or host:port
	again bool   // it was there before: find out who is there now
	begun time.Time
}

func (e *Engine) connect(ctx context.Context, to target) (*Peer, error) {
	to.begun = time.Now()
	id := to.id
	if id == e.id {
		return nil, fmt.Errorf("%w: that is this engine itself", ErrInvalid)
	}
	key := to.addr
	if id != (ID{}) {
		key = string(id[:])
		if p := e.known(id); p != nil {
			if err := p.settle(ctx); err != nil {
				return nil, err
			}
			if p.Up() {
				return p, nil
			}
		}
	}
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil, fmt.Errorf("engine: %w", ErrClosed)
	}
	d := e.dials[key]
	if d == nil {
		d = &dial{id: id, done: make(chan struct{})}
		e.dials[key] = d
		e.wg.Go(func() {
			d.peer, d.err = e.dialPeer(to)
			e.mu.Lock()
			delete(e.dials, key)
			e.mu.Unlock()
			close(d.done)
		})
	}
	e.mu.Unlock()
	select {
	case <-d.done:
		return d.peer, d.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// dialing reports whether we are dialing an identity.
func (e *Engine) dialing(id ID) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.dials[string(id[:])] != nil
}

// dialPeer makes one attempt, however many endpoints that takes.
func (e *Engine) dialPeer(to target) (*Peer, error) {
	ctx, cancel := context.WithTimeout(e.ctx, handshakeTime)
	defer cancel()
	ends := []endpoint{{"tcp", to.addr}}
	if wire.IsAddr(to.addr) {
		a, err := wire.ParseAddr(to.addr)
		if err != nil {
			return nil, err
		}
		ends = endpoints(a)
	}
	var errs []error
	for _, end := range ends {
		p, err := e.dialEndpoint(ctx, end, to)
		if err == nil {
			return p, nil
		}
		errs = append(errs, fmt.Errorf("%s %s: %w", end.network, end.addr, err))
		var r *refusal
		if errors.As(err, &r) || ctx.Err() != nil {
			break // it was reached, and its other endpoints will say the same
		}
	}
	err := errors.Join(errs...)
	if !errors.Is(err, ErrRefused) && !errors.Is(err, ErrPeerDown) {
		err = fmt.Errorf("%w: %w", ErrPeerDown, err)
	}
	return nil, err
}

type endpoint struct{ network, addr string }

// endpoints lists how to reach an engine: the unix socket first, when it is on this host.
func endpoints(a *wire.Addr) []endpoint {
	var out []endpoint
	if a.Unix != "" && a.Host != "" && a.Host == hostKey() {
		out = append(out, endpoint{"unix", "@" + a.Unix})
	}
	for _, l := range a.Listen {
		out = append(out, endpoint{"tcp", l})
	}
	return out
}

// dialEndpoint dials until this or another connection of the same pair is up, or the other side says no.
func (e *Engine) dialEndpoint(ctx context.Context, end endpoint, to target) (*Peer, error) {
	for {
		p, err := e.dialOnce(ctx, end, to)
		var r *refusal
		if err == nil || !errors.As(err, &r) || r.code != wire.RefuseDuplicate {
			return p, err
		}
		if p == nil && to.id != (ID{}) {
			p = e.peer(to.id)
		}
		if p.await(ctx) {
			return p, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w; it did not come up: %w", err, context.Cause(ctx))
		}
	}
}

// dialOnce makes one connection. It returns the peer as soon as it is known, also with an error.
func (e *Engine) dialOnce(ctx context.Context, end endpoint, to target) (*Peer, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, end.network, end.addr)
	if err != nil {
		return nil, err
	}
	if err := checkUser(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	deadline, _ := ctx.Deadline()
	_ = conn.SetDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })
	defer stop()
	if e.opts.TLS != nil && end.network == "tcp" {
		secure, err := e.opts.TLS.secureDial(ctx, conn)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = secure
	}
	p, err := e.greet(ctx, conn, to)
	if err != nil {
		_ = conn.Close()
	}
	return p, err
}

// settle waits for a session that the other side is setting up, whatever becomes of it: dialing beside it would replace it.
func (p *Peer) settle(ctx context.Context) error {
	for {
		changed := p.change()
		s := p.cur.Load()
		if s == nil || s.state.Load() != stateSetup || s.dialer {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// await waits for a connection that was preferred to ours, and reports whether it came up. p is nil when it is not known whose that
// is.
func (p *Peer) await(ctx context.Context) bool {
	patience := time.NewTimer(otherTime)
	defer patience.Stop()
	for {
		var changed <-chan struct{}
		if p != nil {
			changed = p.change()
			if p.Up() {
				return true
			}
		}
		select {
		case <-changed:
		case <-patience.C:
			if s := p.latest(); s == nil || s.state.Load() != stateSetup {
				return false
			}
			patience.Reset(otherTime)
		case <-ctx.Done():
			return false
		}
	}
}

// otherTime is how long the connection that the other side prefers may take to begin. Dialing again is no more than a waste.
const otherTime = 250 * time.Millisecond
