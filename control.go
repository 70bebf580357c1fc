package hawser

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// The handshake on a control connection:
//
//	dialer ── Hello ───────► answerer
//	       ◄─ Welcome ──────           proves the cluster key over Hello and Welcome
//	       ── Auth ────────►           proves it over the same
//	       ◄─ Links ────────           one path: pairs of rails, the answerer's one-time addresses
//	       ── LinksReply ──►           the dialer's
//	         (both connect their links)
//	       ── LinksDone ───►
//	       ◄─ Up ───────────           or Links again with the next path, or Refuse
//
// Refuse may take the place of any answer.

const (
	handshakeTime = 10 * time.Second // of a whole handshake
	helloTime     = 2 * time.Second  // until a Hello is there: strangers do not hold a place for long
	maxHandshakes = 64               // under way at once on each listener
)

// refusal is a Refuse that was sent or received.
type refusal struct {
	code wire.Refusal
	text string
	ours bool
}

func (r *refusal) Error() string {
	if r.ours {
		return r.text
	}
	return "the other side says: " + r.text
}

func (r *refusal) Unwrap() error { return ErrRefused }

func refuse(code wire.Refusal, format string, args ...any) error {
	return &refusal{code: code, text: fmt.Sprintf(format, args...), ours: true}
}

// control reads and writes handshake messages on a connection, in turn.
type control struct {
	conn net.Conn
	buf  []byte
}

func (c *control) write(t wire.Type, m wire.Message) ([]byte, error) {
	f := wire.AppendFrame(nil, t, 0, m)
	_, err := c.conn.Write(f)
	return f[wire.HeaderLen:], err
}

// read reads one message, which must be of type t, or a Refuse.
func (c *control) read(t wire.Type, m wire.Message) ([]byte, error) {
	got, b, err := c.readAny()
	if err != nil {
		return nil, err
	}
	if got != t {
		return nil, refuse(wire.RefuseProtocol, "message of type %d where type %d was expected", got, t)
	}
	return b, wire.Parse(b, m)
}

func (c *control) readAny() (wire.Type, []byte, error) {
	f, err := wire.ReadFrame(c.conn, c.buf)
	if err != nil {
		return 0, nil, err
	}
	if f.Type == wire.TypeRefuse {
		var m wire.Refuse
		if err := wire.Parse(f.Payload, &m); err != nil {
			return 0, nil, err
		}
		return 0, nil, &refusal{code: m.Code, text: m.Text}
	}
	return f.Type, append([]byte(nil), f.Payload...), nil
}

// mac proves knowledge of the cluster key; all zero when there is none.
func (e *Engine) mac(who string, parts ...[]byte) (sum [32]byte) {
	if len(e.opts.ClusterKey) == 0 {
		return sum
	}
	h := hmac.New(sha256.New, e.opts.ClusterKey)
	fmt.Fprintf(h, "hawser control %s\n", who)
	for _, p := range parts {
		fmt.Fprintf(h, "%d\n", len(p))
		h.Write(p)
	}
	copy(sum[:], h.Sum(nil))
	return sum
}

// greet runs the dialer's side on a fresh connection. want may be zero. It returns the peer as soon as it is known, also with an
// error; without one the peer is up.
func (e *Engine) greet(ctx context.Context, conn net.Conn, want ID) (*Peer, error) {
	c := &control{conn: conn}
	hello := &wire.Hello{
		Magic: wire.Magic, Min: wire.MinVersion, Max: wire.MaxVersion, ID: e.id, Want: want,
		Name: e.opts.Name, Addr: e.addr.String(), Rails: e.wireRails(), Keyed: e.keyed(), Require: e.opts.Require,
	}
	_, _ = rand.Read(hello.Nonce[:])
	helloBytes, err := c.write(wire.TypeHello, hello)
	if err != nil {
		return nil, err
	}
	var w wire.Welcome
	welcomeBytes, err := c.read(wire.TypeWelcome, &w)
	if err != nil {
		if errors.Is(err, wire.ErrMalformed) {
			err = fmt.Errorf("it does not speak the hawser control protocol: %w", err)
		}
		return nil, err
	}
	mac := w.MAC
	w.MAC = [32]byte{}
	proof := e.mac("welcome", helloBytes, wire.Append(nil, &w))
	switch {
	case !hmac.Equal(mac[:], proof[:]):
		return nil, refuse(wire.RefuseKey, "its proof of the cluster key is wrong: both sides need the same key")
	case w.Version < wire.MinVersion || w.Version > wire.MaxVersion:
		return nil, refuse(wire.RefuseVersion, "it chose protocol version %d, this side speaks %d to %d", w.Version, wire.MinVersion, wire.MaxVersion)
	case want != (ID{}) && ID(w.ID) != want:
		return nil, refuse(wire.RefuseIdentity, "identity %s answers there, wanted %s: it has restarted, or the address is of another engine", ID(w.ID), want)
	}
	p := e.peer(ID(w.ID))
	s, err := p.claim(conn, true)
	if err != nil {
		return p, err
	}
	auth := &wire.Auth{MAC: e.mac("auth", helloBytes, welcomeBytes)}
	if _, err := c.write(wire.TypeAuth, auth); err != nil {
		return p, s.abandon(err)
	}
	if err := s.follow(ctx); err != nil {
		return p, s.abandon(err)
	}
	if err := s.followLinks(ctx, c); err != nil {
		return p, s.abandon(err)
	}
	if !s.setUp(w.Name) {
		return p, s.abandon(s.cause())
	}
	return p, nil
}

