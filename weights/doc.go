// Package weights pushes freshly trained weights from every training rank straight into the memory of the inference ranks, across two different
// shardings, with one-sided writes.
//
// A [Controller] collects the layouts of both sides, plans (package reshard), and runs epochs: attempts to bring one version to all inference
// engines. A [Publisher] is a training rank: Push stages what must be cast or quantized, writes it, and returns when the epoch is decided. A [Receiver] is an
// inference rank: it counts what arrives, compares digests, and switches with the other ranks of its instance, so that no instance ever serves bytes of two versions.
//
//	c, err := weights.NewController(eng, weights.ControllerOptions{StateDir: dir})              // anywhere
//	r, err := weights.NewReceiver(eng, weights.ReceiverOptions{Controller: addr, Rank: 3, Layout: infer, Regions: memory, Hooks: hooks})
//	p, err := weights.NewPublisher(eng, weights.PublisherOptions{Controller: addr, Rank: 7, Layout: train, Regions: memory})
//	report, err := p.Push(ctx, 42, nil)                                                          // on every training rank
//	report, err := c.Update(ctx, 42)                                                             // once
//
// # What is where
//
// The protocol is three state machines in package proto, which do nothing by themselves. This package runs them over engines: station (messages, timers), member (what publishers
// and receivers share), outbound and pipeline (writing), inbound and reception (counting and comparing), journal (decisions on disk). Package stage copies, casts and quantizes,
// package schedule decides which run goes next, package weightsim plays pushes that no machine here could carry. docs/weights.md describes all of it.
//
// # Who owns memory
//
// Regions are the caller's. From Push to its return a publisher's must not change. A receiver's are written to from the hook Pause (with a shadow: at any time, the copy that is
// not served) until the epoch ends; after an abort nothing can land in them any more when the receiver says that it has failed or serves again.
//
// # Limits
//
// Each takes all messages of its engine: nothing else may call Receive on that, and an engine serves one of them.
package weights
