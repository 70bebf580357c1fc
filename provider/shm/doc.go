// Package shm is the provider for processes of one user on one host. It needs no privilege, no device and no file.
//
// A write is one copy, done by the writer's owner inside Post and Poll, from its own memory into a mapping of the peer's memory.
// Memory that is granted is best a sealed memfd (package mem makes them); it travels over an abstract unix socket, as do
// the pages that two sides share. Into memory that has none the receiver copies by itself; see Foreign memory. The pages:
//
//   - the bell page of a Domain, which its peers map read-only: whether its owner sleeps, and which of its memory is alive;
//   - the pair page of a connection: for each direction a ring of immediates, a ring of message bytes, loans and the answers to
//     them, the writer's slot and the reader's revoked word.
//
// # What is guarded against what
//
// Peers are of one user id, which the kernel attests on both sides of each connection, and so are one trust domain: whoever
// may trace a process may write into it. Within it a peer that breaks the protocol loses its connection and hurts nobody else:
// positions, lengths, keys and descriptors that come from it are checked before use, and each side trusts only its private copy
// of its own positions. What is not guarded is memory that was granted to a peer on purpose: a hostile peer need not
// obey Fence and Deregister there.
//
// # Fence
//
// Long writes to memory that no cache holds bypass the caches. Such stores are in no order with others, so a batch of them ends
// with a store fence, before the writer's second look: what follows about a copy holds for both kinds.
//
// The writer's slot and the reader's revoked word are a lock in the manner of Dekker. All four accesses are sequentially
// consistent:
//
//	writer: slot = busy; if revoked, stop; copy; if revoked, do not publish; publish; if revoked, flush; slot = idle
//	reader: revoked = 1; if slot is idle, fenced
//
// When the reader finds the slot idle, its load comes after its own store of revoked. A writer that stores busy after that
// load must then find revoked set, and writes nothing; one that stored busy before it has also stored idle before it, so that
// its copy and what it published are complete and visible. When the slot is busy the reader looks again in every Poll: a writer
// that runs ends its chunk within microseconds. One that was stopped by a signal keeps the slot busy, and Fence ends with
// StatusUnfenced; Completion.Detail is then one more than the index of the region that it was changing. The end of the
// connection's socket is proof as well: either the writer's owner has closed it, who was then not in a copy, or the kernel has,
// after the last thread of the process had stopped.
//
// The writer's last look is for the counts: a reader that did not wait for the slot (Disconnect, or a fence that gave up) may have
// emptied its rings before the publication, and then nothing of the batch may end with ok. Refusals are found by the writer
// and told to nobody: there is no KindRefused here.
//
// # Foreign memory
//
// Nobody else can map memory without a memfd, so a writer lends its source instead: it puts a loan {address, destination} beside its
// entry in the ring of immediates, and the receiver's owner moves the bytes in its Poll. A source with a memfd was shown to the
// receiver before, which maps it for reading and copies; any other source it reads with process_vm_readv, up to 64 loans in a system
// call. Each call also reads a random number that lies in the writer's process and nowhere else: the process had not died, nor executed
// another program, and no other one had got its number. Then the receiver answers the loan, which completes the write.
//
// Entries keep one order whoever moves the bytes: a write that is copied by its writer waits for the answers to the loans before it. A
// fence of the writer needs no proof: it is the receiver that stops. The other direction has the lock of the fence again: while it
// moves bytes, the receiver's slot in its own lane is slotPull, and a writer that ends the connection sets revoked, then gives its
// sources back when the slot is something else. What a receiver read after that does not count, as it looks at revoked once more.
//
// # Ownership
//
// A Domain has no goroutine. Its owner calls everything; the bell page is written by it alone, and of a pair page each word has
// one writer.
//
//	p := shm.New()
//	devs, err := p.Devices(ctx)
//	dom, err := p.Open(ctx, devs[0], provider.Config{Bell: parker})
package shm
