package weights_test

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights"
)

// sharded is a matrix of 4 x 4 elements of BF16 on two ranks that cut one of its dimensions.
func sharded(side string, dim int) *reshard.Layout {
	return &reshard.Layout{
		Side:    side,
		Tensors: []reshard.Tensor{{Name: "head.weight", Shape: []int64{4, 4}, DType: reshard.BF16}},
		Grids: []reshard.Grid{{
			Tensors: []int{0}, Offsets: []int64{0}, Mesh: reshard.Mesh{Dims: []string{"rank"}, Shape: []int{2}},
			Place: []reshard.Placement{{Kind: "shard", Dim: dim}},
		}},
		Buffers: [][]int64{{16}, {16}},
		Topo:    reshard.Topology{Instance: []int{0, 0}},
	}
}

// Two trainers hold rows of a matrix, the two ranks of an inference engine hold columns. In a cluster each of the five is a process of its own.
func Example() {
	ctx := context.Background()
	ctl := open("controller")
	defer ctl.Close(ctx)
	controller := must(weights.NewController(ctl, weights.ControllerOptions{Expect: 4}))
	defer controller.Close(ctx)

	infer, train := sharded("infer", 1), sharded("train", 0)
	var memory []*hawser.Region
	for rank := range 2 {
		eng := open(fmt.Sprint("infer-", rank))
		defer eng.Close(ctx)
		memory = append(memory, must(eng.Alloc(16, hawser.MemOptions{})))
		r := must(weights.NewReceiver(eng, weights.ReceiverOptions{Controller: ctl.Addr(), Rank: rank, Layout: infer, Regions: memory[rank:]}))
		defer r.Close(ctx)
	}
	pushed := make(chan error, 2)
	for rank := range 2 {
		eng := open(fmt.Sprint("train-", rank))
		defer eng.Close(ctx)
		rows := must(eng.Alloc(16, hawser.MemOptions{}))
		for i := range 8 {
			rows.Bytes()[2*i] = byte(8*rank + i) // the element's index
		}
		p := must(weights.NewPublisher(eng, weights.PublisherOptions{Controller: ctl.Addr(), Rank: rank, Layout: train, Regions: []*hawser.Region{rows}}))
		defer p.Close(ctx)
		go func() {
			_, err := p.Push(ctx, 1, nil)
			pushed <- err
		}()
	}
	report := must(controller.Update(ctx, 1))
	fmt.Println(<-pushed, <-pushed)
	fmt.Printf("v%d, %d bytes, instances %v\n", report.Version, report.Bytes, report.Serving)
	for rank, m := range memory {
		fmt.Print("rank ", rank, ":")
		for i := range 8 {
			fmt.Print(" ", m.Bytes()[2*i])
		}
		fmt.Println()
	}
	// Output:
	// <nil> <nil>
	// v1, 32 bytes, instances [0]
	// rank 0: 0 1 4 5 8 9 12 13
	// rank 1: 2 3 6 7 10 11 14 15
}

func open(name string) *hawser.Engine {
	return must(hawser.Open(context.Background(), hawser.Options{Name: name}))
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}
