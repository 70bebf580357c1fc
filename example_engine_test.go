package hawser_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"time"

	"github.com/hawser-project/hawser"
)

// A peer comes and leaves. PeerDown is the time to fail what waits for it, PeerFenced the time to use its memory for something else.
func ExampleEngine_OnPeer() {
	ctx := context.Background()
	a := must(hawser.Open(ctx, hawser.Options{}))
	defer a.Close(ctx)
	events := make(chan hawser.PeerEvent, 8)
	stop := a.OnPeer(func(ev hawser.PeerEvent) { events <- ev })
	defer stop()

	b := must(hawser.Open(ctx, hawser.Options{Name: "b"}))
	must(a.Connect(ctx, b.Addr()))
	check(b.Close(ctx))
	for range 3 {
		ev := <-events
		fmt.Println(ev.Kind, errors.Is(ev.Cause, hawser.ErrPeerDown))
	}
	// Output:
	// up false
	// down true
	// fenced false
}

// A region is taken back from one peer, which keeps its session and everything else that it was given.
func ExampleRegion_Revoke() {
	ctx := context.Background()
	writer, owner, _, from := two(ctx) // from is the writer as the owner sees it
	defer writer.Close(ctx)
	defer owner.Close(ctx)
	pages := must(owner.Alloc(4096, hawser.MemOptions{}))
	src := must(writer.Alloc(4096, hawser.MemOptions{}))
	remote := must(writer.Import(ctx, pages.Descriptor(pages.All(), hawser.RightWrite)))
	must(writer.Write(hawser.Write{Src: src.All(), Dst: remote.All()}))

	check(pages.Revoke(ctx, from))
	clear(pages.Bytes()) // nothing that the writer has under way lands here any more

	_, err := writer.Write(hawser.Write{Src: src.All(), Dst: remote.All()})
	fmt.Println("stale:", errors.Is(err, hawser.ErrStale))
	_, err = writer.Import(ctx, pages.Descriptor(pages.All(), hawser.RightWrite))
	fmt.Println("a new descriptor:", err)
	// Output:
	// stale: true
	// a new descriptor: <nil>
}

// What an engine has done, and over which network.
func ExampleEngine_Stats() {
	ctx := context.Background()
	a, b, to, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	for range 3 {
		check(must(a.Signal(hawser.Signal{To: to, Imm: 1})).Wait(ctx))
	}
	check(b.Counter(1).Wait(ctx, 3))

	for _, p := range a.Stats().Peers {
		fmt.Println("to", p.Name, "over", p.Path+":", p.TxWrites, "writes")
	}
	for _, p := range b.Stats().Peers {
		fmt.Println("from", p.Name+":", p.RxImms, "immediates")
	}
	// Output:
	// to b over shm: 3 writes
	// from a: 3 immediates
}

// A word that another thread advances, layer by layer, and a callback that acts on each layer. Values may be skipped, so the callback goes
// from the old one to the new one.
func ExampleEngine_Watch() {
	ctx := context.Background()
	e := must(hawser.Open(ctx, hawser.Options{}))
	defer e.Close(ctx)
	ready := make(chan uint64, 3)
	w := must(e.Watch(func(old, new uint64) {
		for layer := old; layer < new; layer++ {
			ready <- layer // in a program: submit its pages
		}
	}))
	defer w.Close()
	go func() {
		for range 3 { // the model
			w.Word().Add(1)
		}
	}()
	for range 3 {
		fmt.Println("layer", <-ready)
	}
	// Output:
	// layer 0
	// layer 1
	// layer 2
}

// Control connections over TCP with certificates on both sides. The data rail stays on this host; one that leaves it would need
// Options.PlainData, because data are not encrypted.
func ExampleTLS() {
	ctx := context.Background()
	cert, roots := certificate("spiffe://cluster/decode/0")
	options := hawser.Options{
		TLS:   &hawser.TLS{Certificate: cert, Roots: roots, Names: []string{"spiffe://cluster/*/*"}},
		Rails: []hawser.Rail{{Provider: "tcp", Device: "127.0.0.1"}},
	}
	a := must(hawser.Open(ctx, options))
	defer a.Close(ctx)
	b := must(hawser.Open(ctx, options))
	defer b.Close(ctx)
	peer := must(a.Connect(ctx, b.ListenAddrs()[0])) // by its Addr it would be reached over a unix socket, without TLS
	fmt.Println(peer.Up())

	options.TLS = nil
	c := must(hawser.Open(ctx, options))
	defer c.Close(ctx)
	_, err := c.Connect(ctx, b.ListenAddrs()[0])
	fmt.Println("without a certificate:", errors.Is(err, hawser.ErrRefused))
	// Output:
	// true
	// without a certificate: true
}

// certificate makes one that is its own authority. A cluster has an authority that signs those of its engines.
func certificate(name string) (tls.Certificate, *x509.CertPool) {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs: []*url.URL{must(url.Parse(name))}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))
	roots := x509.NewCertPool()
	roots.AddCert(must(x509.ParseCertificate(der)))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}