func (e *Engine) keyed() uint8 {
	if len(e.opts.ClusterKey) > 0 {
		return 1
	}
	return 0
}

// serve runs the answerer's side on an accepted connection.
func (e *Engine) serve(conn net.Conn) {
	err := e.answer(conn)
	if err == nil {
		return // the session owns the connection
	}
	var r *refusal
	if errors.As(err, &r) && r.ours {
		c := &control{conn: conn}
		_, _ = c.write(wire.TypeRefuse, &wire.Refuse{Code: r.code, Text: r.text})
	}
	_ = conn.Close()
	if e.ctx.Err() == nil && !(errors.As(err, &r) && r.code == wire.RefuseDuplicate) {
		e.opts.Log.Warn("connection refused", "from", conn.RemoteAddr().String(), "err", err)
	}
}

func (e *Engine) answer(conn net.Conn) error {
	c := &control{conn: conn}
	_ = conn.SetDeadline(time.Now().Add(helloTime))
	var h wire.Hello
	helloBytes, err := c.read(wire.TypeHello, &h)
	if err != nil {
		return err
	}
	_ = conn.SetDeadline(time.Now().Add(handshakeTime))
	if err := e.checkHello(&h); err != nil {
		return err
	}
	w := &wire.Welcome{
		Version: min(h.Max, wire.MaxVersion), ID: e.id, Name: e.opts.Name, Addr: e.addr.String(), Rails: e.wireRails(),
	}
	_, _ = rand.Read(w.Nonce[:])
	w.MAC = e.mac("welcome", helloBytes, wire.Append(nil, w))
	welcomeBytes, err := c.write(wire.TypeWelcome, w)
	if err != nil {
		return err
	}
	var a wire.Auth
	if _, err := c.read(wire.TypeAuth, &a); err != nil {
		return err
	}
	if want := e.mac("auth", helloBytes, welcomeBytes); !hmac.Equal(a.MAC[:], want[:]) {
		return refuse(wire.RefuseKey, "your proof of the cluster key is wrong: both sides need the same key")
	}
	s, err := e.peer(ID(h.ID)).claim(conn, false)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(e.ctx, handshakeTime)
	defer cancel()
	if err := s.follow(ctx); err != nil {
		return s.abandon(err)
	}
	if err := s.leadLinks(ctx, c, &h); err != nil {
		return s.abandon(err)
	}
	s.send(wire.TypeUp, 0, nil) // waits for the writer, which setUp starts: nobody hears of Up before we are
	if !s.setUp(h.Name) {
		return s.abandon(s.cause())
	}
	return nil
}

func (e *Engine) checkHello(h *wire.Hello) error {
	switch {
	case h.Magic != wire.Magic:
		return fmt.Errorf("first bytes %#x are not a hawser hello", h.Magic)
	case e.closing.Load():
		return refuse(wire.RefuseClosing, "engine %s is closing", e.id)
	case h.Min > wire.MaxVersion || h.Max < wire.MinVersion:
		return refuse(wire.RefuseVersion, "you speak protocol versions %d to %d, this side %d to %d", h.Min, h.Max, wire.MinVersion, wire.MaxVersion)
	case h.Want != (wire.ID{}) && h.Want != wire.ID(e.id):
		return refuse(wire.RefuseIdentity, "identity %s is here, wanted %s: this process has restarted, or the address is of another engine", e.id, ID(h.Want))
	case ID(h.ID) == e.id:
		return refuse(wire.RefuseIdentity, "an engine cannot connect to itself")
	case h.Keyed != e.keyed():
		return refuse(wire.RefuseKey, "one side has a cluster key and the other has none")
	case e.dialing(ID(h.ID)) && less(e.id, ID(h.ID)):
		return refuse(wire.RefuseDuplicate, "both sides dialed; the other connection is kept")
	}
	return nil
}

