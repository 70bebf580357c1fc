// Package hawser moves bytes between the machines of LLM systems, point to point.
//
// An [Engine], one per process, owns memory, peers and networks. The contract that it offers is the common subset of the
// networks that exist, reliable but unordered: a one-sided [Write] into memory of a peer, optionally with a 32-bit
// immediate that the peer counts, and two-sided messages. There are no reads, no atomics and no ordering: a receiver
// learns that data are complete by counting immediates with a [Counter], never from the order of arrival.
//
//	eng, err := hawser.Open(ctx, hawser.Options{})
//	buf, err := eng.Alloc(1<<20, hawser.MemOptions{})
//	desc := buf.Descriptor(buf.All(), hawser.RightWrite) // give it to a peer, by any means
//
//	rem, err := eng.Import(ctx, desc)                    // on the peer; connects if needed
//	tr, err := eng.Write(hawser.Write{Src: own.All(), Dst: rem.Slice(0, n), Imm: hawser.Imm(7)})
//	err = tr.Wait(ctx)
//
//	err = eng.Counter(7).Wait(ctx, 1)                    // back on the owner: the bytes are there
//
// # Contract
//
// Source bytes belong to the engine from submit until the [Transfer] ends, destination bytes to the writer until the
// counter says so. A Transfer that ends without error has been placed in the peer's memory; one that ends with an
// error has stopped reading local memory, and errors.Is(err, ErrUnfenced) says that late bytes may still land at the
// peer. A write cannot be cancelled: a context that ends only stops the waiting.
//
// Memory is made with [Engine.Alloc], or was made by others (an mmap, a tensor) and is registered with [Engine.Register].
//
// # Operations
//
//   - [Engine.Write] copies a span, [Engine.WritePages] pages of one length, [Engine.Scatter] parts of one source to many
//     peers, [Engine.Signal] nothing but an immediate. How many immediates a request sends, ImmCount, depends on the
//     request alone.
//   - [Engine.Send] and [Engine.Receive] are messages of up to 64 KiB, [Engine.SendBulk] of up to 64 MiB.
//   - [Engine.Prepare] checks a request once, for a [Template] that is submitted often. A [Queue] submits without
//     allocating and collects the ends in batches.
//   - [Engine.Watch] calls a function when a word in memory changes.
//
// # Counting
//
// [Counter.Wait] waits for a number of arrivals, [Counter.Expect] for numbers from each of several peers, and then names who is
// missing; [WaitAll] and [WaitAny] wait for sets, [Counter.OnReach] calls a function, [Counter.Mirror] keeps the count in memory.
// [Engine.Barrier] is a round of signals in a [Group]. [Imms] lends values that count for one use only.
//
// # Peers
//
// A [Peer] is one identity: a restarted process is another one. A connection that is lost comes back by itself, in a new
// session, in which descriptors are imported anew; a network that fails under a session is replaced, and operations go on.
// [Engine.OnPeer] tells what happens. Before memory that a lost peer may still write to is used for something else, it is
// fenced: [Engine.Fence] for everything, [Region.Revoke] for one region.
//
// # What can be seen
//
// [Engine.Stats] is a snapshot, [Options].Log has a line for each connection and failure, [Options].Trace tells what happens as it
// happens, and [Engine.Flight] what happened last.
//
// # Errors
//
// Errors wrap one of the sentinels ([ErrPeerDown], [ErrStale], [ErrUnfenced], ...) for errors.Is. Arguments that are wrong are an
// ErrInvalid of the call itself, and then nothing was written. An operation that fails later ends with an [OpError] that names
// the peer, a scatter with a [ScatterError], a wait for peers with a [MissingError].
//
// # Concurrency
//
// Everything in this package is safe for concurrent use unless its comment says otherwise. Functions that are given to OnPeer,
// OnReach and OnStale run one at a time on a goroutine of the engine and may call it, except Close, which waits for them.
//
// The design, with the reasons, is docs/design.md of the repository.
package hawser
