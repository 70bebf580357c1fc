// Package kv moves the KV cache of a prompt from the process that computes it to the process that decodes it, layer by layer,
// while the computation still runs.
//
// A [Decoder] reserves pages for a whole prompt, takes an immediate value, and asks a [Prefiller] for the prompt. The Prefiller
// has an inference engine behind it (a [Handler]); whenever a layer of a pass is ready it writes that layer's pages
// straight into the Decoder's, each with the immediate. There is no message that says "done": the Decoder counts, and pages
// times planes times layers writes make the request ready.
//
//	d, err := kv.NewDecoder(eng, kv.DecoderConfig{Geometry: g, Views: views, Pool: pool})
//	p, err := d.Fetch(ctx, kv.FetchRequest{ID: "81f2", Tokens: 6758, From: addr})
//	result, err := p.Wait(ctx)   // result.Pages hold the prompt
//	defer result.Release()
//
// and on the other side, from the inference engine:
//
//	pass := pf.NewPass()
//	pass.Add(job, kv.Span{First: 0, N: 6758})
//	pf.Begin(pass)
//	for layer := range layers {
//		compute(layer)
//		pass.LayerReady(layer, false)
//	}
//
// # Who owns a page
//
// The caller of Fetch and the writing Prefiller hold a page together; it is free when both are done with it. The caller is
// done when it releases the [Result], or at once when the request fails or is cancelled. The Prefiller is done when
// everything has been counted, or when it has said how many writes it posted and that many have been counted, or when
// a fence proves that nothing of it can land any more. Time alone never frees a page: while a fence has no proof, its pages
// are quarantined. [Pending.Quiesced] tells when the Prefiller is done.
//
// Source pages are held until the writes that read them have completed; [Handler].Stop tells when.
//
// # Failures
//
// A peer that dies or falls silent fails its requests with ErrPeerDown, unless the fence shows that everything had arrived. A
// peer that breaks the protocol costs itself the link and nobody else anything. Messages that are lost are repeated; those
// that come twice, late or in another order do nothing. fetchStep and serveStep are the two state machines behind that; their
// scripts in testdata read as their specification.
//
// # Limits of this version
//
// One prefiller and one decoder per request, equal geometry on both sides, whole prompts. A Decoder or Prefiller takes all
// messages of its engine, so an engine serves one of them, and nothing else may call Receive on it.
package kv
