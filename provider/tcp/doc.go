// Package tcp is the network that every host has: reliable byte streams through the kernel, in pure Go.
//
// A device is a local IP address. Opening it makes a [provider.Domain] with one listening socket on a port of the
// kernel's choice; each connected peer is one stream. Nothing is encrypted: what protects a connection is the
// 128-bit one-time secret of each Offer, which is as private as the channel that carries the Addr and the network
// between the hosts.
//
// # Ownership
//
// The owner of the Domain does all the work inside Post and Poll; the package has no goroutine. Sockets never
// block. They are in one epoll instance of the Domain (edge triggered), which Poll asks without waiting. The owner's
// Bell watches a second instance, the gate, that contains the first: Arm opens the gate and the next Poll closes it,
// so that a spinning owner does not wake the threads that wait behind the Bell with every packet. The socket that data came from
// last is read without asking for its event, for some microseconds; the others' events are asked for whenever that was in vain, and
// in every eighth Poll.
//
// # The wire
//
// A connection starts with one hello of [helloSize] bytes in each direction. After that each direction is a sequence of
// frames: a header of [headerSize] bytes and, for writes and messages, the payload.
//
//   - Writes are executed in order. The receiver counts them; the count travels back in every header (an ack frame carries it
//     alone) and completes the writer's requests up to it. A nack carries a count too and says that the last one of
//     it was refused. A writer has at most [peerDepth] writes that are not acked, so the receiver's memory of
//     refusals is bounded, and what is to be sent back is a state and not a queue: reading never waits for it.
//   - A write's payload is received straight into the registered memory. The key is looked up again before each piece, so that
//     nothing lands after Deregister; what remains of a refused payload is read and dropped.
//   - Messages need a receive that the peer's owner has posted, and receives are shared by all peers. So that a stream never
//     waits for one, each stream has room for [messageBytes] bytes in at most [messageCount] messages that came early. A sender
//     sends only what is sure to find room there: the receiver counts the messages that it has moved into receives, the
//     count travels in ack frames, and it both completes the sends and frees the room. Until then messages wait at the sender,
//     where writes pass them.
//   - A frame that breaks these rules ends the connection with StatusProtocol; Completion.Detail says which rule.
//
// # Example
//
//	devs, err := tcp.New().Devices(ctx)
//	dom, err := tcp.New().Open(ctx, devs[0], provider.Config{Bell: parker})
//	peer, addr, err := dom.Offer()       // addr goes to the other side, theirs comes here
//	err = dom.Connect(peer, theirs, true) // one side is active
//	for {
//		n, err := dom.Poll(cs)           // KindPeerUp, then whatever happens
//		if n == 0 && !dom.Arm() {
//			parker.Park(time.Second)
//		}
//	}
package tcp
