package hawser_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hawser-project/hawser"
)

// Two engines, here in one process: one owns memory and hands out a descriptor, the other writes to it.
func Example() {
	ctx := context.Background()
	receiver, err := hawser.Open(ctx, hawser.Options{Name: "receiver"})
	if err != nil {
		log.Fatal(err)
	}
	defer receiver.Close(ctx)
	sender, err := hawser.Open(ctx, hawser.Options{Name: "sender"})
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close(ctx)

	dst, err := receiver.Alloc(1<<20, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	descriptor, err := dst.Descriptor(dst.All(), hawser.RightWrite).MarshalText() // give it to the sender, by any means
	if err != nil {
		log.Fatal(err)
	}

	var d hawser.Descriptor
	if err := d.UnmarshalText(descriptor); err != nil {
		log.Fatal(err)
	}
	remote, err := sender.Import(ctx, d) // connects
	if err != nil {
		log.Fatal(err)
	}
	src, err := sender.Alloc(1<<20, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	copy(src.Bytes(), "hello, memory of another process")
	if _, err := sender.Write(hawser.Write{Src: src.Slice(0, 32), Dst: remote.Slice(4096, 32), Imm: hawser.Imm(7)}); err != nil {
		log.Fatal(err)
	}

	if err := receiver.Counter(7).Wait(ctx, 1); err != nil { // the bytes are there
		log.Fatal(err)
	}
	fmt.Printf("%s\n", dst.Bytes()[4096:][:32])
	// Output: hello, memory of another process
}

// Pages of a paged cache: one operation, one immediate per page, and a queue that allocates nothing.
func ExampleQueue() {
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
	const page = 32 << 10
	src, err := a.Alloc(16*page, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	dst, err := b.Alloc(16*page, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	remote, err := a.Import(ctx, dst.Descriptor(dst.All(), hawser.RightWrite))
	if err != nil {
		log.Fatal(err)
	}
	q, done := a.NewQueue(8), make([]hawser.Done, 8)
	err = q.WritePages(hawser.WritePages{
		PageLen: page, Imm: hawser.Imm(1),
		Src: hawser.Pages{Region: src, Indices: []uint32{3, 5, 8}, Stride: page},
		Dst: hawser.RemotePages{Remote: remote, Indices: []uint32{0, 9, 4}, Stride: page},
	}, 42)
	if err != nil {
		log.Fatal(err)
	}
	n, err := q.Wait(ctx, done)
	if err != nil {
		log.Fatal(err)
	}
	if err := b.Counter(1).Wait(ctx, 3); err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "operation", done[0].Cookie, done[0].Err, "and", b.Counter(1).Load(), "pages")
	// Output: 1 operation 42 <nil> and 3 pages
}
