// Package ofi is the networks of libfabric: AWS EFA and whatever else libfabric drives with reliable datagrams. libfabric is loaded at
// run time, and nothing of it is needed to build; releases 1.17 and 2.x work.
//
// # Networks
//
// [New] without a name takes NICs alone. Options.Provider names one of libfabric's providers, which may be one in software: "tcp", "shm",
// "udp;ofi_rxd". They are slower than the packages tcp and shm and serve tests, and hosts that have libfabric in common with others.
//
// # How a Domain uses libfabric
//
// One endpoint of a Domain carries control messages: greetings, what a key is, messages and their pieces, ends. Writes go, on a NIC,
// from the same endpoint to that of the peer. A network in software has an endpoint for the writes of each connection, because closing
// it is the only way to end what is under way: such a provider goes on receiving a write whose registration has ended, and has no other
// handle on one peer. All endpoints share one completion queue, so that a Poll is one crossing into C, as is a Post.
//
//   - A write with an immediate is fi_writemsg with FI_REMOTE_CQ_DATA: the immediate in the lower half of 64 bits, the receiver's own
//     handle of the writer in the upper half, with its generation, so that what is late is not taken for another connection's. Where the data has 4 bytes (EFA), the writer is
//     known by its address; see source.go. That has not been run on an EFA.
//     With 8 bytes the handle is what the writer says: a peer that guesses another's can write immediates, and over shm counts, in its
//     name. It writes to no memory but what it was granted. The peers on such a network are one domain of trust.
//   - A write completes when it has been placed (FI_DELIVERY_COMPLETE); over shm and tcp see ack.go.
//   - A grant is a registration of its range for one peer, closed when the grant ends. A writer asks what a key is when it meets it the
//     first time, and checks ranges itself: what is wrong never reaches libfabric, which would end the connection for it (EFA: the
//     process). A key that ends is told to the writer; a write that is under way then ends its connection (Caps.AccessEnds).
//   - A message is announced; the receiver's Domain takes it when there is a receive, whole if it is short, in pieces if not. What waits
//     is bounded: at the receiver by maxAnnounced a peer, at the sender by Caps.PeerDepth.
//   - FI_EAGAIN leaves requests in the peer's queue. perVisit requests of a peer are posted at once, with FI_MORE on all but the last.
//
// # Ends
//
// Disconnect, Fence, a goodbye, an error of a write, or the death of a process of this host end a connection: its registrations are
// closed, the queue is read until it is empty, its endpoint is closed or, where closing does not take writes back (NICs, shm), its
// writes are waited for, at most Caps.DrainBound. Then what is left is flushed. Everything that ended well at the writer was in the
// receiver's queue before, and is delivered.
//
// # Sleep
//
// Arm has the owner's Bell watch libfabric's descriptor where the network is a NIC and has one. Networks in software make progress only
// when they are polled (and 1.17 keeps pointers to endpoints that were closed in its wait sets): a timer wakes the owner, after 0.1 ms
// and, while nothing happens, after up to 5 ms.
//
// # Faults of libfabric
//
// The native tcp provider (1.17 as "net", 2.x as "tcp") reads an endpoint that was closed when a socket had been accepted for it and the
// request on that socket had not come yet: such sockets are ended first, see accepted.go. Since 2.0 shm crashes, and is refused.
//
// # What libfabric takes with it
//
// Libraries that libfabric brings install signal handlers when they are loaded; the process's own are put back. Environment
// variables are not changed.
package ofi
