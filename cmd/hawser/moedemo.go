package main

import (
	"context"
	"fmt"
)

// moeActRanks are the processes of the act of hawser demo that checks MoE layers.
const moeActRanks = 4

// moeAct sends tokens to the ranks of their experts and back, and compares every byte.
func (c *demoCmd) moeAct(ctx context.Context, u *ui) (*moeCheckReport, error) {
	check := moeCheckCmd{
		Ranks: moeActRanks, Steps: c.Steps, Provider: "shm", Routing: "mix", Seed: 1, Tokens: 16, Hidden: 256, Experts: 16, TopK: 4,
		DType: "f32",
	}
	if len(c.Provider) > 0 {
		check.Provider = string(c.Provider[0])
	}
	u.printf("%d processes: the ranks of an MoE layer send tokens to the ranks of their experts, and get weighted sums back, in %d steps of\n"+
		"changing shapes; every byte that arrives is compared.\n", moeActRanks, c.Steps)
	if err := check.check(); err != nil {
		return nil, err
	}
	r, err := check.all(ctx, u)
	if err != nil {
		return r, fmt.Errorf("demo: %w", err)
	}
	u.printf("%s over %s, %s written to other ranks, in %.1f s\n", r, r.Provider, bytesText(int64(r.Bytes)), r.Seconds)
	return r, nil
}
