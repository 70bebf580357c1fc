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
// # Concurrency
//
// Everything in this package is safe for concurrent use unless its comment says otherwise.
package hawser
