package hawser

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path"
	"strings"
	"time"

	"github.com/hawser-project/hawser/internal/wire"
)

// TLS makes the control connections over TCP use TLS 1.3, with certificates on both sides. Unix sockets, whose users are checked by
// the kernel, stay as they are. All engines of a cluster have it or none.
type TLS struct {
	// Certificate is what this engine shows, with its key and the chain up to a root. It is used by both sides of connections, so an
	// extended key usage, if it has any, names servers and clients.
	Certificate tls.Certificate

	// Roots are the only authorities that are trusted; those of the system are not.
	Roots *x509.CertPool

	// Names are patterns (as of path.Match) of which one must match a DNS name, IP address or URI of a peer's certificate. Default: any
	// certificate of the roots will do.
	Names []string
}

// check returns what is wrong with the settings.
func (t *TLS) check() error {
	if t == nil {
		return nil
	}
	if len(t.Certificate.Certificate) == 0 || t.Certificate.PrivateKey == nil {
		return fmt.Errorf("tls: certificate: %w: none, or without its key", ErrInvalid)
	}
	if t.Roots == nil {
		return fmt.Errorf("tls: roots: %w: none: those of the system are not used", ErrInvalid)
	}
	for _, p := range t.Names {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("tls: name %q: %w: %w", p, ErrInvalid, err)
		}
	}
	leaf, err := x509.ParseCertificate(t.Certificate.Certificate[0])
	if err != nil {
		return fmt.Errorf("tls: certificate: %w: %w", ErrInvalid, err)
	}
	if now := time.Now(); now.After(leaf.NotAfter) {
		return fmt.Errorf("tls: certificate: %w: %s, and now is %v", ErrInvalid, validity(leaf), now.Round(time.Second))
	}
	return nil
}

// tlsConn closes at once. The farewell of TLS could wait for a peer that does not read; ours is Bye.
type tlsConn struct{ *tls.Conn }

func (c tlsConn) Close() error { return c.NetConn().Close() }

// secureDial makes the dialer's side of a TCP connection secure.
func (t *TLS) secureDial(ctx context.Context, conn net.Conn) (net.Conn, error) {
	tc := tls.Client(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{t.Certificate}, NextProtos: []string{tlsProtocol},
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection does it: an address says nothing about the name
		VerifyConnection:   func(cs tls.ConnectionState) error { return t.verify(&cs, x509.ExtKeyUsageServerAuth) },
	})
	err := tc.HandshakeContext(ctx)
	var rh tls.RecordHeaderError
	if errors.As(err, &rh) {
		return nil, refuse(wire.RefuseCertificate, "tls: the other side does not speak TLS on this port: both sides need Options.TLS, or neither")
	}
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	return tlsConn{tc}, nil
}

// secureAccept makes the answerer's side secure. The connection that it returns is for what is to be said next, also with an error:
// the certificate of the dialer is checked after the handshake, so that the refusal can say what is wrong.
func (t *TLS) secureAccept(ctx context.Context, conn net.Conn) (net.Conn, error) {
	tc := tls.Server(conn, &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{t.Certificate}, NextProtos: []string{tlsProtocol},
		ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
	})
	err := tc.HandshakeContext(ctx)
	var rh tls.RecordHeaderError
	if errors.As(err, &rh) && rh.Conn != nil {
		return conn, refuse(wire.RefuseCertificate, "tls: this port speaks TLS only: both sides need Options.TLS, or neither")
	}
	if err != nil {
		return conn, fmt.Errorf("tls: %w", err)
	}
	cs := tc.ConnectionState()
	return tlsConn{tc}, t.verify(&cs, x509.ExtKeyUsageClientAuth)
}

// tlsProtocol keeps the clients of other protocols out (ALPN).
const tlsProtocol = "hawser"

// verify checks the certificate of the other side. It says which check failed, what was wanted and what was got.
func (t *TLS) verify(cs *tls.ConnectionState, usage x509.ExtKeyUsage) error {
	leaf := cs.PeerCertificates[0]
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	now := time.Now()
	_, err := leaf.Verify(x509.VerifyOptions{Roots: t.Roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}})
	who := fmt.Sprintf("certificate %q of %q", leaf.Subject, leaf.Issuer)
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return refuse(wire.RefuseCertificate, "tls: roots: %s is not signed by one of the trusted roots", who)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refuse(wire.RefuseCertificate, "tls: time: %s is %s, and now is %v", who, validity(leaf), now.Round(time.Second))
	case errors.As(err, &invalid) && invalid.Reason == x509.IncompatibleUsage:
		return refuse(wire.RefuseCertificate, "tls: usage: %s may not be used by %s", who, map[x509.ExtKeyUsage]string{
			x509.ExtKeyUsageServerAuth: "the side that answers (server)", x509.ExtKeyUsageClientAuth: "the side that dials (client)",
		}[usage])
	case err != nil:
		return refuse(wire.RefuseCertificate, "tls: %s: %v", who, err)
	}
	names := certificateNames(leaf)
	if len(t.Names) > 0 && !matchAny(t.Names, names) {
		return refuse(wire.RefuseCertificate, "tls: name: %s is for [%s], wanted one of [%s]", who, strings.Join(names, " "), strings.Join(t.Names, " "))
	}
	return nil
}

func certificateNames(c *x509.Certificate) []string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, u := range c.URIs {
		names = append(names, u.String())
	}
	return names
}

func matchAny(patterns, names []string) bool {
	for _, p := range patterns {
		for _, n := range names {
			if ok, _ := path.Match(p, n); ok { // the patterns were checked
				return true
			}
		}
	}
	return false
}

func validity(c *x509.Certificate) string {
	return fmt.Sprintf("valid from %v to %v", c.NotBefore, c.NotAfter)
}
