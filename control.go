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

	"github.com/hawser-project/hawser/internal/wire"
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

// maxOptional is how many messages in a row that need not be understood are skipped in a handshake.
const maxOptional = 16

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
	for n := 0; err == nil && f.Flags&wire.FlagOptional != 0 && n < maxOptional; n++ { // of a later version
		f, err = wire.ReadFrame(c.conn, c.buf)
	}
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

// greet runs the dialer's side on a fresh connection. It returns the peer as soon as it is known, also with an
// error; without one the peer is up.
func (e *Engine) greet(ctx context.Context, conn net.Conn, to target) (*Peer, error) {
	c := &control{conn: conn}
	hello := &wire.Hello{
		Magic: wire.Magic, Min: wire.MinVersion, Max: wire.MaxVersion, ID: e.id,
		Name: e.opts.Name, Rails: e.wireRails(), Keyed: e.keyed(), Require: e.opts.Require,
	}
	if !to.again { // else it says who it is, and proves it, before we refuse
		hello.Want = to.id
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
	case w.Version < wire.Spoken.Min || w.Version > wire.Spoken.Max:
		return nil, refuse(wire.RefuseVersion, "it chose protocol version %d, this side speaks %d to %d", w.Version, wire.MinVersion, wire.MaxVersion)
	case ID(w.ID) == e.id:
		return nil, refuse(wire.RefuseIdentity, "an engine cannot connect to itself")
	case to.id != (ID{}) && ID(w.ID) != to.id:
		return nil, e.another(to, &w)
	}
	p := e.peer(ID(w.ID))
	s, err := p.claim(conn, true, nil)
	if err != nil {
		return p, err
	}
	s.addr, s.begun = to.addr, to.begun
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
	if err := s.setUp(w.Name); err != nil {
		return p, s.abandon(err)
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
	conn, err := e.admit(conn)
	if err == nil {
		err = e.answer(conn)
	}
	if err == nil {
		return // the session owns the connection
	}
	var r *refusal
	if errors.As(err, &r) && r.ours {
		c := &control{conn: conn}
		_ = conn.SetWriteDeadline(time.Now().Add(flushTime)) // the handshake's may be over
		_, _ = c.write(wire.TypeRefuse, &wire.Refuse{Code: r.code, Text: r.text})
	}
	_ = conn.Close()
	if e.ctx.Err() != nil {
		return
	}
	reason := handshakeReason(err)
	if reason == RefusedDuplicate {
		e.refused.add(reason)
	} else {
		e.refuse(reason, conn.RemoteAddr(), err)
	}
}

// admit makes an accepted connection secure, if it is to be. The connection is not nil, also with an error.
func (e *Engine) admit(conn net.Conn) (net.Conn, error) {
	e.limit(conn, helloTime)
	if _, ok := conn.(*net.TCPConn); !ok || e.opts.TLS == nil {
		return conn, nil
	}
	return e.opts.TLS.secureAccept(e.ctx, conn)
}

func (e *Engine) answer(conn net.Conn) error {
	begun := time.Now()
	c := &control{conn: conn}
	e.limit(conn, helloTime)
	var h wire.Hello
	helloBytes, err := c.read(wire.TypeHello, &h)
	if errors.Is(err, wire.ErrTLS) {
		return refuse(wire.RefuseCertificate, "tls: this port does not speak TLS: both sides need Options.TLS, or neither")
	}
	if err != nil {
		return err
	}
	lost := e.known(ID(h.ID)).latest()
	if lost != nil && lost.state.Load() != stateUp {
		lost = nil
	}
	e.limit(conn, handshakeTime)
	if err := e.checkHello(&h); err != nil {
		return err
	}
	version, _ := wire.Spoken.Common(wire.Versions{Min: h.Min, Max: h.Max}) // checkHello has looked
	w := &wire.Welcome{
		Version: version, ID: e.id, Name: e.opts.Name, Rails: e.wireRails(),
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
	if conn.RemoteAddr().Network() != "unix" && len(e.opts.ClusterKey) == 0 && e.opts.TLS == nil { // else it has proved that it belongs to us
		e.newcomers.take(sessionCost)
	}
	s, err := e.peer(ID(h.ID)).claim(conn, false, lost)
	if err != nil {
		return err
	}
	s.begun = begun
	ctx, cancel := context.WithTimeout(e.ctx, handshakeTime)
	defer cancel()
	if err := s.follow(ctx); err != nil {
		return s.abandon(err)
	}
	if err := s.leadLinks(ctx, c, &h); err != nil {
		return s.abandon(err)
	}
	s.tell(wire.TypeUp, nil) // waits for the writer, which setUp starts: nobody hears of Up before we are
	if err := s.setUp(h.Name); err != nil {
		return s.abandon(err)
	}
	return nil
}

// limit sets the deadline of a handshake, which ends at once when the engine closes.
func (e *Engine) limit(conn net.Conn, d time.Duration) {
	_ = conn.SetDeadline(time.Now().Add(d))
	if e.ctx.Err() != nil {
		_ = conn.SetDeadline(time.Now())
	}
}

func speaks(h *wire.Hello) bool {
	_, ok := wire.Spoken.Common(wire.Versions{Min: h.Min, Max: h.Max})
	return ok
}

func (e *Engine) checkHello(h *wire.Hello) error {
	switch {
	case h.Magic != wire.Magic:
		return fmt.Errorf("first bytes %#x are not a hawser hello", h.Magic)
	case e.closing.Load():
		return refuse(wire.RefuseClosing, "engine %s is closing", e.id)
	case !speaks(h):
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

// claim makes the session for a connection whose other side has said who it is, unless another connection is preferred. lost is the
// session that was up when the other side dialed; nil when there was none, and when we dialed.
func (p *Peer) claim(conn net.Conn, dialer bool, lost *session) (*session, error) {
	s := p.e.newSession(p, conn, dialer)
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.cur.Load()
	if old != nil {
		if err := p.yield(old, dialer, lost); err != nil {
			return nil, err
		}
		s.number = old.number
	}
	s.number++
	for old != nil && old.over.Load() {
		old = old.prev.Load()
	}
	s.prev.Store(old)
	p.e.imms.Attach(&p.source)
	p.cur.Store(s)
	if p.e.known(p.id) != p { // forgotten before it had a session
		err := refuse(wire.RefuseBusy, "too many peers have come and gone: connect again")
		s.fail(ErrPeerDown, err)
		return nil, err
	}
	return s, nil
}

// yield ends the old session in favour of a new connection, or refuses that. When both sides dial at once, both keep what the
// smaller identity dialed. When one side dials twice, it keeps the first; for the other side the second is the one that counts,
// because whoever dials again has lost what it had. That is true also of a session that is up, unless it came up since.
func (p *Peer) yield(old *session, dialer bool, lost *session) error {
	switch old.state.Load() {
	case stateSetup:
		keep := old.dialer == less(p.e.id, p.id)
		if old.dialer == dialer {
			keep = dialer
		}
		if keep {
			return refuse(wire.RefuseDuplicate, "another connection of the same pair is being set up")
		}
		old.fail(ErrPeerDown, errReplaced)
	case stateUp:
		if old != lost {
			return refuse(wire.RefuseDuplicate, "already connected")
		}
		old.fail(ErrPeerDown, errors.New("peer has connected anew"))
	}
	return nil
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

// errReplaced is why a session ends during set-up when another connection is preferred.
var errReplaced = errors.New("replaced by another connection of the same pair")

// abandon fails a session during set-up and returns what to tell about it: when it had failed before, that is the reason, however
// it showed. A session that was replaced is a duplicate.
func (s *session) abandon(err error) error {
	switch why := s.cause(); {
	case errors.Is(why, errReplaced):
		err = refuse(wire.RefuseDuplicate, "%v", errReplaced)
	case why != nil:
		err = why
	case errors.Is(err, context.DeadlineExceeded) || isTimeout(err):
		err = fmt.Errorf("handshake took longer than %v: %w", handshakeTime, err)
	}
	s.fail(ErrPeerDown, err)
	return err
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}
