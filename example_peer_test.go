package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/hawser-project/hawser"
)

// Two hosts, here played by one: each engine listens where the other host can reach it and shares the cluster's key. The receiver
// prints an address, which gets to the sender by a flag, a file, or a scheduler; descriptors follow as messages.
func Example_twoHosts() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	options := hawser.Options{
		Listen:     "0.0.0.0:0", // all interfaces; peers are told their addresses, not this one
		ClusterKey: []byte("the same secret on all hosts"),
		Rails:      []hawser.Rail{{Provider: "tcp"}}, // on other hosts, with Device: the address of a network card
	}
	receiver, err := hawser.Open(ctx, options)
	if err != nil {
		log.Fatal(err)
	}
	defer receiver.Close(ctx)
	address := receiver.Addr()

	// On the other host.
	sender, err := hawser.Open(ctx, options)
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close(ctx)
	peer, err := sender.Connect(ctx, address)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := sender.Send(peer, []byte("where may I write?")); err != nil {
		log.Fatal(err)
	}

	// On the first host: answer with a descriptor.
	memory, err := receiver.Alloc(1<<20, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	question, err := receiver.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	answer, err := memory.Descriptor(memory.Slice(0, 4096), hawser.RightWrite).MarshalBinary()
	if err != nil {
		log.Fatal(err)
	}
	if _, err := receiver.Send(question.From, answer); err != nil {
		log.Fatal(err)
	}

	// On the other host.
	message, err := sender.Receive(ctx)
	if err != nil {
		log.Fatal(err)
	}
	var d hawser.Descriptor
	if err := d.UnmarshalBinary(message.Data); err != nil {
		log.Fatal(err)
	}
	remote, err := sender.Import(ctx, d)
	if err != nil {
		log.Fatal(err)
	}
	source, err := sender.Alloc(4096, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	copy(source.Bytes(), "from another host")
	if _, err := sender.Write(hawser.Write{Src: source.All(), Dst: remote.All(), Imm: hawser.Imm(1)}); err != nil {
		log.Fatal(err)
	}

	if err := receiver.Counter(1).Wait(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s over %s: %s\n", question.Data, peer.Path(), memory.Bytes()[:17])
	// Output: where may I write? over tcp: from another host
}

// Pages from anywhere in a paged cache to anywhere in another one. Each carries the immediate, so the receiver waits for as many as
// there are pages.
func ExampleEngine_WritePages() {
	ctx := context.Background()
	a, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close(ctx)
	b, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close(ctx)
	const page = 4096
	src, err := a.Alloc(8*page, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	dst, err := b.Alloc(8*2*page, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	remote, err := a.Import(ctx, dst.Descriptor(dst.All(), hawser.RightWrite))
	if err != nil {
		log.Fatal(err)
	}
	for i := range 8 {
		src.Bytes()[i*page] = byte('a' + i)
	}
	transfer, err := a.WritePages(hawser.WritePages{
		PageLen: page,
		Src:     hawser.Pages{Region: src, Indices: []uint32{7, 4, 3, 3}, Stride: page},
		// Two planes lie side by side there: pages of the second one are every other page, from the second on.
		Dst: hawser.RemotePages{Remote: remote, Indices: []uint32{0, 1, 2, 3}, Stride: 2 * page, Offset: page},
		Imm: hawser.Imm(5),
	})
	if err != nil {
		log.Fatal(err)
	}
	if err := b.Counter(5).Wait(ctx, 4); err != nil { // all pages are there
		log.Fatal(err)
	}
	for i := range 4 {
		fmt.Printf("%c", dst.Bytes()[(2*i+1)*page])
	}
	if err := transfer.Wait(ctx); err != nil { // and the source may be changed
		log.Fatal(err)
	}
	// Output: hedd
}

// A writer that is not trusted any more: after the fence its memory can be used for something else, whatever the writer does.
func ExampleEngine_Fence() {
	ctx := context.Background()
	owner, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer owner.Close(ctx)
	writer, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer writer.Close(ctx)
	memory, err := owner.Alloc(1<<20, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	peers := make(chan *hawser.Peer, 1)
	stop := owner.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerUp {
			peers <- ev.Peer
		}
	})
	defer stop()
	descriptor := memory.Descriptor(memory.All(), hawser.RightWrite)
	if _, err := writer.Import(ctx, descriptor); err != nil {
		log.Fatal(err)
	}

	if err := owner.Fence(ctx, <-peers); err != nil {
		// ErrUnfenced: it is stopped in the middle of a copy. Do not use the memory, and try again.
		log.Fatal(err)
	}
	clear(memory.Bytes()) // nothing that the writer has started can land here any more

	// What it holds is of no use, also in a new session.
	_, err = writer.Import(ctx, descriptor)
	fmt.Println("stale:", errors.Is(err, hawser.ErrStale))
	// Output: stale: true
}

// A counter needs nobody who waits when the immediates come, and waiting takes nothing away.
func ExampleCounter_Wait() {
	ctx := context.Background()
	a, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer a.Close(ctx)
	b, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close(ctx)
	peer, err := a.Connect(ctx, b.Addr())
	if err != nil {
		log.Fatal(err)
	}
	const rounds, each = 3, 4
	for range rounds * each {
		if _, err := a.Signal(hawser.Signal{To: peer, Imm: 9}); err != nil {
			log.Fatal(err)
		}
	}
	for round := range uint64(rounds) { // a user of many rounds waits for round times count
		if err := b.Counter(9).Wait(ctx, (round+1)*each); err != nil {
			log.Fatal(err)
		}
		fmt.Print("round ", round+1, " ")
	}
	// Output: round 1 round 2 round 3
}
