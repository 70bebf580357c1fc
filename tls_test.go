package hawser_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
)

// authority is a certificate authority made for a test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t testing.TB, name string) *authority {
	t.Helper()
	a := &authority{pool: x509.NewCertPool()}
	a.key, a.cert = sign(t, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, nil)
	a.pool.AddCert(a.cert)
	return a
}

// sign makes a key and a certificate for it. Without a parent it signs itself.
func sign(t testing.TB, c *x509.Certificate, parent *authority) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if c.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<62)); err != nil {
		t.Fatal(err)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	c.NotBefore = c.NotAfter.Add(-2 * time.Hour)
	up, upKey := c, key
	if parent != nil {
		up, upKey = parent.cert, parent.key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, up, &key.PublicKey, upKey)
	if err != nil {
		t.Fatal(err)
	}
	made, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, made
}

// issue makes the certificate of an engine.
func (a *authority) issue(t testing.TB, change func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: "engine"}, DNSNames: []string{"node1.cluster.test"}}
	if change != nil {
		change(c)
	}
	key, made := sign(t, c, a)
	return tls.Certificate{Certificate: [][]byte{made.Raw}, PrivateKey: key}
}

// secured opens an engine on loopback TCP.
func secured(t testing.TB, o *hawser.TLS, log *syncBuffer) *hawser.Engine {
	t.Helper()
	opts := newWorld(t, "tcp").options(0, 1)
	opts.TLS = o
	if log != nil {
		opts.Log = slog.New(slog.NewTextHandler(log, nil))
	}
	return open(t, opts)
}

// dialTCP connects over the control listener, not over the unix socket of this host.
func dialTCP(t testing.TB, from, to *hawser.Engine) (*hawser.Peer, error) {
	t.Helper()
	return from.Connect(testContext(t), to.ListenAddrs()[0])
}

// Certificates of the trusted roots and names connect, work, and come back after a loss.
func TestCertificatesConnect(t *testing.T) {
	ca := newAuthority(t, "roots")
	for name, tc := range map[string]struct {
		names  []string
		change func(*x509.Certificate)
	}{
		"any of the roots": {},
		"dns name":         {names: []string{"other", "node?.cluster.*"}},
		"address":          {names: []string{"10.0.*"}, change: func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(10, 0, 0, 7)} }},
		"usages": {change: func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			o := &hawser.TLS{Certificate: ca.issue(t, tc.change), Roots: ca.pool, Names: tc.names}
			a, b := secured(t, o, nil), secured(t, o, nil)
			c := newCable(t, b.ListenAddrs()[0])
			events := eventsOf(a)
			p, err := a.Connect(testContext(t), c.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			for i := range uint64(2) {
				expect(t, events, hawser.PeerUp)
				tr, err := a.Signal(hawser.Signal{To: p, Imm: 1})
				wait(t, tr, err)
				reach(t, b.Counter(1), i+1)
				if err := a.SendBulk(testContext(t), p, make([]byte, 3<<20), nil); err != nil {
					t.Fatal(err)
				}
				if m, err := b.Receive(testContext(t)); err != nil || len(m.Data) != 3<<20 {
					t.Fatal(len(m.Data), err)
				}
				if i == 0 {
					c.cut(b.ListenAddrs()[0])
					expect(t, events, hawser.PeerDown, hawser.PeerFenced)
				}
			}
			if _, err := b.Connect(testContext(t), a.Addr()); err != nil { // the unix socket of the same host needs none of it
				t.Fatal(err)
			}
		})
	}
}

// Every refusal says which check failed, what was wanted and what was got, on both sides: to who dials and in the log of who answers.
func TestCertificateRefusals(t *testing.T) {
	ca, other := newAuthority(t, "roots"), newAuthority(t, "strange roots")
	good := func() *hawser.TLS { return &hawser.TLS{Certificate: ca.issue(t, nil), Roots: ca.pool} }
	usage := func(u x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{u} }
	}
	named := func(o *hawser.TLS, names ...string) *hawser.TLS { o.Names = names; return o }
	for name, tc := range map[string]struct {
		dialer, answerer *hawser.TLS
		text             []string
		log              string
	}{
		"roots of the answerer": {
			dialer: good(), answerer: &hawser.TLS{Certificate: other.issue(t, nil), Roots: ca.pool},
			text: []string{"tls: roots", `"CN=engine"`, `"CN=strange roots"`}, log: "tls:",
		},
		"roots of the dialer": {
			dialer: &hawser.TLS{Certificate: other.issue(t, nil), Roots: ca.pool}, answerer: good(),
			text: []string{"the other side says", "tls: roots", `"CN=strange roots"`}, log: "tls: roots",
		},
		"name of the answerer": {
			dialer: named(good(), "node2.*", "10.*"), answerer: good(),
			text: []string{"tls: name", "[node1.cluster.test]", "[node2.* 10.*]"}, log: "tls:",
		},
		"name of the dialer": {
			dialer: good(), answerer: named(good(), "node2.*"),
			text: []string{"the other side says", "tls: name", "[node1.cluster.test]", "[node2.*]"}, log: "tls: name",
		},
		"usage of the answerer": {
			dialer: good(), answerer: &hawser.TLS{Certificate: ca.issue(t, usage(x509.ExtKeyUsageClientAuth)), Roots: ca.pool},
			text: []string{"tls: usage", "server"}, log: "tls:",
		},
		"usage of the dialer": {
			dialer: &hawser.TLS{Certificate: ca.issue(t, usage(x509.ExtKeyUsageServerAuth)), Roots: ca.pool}, answerer: good(),
			text: []string{"the other side says", "tls: usage", "client"}, log: "tls: usage",
		},
		"tls to plain": {dialer: good(), text: []string{"does not speak TLS"}, log: "does not speak TLS"},
		"plain to tls": {answerer: good(), text: []string{"the other side says", "speaks TLS only"}, log: "speaks TLS only"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var log syncBuffer
			a, b := secured(t, tc.dialer, nil), secured(t, tc.answerer, &log)
			_, err := dialTCP(t, a, b)
			if !errors.Is(err, hawser.ErrRefused) {
				t.Fatalf("%v", err)
			}
			for _, want := range tc.text {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%v: want %s", err, want)
				}
			}
			eventually(t, "the answerer tells its log", func() bool { return strings.Contains(log.String(), tc.log) })
		})
	}
}

