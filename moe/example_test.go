package moe_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"sync"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/backend/cpu"
)

// floats is a tensor of float32 rows.
func floats(rows, columns int, v ...float32) moe.Tensor {
	t := moe.Tensor{Data: make([]byte, 4*rows*columns), Type: backend.F32, Shape: [3]int{0, rows, columns}}
	for i, x := range v {
		binary.LittleEndian.PutUint32(t.Data[4*i:], math.Float32bits(x))
	}
	return t
}

func at(t moe.Tensor, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(t.Data[4*i:]))
}

// Two ranks, each with one expert: expert 0 doubles, expert 1 adds a hundred. Each rank has one token, which goes to both.
func Example() {
	ctx := context.Background()
	var together moe.Local // in real life the ranks are processes, and meet in a directory or a registry
	together.Ranks = 2
	var all sync.WaitGroup
	results := make([]string, 2)
	for rank := range 2 {
		all.Go(func() {
			line, err := oneStep(ctx, &together, rank)
			if err != nil {
				line = err.Error()
			}
			results[rank] = line
		})
	}
	all.Wait()
	for rank, line := range results {
		fmt.Println("rank", rank, line)
	}
	// Output:
	// rank 0 has [51.5 53]
	// rank 1 has [56 57.5]
}

func oneStep(ctx context.Context, together *moe.Local, rank int) (line string, err error) {
	eng, err := hawser.Open(ctx, hawser.Options{})
	if err != nil {
		return "", err
	}
	defer eng.Close(ctx)
	cpus, err := cpu.New(1)
	if err != nil {
		return "", err
	}
	defer cpus.Close()
	group, err := moe.New(ctx, eng, cpus, together, moe.Config{
		MaxRanks: 2, Rank: rank, MaxTokens: 1, Hidden: 2, TopK: 2, Experts: 2, In: backend.F32, Wire: backend.F32,
	})
	if err != nil {
		return "", err
	}
	defer group.Close(ctx)

	in := moe.Input{
		N: 1, X: floats(1, 2, float32(3*rank+1), float32(3*rank+2)), Weights: floats(1, 2, 0.5, 0.5),
		IDs: moe.Tensor{Data: []byte{0, 0, 0, 0, 1, 0, 0, 0}, Type: backend.I32, Shape: [3]int{0, 1, 2}},
	}
	out, sum := moe.Output{X: floats(2, 2)}, floats(1, 2)
	sent, err := group.Lane(0).DispatchSend(ctx, &in)
	if err != nil {
		return "", err
	}
	rows, err := sent.Recv(ctx, &out)
	if err != nil {
		return "", err
	}
	y := floats(2, 2)
	for i := range 2 * int(rows.Counts()[0]) { // the expert of this rank
		v := at(out.X, i)
		if rank == 0 {
			v *= 2
		} else {
			v += 100
		}
		binary.LittleEndian.PutUint32(y.Data[4*i:], math.Float32bits(v))
	}
	back, err := rows.CombineSend(ctx, y)
	if err != nil {
		return "", err
	}
	if err := back.Recv(ctx, sum, moe.CombineOpts{}); err != nil {
		return "", err
	}
	return fmt.Sprintf("has [%v %v]", at(sum, 0), at(sum, 1)), nil
}
