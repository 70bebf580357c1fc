// Package moe dispatches tokens to the ranks that hold their experts, and combines the experts' results, over the engine of package
// hawser.
//
// A [Group] is the ranks of one model; its [View] says who takes part, and changes when ranks die or come. A [Lane] is one ordered
// sequence of steps; lanes are independent, so that micro-batches overlap. A step has four calls: [Lane.DispatchSend] and [Pending.Recv]
// bring the rows, grouped by expert, and [Handle.CombineSend] and [PendingCombine.Recv] the weighted sums.
//
// The same ids, inputs, configuration and view give the same bytes, in whatever order things arrive, on any transport. There is no other
// mode.
//
// A rank that is missing fails no step: what it owed counts as nothing, the calls say so by a [PartialError], and the group needs a new view
// before the next step.
package moe
