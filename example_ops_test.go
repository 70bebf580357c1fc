package hawser_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/hawser-project/hawser"
)

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

// One source, many peers: each gets its own part, and one immediate. The template makes the next round cheap.
func ExampleTemplate() {
	ctx := context.Background()
	sender, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close(ctx)
	src, err := sender.Alloc(4096, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var receivers []*hawser.Engine
	var regions []*hawser.Region
	round := hawser.Scatter{Src: src.All(), Imm: hawser.Imm(1)}
	for i := range uint64(3) {
		e, err := hawser.Open(ctx, hawser.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer e.Close(ctx)
		dst, err := e.Alloc(4096, hawser.MemOptions{})
		if err != nil {
			log.Fatal(err)
		}
		remote, err := sender.Import(ctx, dst.Descriptor(dst.All(), hawser.RightWrite))
		if err != nil {
			log.Fatal(err)
		}
		receivers, regions = append(receivers, e), append(regions, dst)
		round.Targets = append(round.Targets, hawser.Target{Dst: remote.All(), SrcOff: i * 8, Len: 8})
	}
	tmpl, err := sender.Prepare(round)
	if err != nil {
		log.Fatal(err)
	}

	q, done := sender.NewQueue(1), make([]hawser.Done, 1)
	args := tmpl.Args()
	args.Targets = make([]hawser.TargetArgs, 3) // kept from round to round
	for r := range uint64(2) {
		copy(src.Bytes(), fmt.Sprintf("token a%dtoken b%dtoken c%d", r, r, r))
		for i := range args.Targets {
			args.Targets[i] = hawser.TargetArgs{SrcOff: uint64(i) * 8, DstOff: r * 8, Len: 8}
		}
		if err := q.Submit(tmpl, args, r); err != nil {
			log.Fatal(err)
		}
		if _, err := q.Wait(ctx, done); err != nil || done[0].Err != nil { // then the source may change
			log.Fatal(err, done[0].Err)
		}
	}
	for i, e := range receivers {
		if err := e.Counter(1).Wait(ctx, 2); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", regions[i].Bytes()[:16])
	}
	// Output:
	// token a0token a1
	// token b0token b1
	// token c0token c1
}

// A template is bound to memory. When a peer hands out other memory, Rebind keeps the rest of what was prepared; a mask chooses among
// the targets of a round.
func ExampleTemplate_Rebind() {
	ctx := context.Background()
	sender, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close(ctx)
	receiver, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer receiver.Close(ctx)
	src, err := sender.Alloc(4096, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	copy(src.Bytes(), "weights")
	var regions [2]*hawser.Region
	var remotes [2]*hawser.Remote
	for i := range regions {
		if regions[i], err = receiver.Alloc(4096, hawser.MemOptions{}); err != nil {
			log.Fatal(err)
		}
		desc := regions[i].Descriptor(regions[i].All(), hawser.RightWrite)
		if remotes[i], err = sender.Import(ctx, desc); err != nil {
			log.Fatal(err)
		}
	}
	old, err := sender.Prepare(hawser.Scatter{Src: src.All(), Targets: []hawser.Target{
		{Dst: remotes[0].Slice(0, 64), SrcOff: 0, Len: 3},
		{Dst: remotes[0].Slice(64, 64), SrcOff: 3, Len: 4},
	}})
	if err != nil {
		log.Fatal(err)
	}

	tmpl, err := old.Rebind(func(*hawser.Remote) *hawser.Remote { return remotes[1] })
	if err != nil {
		log.Fatal(err)
	}
	args := tmpl.Args()
	args.Imm = hawser.Imm(7)
	args.Mask = []uint64{1 << 1} // the second target alone
	transfer, err := tmpl.Submit(args)
	if err != nil {
		log.Fatal(err)
	}
	if err := transfer.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	if err := receiver.Counter(7).Wait(ctx, 1); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%q %q\n", regions[0].Bytes()[64:68], regions[1].Bytes()[64:68])
	// Output: "\x00\x00\x00\x00" "ghts"
}

// Targets whose peer is down fail by name; the others are written.
func ExampleEngine_Scatter() {
	ctx := context.Background()
	sender, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer sender.Close(ctx)
	src, err := sender.Alloc(4096, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	var receivers []*hawser.Engine
	request := hawser.Scatter{Src: src.All()}
	for i := range uint64(2) {
		e, err := hawser.Open(ctx, hawser.Options{})
		if err != nil {
			log.Fatal(err)
		}
		defer e.Close(ctx)
		dst, err := e.Alloc(4096, hawser.MemOptions{})
		if err != nil {
			log.Fatal(err)
		}
		remote, err := sender.Import(ctx, dst.Descriptor(dst.All(), hawser.RightWrite))
		if err != nil {
			log.Fatal(err)
		}
		receivers = append(receivers, e)
		request.Targets = append(request.Targets, hawser.Target{
			Dst: remote.All(), SrcOff: i * 1024, Len: 1024 - i, // lengths may differ
			Imm: hawser.Imm(uint32(i)), Parts: 4,
		})
	}
	if err := receivers[0].Close(ctx); err != nil {
		log.Fatal(err)
	}
	transfer, err := sender.Scatter(request)
	if err != nil {
		log.Fatal(err)
	}
	err = transfer.Wait(ctx)
	var failed *hawser.ScatterError
	if errors.As(err, &failed) && errors.Is(err, hawser.ErrPeerDown) {
		fmt.Println("target", failed.Failed[0].Index, "of", failed.Targets, "is down")
	}
	if err := receivers[1].Counter(1).Wait(ctx, 4); err != nil {
		log.Fatal(err)
	}
	fmt.Println("the other got", request.TargetImmCount(1), "parts")
	// Output:
	// target 0 of 2 is down
	// the other got 4 parts
}
