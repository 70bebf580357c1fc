// Package simllm is an inference engine without a model: it takes as long as one, and moves as many bytes as one.
//
// [Engine] is the engine: a scheduler of passes of at most 16,384 tokens, a prefix cache, layers that take the time that a [LayerTime]
// says, and pages filled with content that can be checked. A [Prefiller] serves prompts with it, through package kv. A [Decoder]
// replays a trace against prefillers: requests arrive at their time, fetch what the own prefix cache lacks, check every byte, and hold
// their pages as long as the output would take to decode.
//
//	d, err := simllm.NewDecoder(eng, simllm.DecodeConfig{Shape: shape, From: addrs, Requests: trace.Generate(trace.Config{Requests: 500})})
//	tally, err := d.Run(ctx, time.Time{})
//	fmt.Println(tally.Report().VerifiedRequests, tally.Report().CorruptBytes)
//
// Both own what they make (memory, pool, goroutines) until Run returns; the engine is the caller's.
package simllm