// claim makes the session for a connection whose other side has said who it is, unless another connection is preferred: when
// both sides dial at once, both keep what the smaller identity dialed.
func (p *Peer) claim(conn net.Conn, dialer bool) (*session, error) {
	s := p.e.newSession(p, conn, dialer)
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.cur.Load(); old != nil {
		switch old.state.Load() {
		case stateSetup:
			oldWins := old.dialer == less(p.e.id, p.id) // it was dialed by the smaller identity
			if oldWins {
				return nil, refuse(wire.RefuseDuplicate, "another connection of the same pair is being set up")
			}
			old.fail(ErrPeerDown, errReplaced)
		case stateUp:
			if dialer {
				return nil, refuse(wire.RefuseDuplicate, "already connected")
			}
			// The peer would not dial if it had not lost the session.
			old.fail(ErrPeerDown, errors.New("peer has connected anew"))
		}
		s.prev.Store(old)
	}
	p.cur.Store(s)
	return s, nil
}

// follow waits until the sessions before this one are over: told and fenced. So sessions of one peer never overlap, and neither do
// their events.
func (s *session) follow(ctx context.Context) error {
	for prev := s.prev.Load(); prev != nil; prev = prev.prev.Load() {
		if err := prev.waitOver(ctx); err != nil {
			return refuse(wire.RefuseBusy, "the session before is not over yet: %v", err)
		}
	}
	s.prev.Store(nil)
	return nil
}

func less(a, b ID) bool { return string(a[:]) < string(b[:]) }

// errReplaced is why a session ends during set-up when both sides dialed.
var errReplaced = errors.New("replaced by the connection that the other side dialed")

