// Package kv moves the KV cache of a prompt from the processes that compute it to the process that decodes it, layer by layer,
// while the computation still runs.
//
// A [Decoder] reserves pages for what it lacks of a prompt, takes an immediate, and asks the members of a prefill instance for it. A
// [Prefiller] has an inference engine behind it (a [Handler]); whenever a layer of a pass is ready it writes that layer's pages straight
// into the Decoder's, each write with the immediate. There is no message that says "done": both sides plan the same writes, and
// the Decoder counts them.
//
//	d, err := kv.NewDecoder(eng, kv.DecoderConfig{Instance: "d0", Topology: t, Regions: regions, Pools: pools})
//	p, err := d.Fetch(ctx, kv.FetchRequest{ID: "81f2", Prompt: prompt, From: sources})
//	res, err := p.Wait(ctx)   // res.Pages hold the prompt
//	defer res.Release()
//
// (or [Decoder.Poll], one call for all requests, for callers that look again and again) and on the other side, from the inference engine:
//
//	pass := pf.NewPass()
//	pass.Add(job, proto.Span{First: 0, N: 6758})
//	base, err := pf.Begin(pass)
//	for layer := range layers {
//		compute(layer)
//		pass.LayerReady(rank, layer, false)   // or the device stores base + layer + 1 in the word of pf.Progress(rank)
//	}
//	pass.End()
//
// # What is where
//
// The protocol is two state machines, proto.Decoder and proto.Prefiller, which do nothing by themselves. This package runs them: a
// lock that serializes their calls, a clock, the engine's messages, counts and completions in, operations out. Package layout plans who
// writes what where, package pool lends pages and is the prefix cache. docs/kv.md describes all of it.
//
// # Who owns a page
//
// A request and its writers hold a page together; it is free when both are done with it. The request is done when its [Result] is
// released, or at once when it fails or is cancelled. A writer is done when everything has been counted, or when it has said how many
// writes it posted and that many have been counted, or when a fence proves that nothing of it can land any more. Time alone never frees
// a page: while a fence has no proof, its pages are quarantined. [Pending.Quiesced] tells when all writers are done.
//
// Source pages are held until the writes that read them have completed; Handler.Unpin tells when.
//
// # Limits
//
// A Decoder or Prefiller takes all messages of its engine, so an engine serves one of them, and nothing else may call Receive on it.
package kv
