package hawser_test

import (
	"bytes"
	"context"
	"fmt"

	"github.com/hawser-project/hawser"
)

// Messages are for what is short and goes both ways: requests, descriptors, answers. Their receiver learns who sent them.
func ExampleEngine_Send() {
	ctx := context.Background()
	a, b, to, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	must(a.Send(to, []byte("ping"))) // the bytes were copied

	question := must(b.Receive(ctx))
	fmt.Printf("%s: %s\n", question.From.Name(), question.Data)
	must(b.Send(question.From, []byte("pong")))

	answer := must(a.Receive(ctx))
	fmt.Printf("%s: %s\n", answer.From.Name(), answer.Data)
	// Output:
	// a: ping
	// b: pong
}

// A message that is too long for Send and too rare for registered memory, such as the metadata of a model.
func ExampleEngine_SendBulk() {
	ctx := context.Background()
	a, b, to, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	metadata := bytes.Repeat([]byte("tensor "), 100_000)
	sent := make(chan error, 1)
	go func() {
		last := uint64(0)
		err := a.SendBulk(ctx, to, metadata, func(sent, _ uint64) { last = sent })
		fmt.Println("the other side has", last, "bytes")
		sent <- err
	}()
	message := must(b.Receive(ctx))
	check(<-sent)
	fmt.Println(bytes.Equal(message.Data, metadata))
	// Output:
	// the other side has 700000 bytes
	// true
}

// A write that is counted in parts, so that the receiver can begin with what is there. Both sides know the number from the length.
func ExampleEngine_Write() {
	ctx := context.Background()
	a, b, _, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	const length = 1 << 20
	src := must(a.Alloc(length, hawser.MemOptions{}))
	dst := must(b.Alloc(length, hawser.MemOptions{}))
	remote := must(a.Import(ctx, dst.Descriptor(dst.All(), hawser.RightWrite)))

	transfer := must(a.Write(hawser.Write{
		Src: src.All(), Dst: remote.All(), Imm: hawser.Imm(3), Parts: hawser.PartsFor(length),
	}))
	check(b.Counter(3).Wait(ctx, uint64(hawser.PartsFor(length))))
	fmt.Println(b.Counter(3).Load(), "parts")

	check(transfer.Wait(ctx))
	clear(src.Bytes()) // it is ours again
	// Output: 16 parts
}

// An immediate without bytes; the receiver knows whose it is.
func ExampleEngine_Signal() {
	ctx := context.Background()
	a, b, to, from := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	must(a.Signal(hawser.Signal{To: to, Imm: 11}))
	check(b.Counter(11).Wait(ctx, 1))
	fmt.Println("from", from.Name()+":", b.Counter(11).From(from))
	// Output: from a: 1
}