// abandon fails a session during set-up and returns what to tell about it: a session that was replaced is a duplicate, however
// that showed.
func (s *session) abandon(err error) error {
	if errors.Is(s.cause(), errReplaced) {
		err = refuse(wire.RefuseDuplicate, "%v", errReplaced)
	}
	if errors.Is(err, context.DeadlineExceeded) || isTimeout(err) {
		err = fmt.Errorf("handshake took longer than %v: %w", handshakeTime, err)
	}
	s.fail(ErrPeerDown, err)
	return err
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// leadLinks is the answerer's part: it proposes one path after the other until the links of one come up.
func (s *session) leadLinks(ctx context.Context, c *control, h *wire.Hello) error {
	ours := s.e.wireRails()
	ways := plans(s.e.opts.Providers, []string{s.e.opts.Require, h.Require}, h.Rails, ours)
	if len(ways) == 0 {
		return refuse(wire.RefusePath, "no rail of one side reaches a rail of the other: you have %s%s, this side has %s%s",
			describe(h.Rails), requireText(h.Require), describe(ours), requireText(s.e.opts.Require))
	}
	var tried []string
	for _, way := range ways {
		fault, err := s.tryPath(ctx, c, way, tried)
		if err != nil {
			return err
		}
		if fault == "" {
			return nil
		}
		tried = append(tried, fmt.Sprintf("%s: %s", way.path, fault))
		s.dropLinks()
	}
	return refuse(wire.RefusePath, "no path works: %v", tried)
}

// tryPath proposes one path; fault says why it did not come up.
func (s *session) tryPath(ctx context.Context, c *control, way plan, tried []string) (fault string, err error) {
	s.path, s.reason = way.path, way.text
	if len(tried) > 0 {
		s.reason = fmt.Sprintf("%s; tried before: %v", way.text, tried)
	}
	links := append([]wire.Link(nil), way.pairs...)
	if err := s.offer(links, func(l wire.Link) uint16 { return l.Answerer }); err != nil {
		return err.Error(), nil //nolint:nilerr // the next path may work
	}
	if _, err := c.write(wire.TypeLinks, &wire.Links{Path: s.path, Reason: s.reason, Links: links}); err != nil {
		return "", err
	}
	var reply wire.LinksReply
	if _, err := c.read(wire.TypeLinksReply, &reply); err != nil {
		return "", err
	}
	if len(reply.Links) == 0 {
		return "the other side could not open it", nil
	}
	if len(reply.Links) != len(links) {
		return "", refuse(wire.RefuseProtocol, "%d addresses for %d links", len(reply.Links), len(links))
	}
	own := s.connectLinks(ctx, reply.Links, false)
	var done wire.LinksDone
	if _, err := c.read(wire.TypeLinksDone, &done); err != nil {
		return "", err
	}
	if own != "" {
		return own, nil
	}
	return done.Fault, nil
}

// followLinks is the dialer's part.
func (s *session) followLinks(ctx context.Context, c *control) error {
	for {
		t, b, err := c.readAny()
		if err != nil {
			return err
		}
		if t == wire.TypeUp {
			return nil
		}
		var m wire.Links
		if t != wire.TypeLinks {
			return refuse(wire.RefuseProtocol, "message of type %d where links were expected", t)
		}
		if err := wire.Parse(b, &m); err != nil {
			return err
		}
		if err := s.checkLinks(&m); err != nil {
			return err
		}
		s.dropLinks() // of the path before
		s.path, s.reason = m.Path, m.Reason
		theirs := append([]wire.Link(nil), m.Links...)
		reply := &wire.LinksReply{Links: m.Links}
		if err := s.offer(reply.Links, func(l wire.Link) uint16 { return l.Dialer }); err != nil {
			s.e.opts.Log.Warn("path left out", "peer", s.peer.String(), "path", m.Path, "err", err)
			reply.Links = nil
		}
		if _, err := c.write(wire.TypeLinksReply, reply); err != nil {
			return err
		}
		if reply.Links == nil {
			continue
		}
		if _, err := c.write(wire.TypeLinksDone, &wire.LinksDone{Fault: s.connectLinks(ctx, theirs, true)}); err != nil {
			return err
		}
	}
}

func (s *session) checkLinks(m *wire.Links) error {
	if s.e.opts.Require != "" && m.Path != s.e.opts.Require {
		return refuse(wire.RefusePath, "%s is offered%s", m.Path, requireText(s.e.opts.Require))
	}
	if len(m.Links) == 0 {
		return refuse(wire.RefuseProtocol, "a path without links")
	}
	for _, l := range m.Links {
		if int(l.Dialer) >= len(s.e.rails) {
			return refuse(wire.RefuseProtocol, "link over rail %d, there are %d", l.Dialer, len(s.e.rails))
		}
	}
	return nil
}

// offer fills links with the addresses of this side's ends.
func (s *session) offer(links []wire.Link, railOf func(wire.Link) uint16) error {
	s.mu.Lock()
	s.links = len(links)
	rp := s.rp
	s.mu.Unlock()
	err := s.e.worker.do(func(g *rail.Group) error {
		for i := range links {
			addr, err := g.Offer(rp, int(railOf(links[i])))
			if err != nil {
				return err
			}
			links[i].Addr = addr
		}
		return nil
	})
	if err != nil {
		s.dropLinks()
	}
	return err
}

// connectLinks connects all links and waits until they are up; it returns why one is not.
func (s *session) connectLinks(ctx context.Context, remote []wire.Link, active bool) string {
	rp := s.rp
	err := s.e.worker.do(func(g *rail.Group) error {
		for i := range remote {
			if err := g.Connect(rp, i, remote[i].Addr, active); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err.Error()
	}
	ctx, cancel := context.WithTimeout(ctx, provider.ConnectTimeout+time.Second) // the provider's own limit comes first
	defer cancel()
	for {
		s.mu.Lock()
		up, fault, wake := s.linkUps == len(remote), s.fault, s.wake
		s.mu.Unlock()
		switch {
		case fault != "":
			return fault
		case up:
			s.linked.Store(true)
			return ""
		}
		select {
		case <-wake:
		case <-s.ctx.Done():
			return "session ended"
		case <-ctx.Done():
			return "no answer in time"
		}
	}
}

// dropLinks gives up the links of a path that does not work.
func (s *session) dropLinks() {
	s.mu.Lock()
	rp := s.rp
	s.links = 0
	s.mu.Unlock()
	s.resetLinks()
	s.e.worker.group.Call(func(g *rail.Group) { g.Disconnect(rp) })
}

func describe(rails []wire.Rail) string {
	out := ""
	for i, r := range rails {
		if i > 0 {
			out += ", "
		}
		out += fmt.Sprintf("%s (fabric %s)", r.Provider, r.Fabric)
	}
	if out == "" {
		return "none"
	}
	return out
}

func requireText(name string) string {
	if name == "" {
		return ""
	}
	return ", and " + name + " is required"
}
