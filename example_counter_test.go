package hawser_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/hawser-project/hawser"
)

// two engines in this process, connected: to is the second one as a peer of the first, from the first one as a peer of the second.
func two(ctx context.Context) (a, b *hawser.Engine, to, from *hawser.Peer) {
	var err error
	if a, err = hawser.Open(ctx, hawser.Options{Name: "a"}); err != nil {
		log.Fatal(err)
	}
	if b, err = hawser.Open(ctx, hawser.Options{Name: "b"}); err != nil {
		log.Fatal(err)
	}
	if to, err = a.Connect(ctx, b.Addr()); err != nil {
		log.Fatal(err)
	}
	if from, err = b.Connect(ctx, a.Addr()); err != nil {
		log.Fatal(err)
	}
	return a, b, to, from
}

// A wait that knows who has to send what: its error names those who have not.
func ExampleCounter_Expect() {
	ctx := context.Background()
	a, b, to, from := two(ctx)
	defer b.Close(ctx)
	for range 2 {
		if _, err := a.Signal(hawser.Signal{To: to, Imm: 7}); err != nil {
			log.Fatal(err)
		}
	}
	if err := a.Close(ctx); err != nil { // sends what is under way, and goes
		log.Fatal(err)
	}
	err := b.Counter(7).Expect(ctx, map[*hawser.Peer]uint64{from: 3})
	var missing *hawser.MissingError
	if errors.As(err, &missing) && errors.Is(err, hawser.ErrPeerDown) {
		m := missing.Missing[0]
		fmt.Printf("%s has sent %d of %d\n", m.Peer.Name(), m.Have, m.Want)
	}
	// Output: a has sent 2 of 3
}

// A count in memory, for a program that cannot call the engine.
func ExampleCounter_Mirror() {
	ctx := context.Background()
	a, b, to, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	words, err := b.Alloc(8, hawser.MemOptions{})
	if err != nil {
		log.Fatal(err)
	}
	c := b.Counter(1)
	if err := c.Mirror(words.All()); err != nil {
		log.Fatal(err)
	}
	for range 5 {
		if _, err := a.Signal(hawser.Signal{To: to, Imm: 1}); err != nil {
			log.Fatal(err)
		}
	}
	if err := c.Wait(ctx, 5); err != nil {
		log.Fatal(err)
	}
	if err := c.Mirror(hawser.Slice{}); err != nil { // the word is ours again
		log.Fatal(err)
	}
	fmt.Println(binary.NativeEndian.Uint64(words.Bytes()))
	// Output: 5
}

// A value of its own for each request, so that what comes late for one is never counted for another.
func ExampleImms_Take() {
	ctx := context.Background()
	a, b, to, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	for request := range 3 {
		c, err := b.Imms().Take()
		if err != nil {
			log.Fatal(err)
		}
		if _, err := a.Signal(hawser.Signal{To: to, Imm: c.Imm()}); err != nil { // the value travels to the sender with the request
			log.Fatal(err)
		}
		if err := c.Wait(ctx, 1); err != nil {
			log.Fatal(err)
		}
		fmt.Printf("request %d: %d\n", request, c.Load())
		if err := b.Imms().Put(c); err != nil {
			log.Fatal(err)
		}
	}
	// Output:
	// request 0: 1
	// request 1: 1
	// request 2: 1
}

// Values that both sides know by agreement, opened block by block.
func ExampleImms_Reserve() {
	ctx := context.Background()
	a, b, to, _ := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	const base, bits, blockBits = 0x10000, 12, 4 // 256 blocks of 16 values
	values, err := b.Imms().Reserve("experts", base, bits, blockBits)
	if err != nil {
		log.Fatal(err)
	}
	block, err := values.Open(3)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := a.Signal(hawser.Signal{To: to, Imm: base + 3<<blockBits + 5}); err != nil {
		log.Fatal(err)
	}
	i, err := hawser.WaitAny(ctx, block.Reach(1)...)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("value", i, "of the block")
	_, err = b.Imms().Reserve("somebody else", base, 4, 4)
	fmt.Println(err)
	// Output:
	// value 5 of the block
	// reserve 4 bits of immediates from 0x10000: busy: values 0x10000 .. 0x10fff are held by experts
}

func ExampleEngine_Barrier() {
	ctx := context.Background()
	a, b, to, from := two(ctx)
	defer a.Close(ctx)
	defer b.Close(ctx)
	var wg sync.WaitGroup
	member := func(e *hawser.Engine, others ...*hawser.Peer) {
		g, err := e.NewGroup(others)
		if err != nil {
			log.Fatal(err)
		}
		for range 3 { // one value serves every round
			if err := e.Barrier(ctx, g, 100); err != nil {
				log.Fatal(err)
			}
		}
	}
	wg.Go(func() { member(a, to) })
	wg.Go(func() { member(b, from) })
	wg.Wait()
	fmt.Println("together")
	// Output: together
}
