// Package simllm is an inference engine without a model: it takes as long as one, and moves as many bytes as one.
//
// [Prefill] serves prompts: it schedules passes of at most 16,384 tokens, lets each layer take the time that a [LayerTime] says,
// fills the layer's pages with content that only this request, layer and page have, and hands them to kv. [Decode] replays
// a trace against it: requests arrive at their time, fetch their cache, check every byte, and hold their pages as long as
// the output would take to decode.
//
//	report, err := simllm.Decode(ctx, eng, simllm.DecodeConfig{Geometry: g, From: addr, Requests: trace.Generate(trace.Config{Requests: 500})})
//	fmt.Println(report.VerifiedRequests, report.CorruptBytes)
//
// Both own what they make (memory, pool, goroutines) until they return; the engine is the caller's.
package simllm