// A certificate that has expired is refused by either side. An engine would not open with it, so the test plays the other side.
func TestExpiredCertificates(t *testing.T) {
	ca := newAuthority(t, "roots")
	o := &hawser.TLS{Certificate: ca.issue(t, nil), Roots: ca.pool}
	expired := ca.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	cfg := &tls.Config{
		Certificates: []tls.Certificate{expired}, NextProtos: []string{"hawser"}, InsecureSkipVerify: true, ClientAuth: tls.RequireAnyClientCert,
	}
	e := secured(t, o, nil)

	conn, err := tls.Dial("tcp", e.ListenAddrs()[0], cfg)
	if err != nil {
		t.Fatal(err)
	}
	x := &puppet{TB: t, conn: conn}
	defer x.hangUp()
	var r wire.Refuse
	x.read(wire.TypeRefuse, &r)
	if r.Code != wire.RefuseCertificate || !strings.Contains(r.Text, "tls: time") || !strings.Contains(r.Text, "now is") {
		t.Errorf("refused with %d: %s", r.Code, r.Text)
	}
	x.closed()

	l, err := tls.Listen("tcp", "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if conn, err := l.Accept(); err == nil {
			_ = conn.(*tls.Conn).Handshake()
			_ = conn.Close()
		}
	}()
	_, err = e.Connect(testContext(t), l.Addr().String())
	if !errors.Is(err, hawser.ErrRefused) || !strings.Contains(err.Error(), "tls: time") {
		t.Errorf("%v", err)
	}
}

// A client without a certificate, or of another TLS or protocol, gets nowhere.
func TestForeignTLSClients(t *testing.T) {
	ca := newAuthority(t, "roots")
	o := &hawser.TLS{Certificate: ca.issue(t, nil), Roots: ca.pool}
	var log syncBuffer
	b := secured(t, o, &log)
	for name, cfg := range map[string]*tls.Config{
		"no certificate": {NextProtos: []string{"hawser"}},
		"TLS 1.2":        {MaxVersion: tls.VersionTLS12, NextProtos: []string{"hawser"}, Certificates: []tls.Certificate{o.Certificate}},
		"http":           {NextProtos: []string{"h2"}, Certificates: []tls.Certificate{o.Certificate}},
	} {
		cfg.InsecureSkipVerify = true
		conn, err := tls.Dial("tcp", b.ListenAddrs()[0], cfg)
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(hang))
			_, err = conn.Read(make([]byte, 1))
			_ = conn.Close()
		}
		var ne net.Error
		if err == nil || errors.As(err, &ne) && ne.Timeout() {
			t.Errorf("%s: %v", name, err)
		}
	}
	eventually(t, "three refusals", func() bool { return strings.Count(log.String(), "connection refused") == 3 })
}

// What is wrong with the settings is said by Open, all at once.
func TestTLSOptions(t *testing.T) {
	ca := newAuthority(t, "roots")
	cert := ca.issue(t, nil)
	expired := ca.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	for name, tc := range map[string]struct {
		o    *hawser.TLS
		want string
	}{
		"no certificate": {&hawser.TLS{Roots: ca.pool}, "tls: certificate"},
		"no key":         {&hawser.TLS{Certificate: tls.Certificate{Certificate: cert.Certificate}, Roots: ca.pool}, "without its key"},
		"no roots":       {&hawser.TLS{Certificate: cert}, "tls: roots"},
		"bad pattern":    {&hawser.TLS{Certificate: cert, Roots: ca.pool, Names: []string{"["}}, `"["`},
		"expired":        {&hawser.TLS{Certificate: expired, Roots: ca.pool}, "valid from"},
	} {
		e, err := hawser.Open(testContext(t), hawser.Options{TLS: tc.o})
		if err == nil {
			_ = e.Close(testContext(t))
		}
		if !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	good := &hawser.TLS{Certificate: cert, Roots: ca.pool}
	open(t, hawser.Options{TLS: good, Listen: "0.0.0.0:0"}) // as good as a cluster key
	far := newWorld(t, "sim").options(0, 1)                 // a network between hosts
	far.TLS = good
	if e, err := hawser.Open(testContext(t), far); !errors.Is(err, hawser.ErrInvalid) || !strings.Contains(err.Error(), "PlainData") {
		if err == nil {
			_ = e.Close(testContext(t))
		}
		t.Errorf("data that leaves the host: %v", err)
	}
	far.PlainData = true
	open(t, far)
}
