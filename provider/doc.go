// Package provider is the contract between the engine and a kind of network.
//
// A [Provider] finds devices; Open turns one of them into a [Domain], which is one rail: its queues, its
// registered memory and its peers. The contract is the common subset of the networks that LLM systems run on:
// one-sided writes, writes that carry a 32-bit immediate, and two-sided messages; reliable, and in no order.
// There are no reads and no atomics.
//
// # Ownership
//
// A Domain has one owner, a goroutine that calls all of its methods; no Domain is safe for concurrent use. No
// method blocks except Close. The owner moves everything forward by calling Post and Poll: a provider may do work
// (copy bytes, read sockets) only inside them, a bounded amount per call. A provider that has goroutines of its
// own joins them in Close.
//
// The owner sleeps on a [Bell], which it hands to every Domain that it opens, so that one owner can sleep on
// several Domains. Before it sleeps it calls Arm on each of them.
//
// # Life of a peer
//
//	Offer ──► Connect ──► KindPeerUp ──► ... ──► KindPeerDown ──► gone
//	                                      (a failure, Disconnect or Fence)
//
// A connection is made by two owners that already talk to each other over an authenticated channel. Each calls
// Offer, sends the Addr over that channel, and calls Connect with the Addr it got; exactly one side is active.
// An Addr is a one-time secret: a connection whose secret does not match is refused.
//
// After a failure the provider completes everything that was outstanding to that peer as StatusFlushed, then
// delivers KindPeerDown, which is the last completion of the handle but KindFenced. The handle itself is released
// by Disconnect or Fence, which the owner calls also after KindPeerDown. Immediates and messages that arrived
// whole before the failure are delivered before KindPeerDown.
//
// # Counting
//
// Both sides can agree on what a connection did before it ended, by counting:
//
//   - Every write with an immediate that completed as StatusOK at the writer, whenever that was, is delivered as KindImm at the
//     receiver before its KindPeerDown and its KindFenced; every message that completed so as KindRecv (it was moved into
//     a receive that was posted). The reverse is not promised: what was delivered may end as StatusFlushed at the writer.
//   - That holds whichever side ends the connection and how. The exceptions are a peer that broke the protocol
//     (StatusProtocol) and a Domain that is closed or died, which delivers nothing any more.
//   - After KindFenced with StatusOK nothing is delivered and no byte changes. A writer that was stopped before
//     it finished a write finds it flushed when it goes on, never StatusOK.
//   - Where Caps.Refusals is true each refused write with an immediate is delivered as KindRefused under the same rules. Where it is
//     false the writer knows: it completes such a write as StatusAccess, and never as StatusFlushed once a later one was delivered.
//
// # Refusals
//
// A write outside of what was granted, under a key that has ended, or of another peer's, ends as StatusAccess and changes no byte; its immediate, if it
// has one, is not delivered. The connection goes on, and so does every other one.
//
// Where Caps.AccessEnds is true the connection of such a write may end, and no other. The first write that is refused ends as StatusAccess; everything
// else of the connection that was outstanding, other refused writes among it, ends as it would have or as StatusFlushed, in both directions.
// Then KindPeerDown comes on both sides, at the writer with StatusAccess, at the receiver with StatusAccess or, where its network does not say
// why, StatusPeerDown. Counting holds as for any other end, and a new connection of the two may be made at once.
//
// # Order
//
// On a network whose Caps say Ordered, the KindImm and KindRefused of one peer come in the order of posting, and so do its KindRecv;
// the two sequences say nothing about each other. When the connection ends, what is cut off is a suffix of each: those
// that were delivered are the first ones posted. Plain writes are visible with the first immediate that was posted
// after them. The order of the writer's own completions is not promised anywhere.
//
// # Memory visibility
//
// When Poll returns a KindImm, every byte of the write that carried it is visible to the owner, and to whoever
// the owner tells. Nothing is said about any other write.
//
// Package providertest is this contract as tests. Every provider passes it.
package provider
