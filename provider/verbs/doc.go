// Package verbs is the network of RDMA cards: reliable connections over libibverbs, on RoCE v2, InfiniBand and soft-RoCE.
//
// # Loading
//
// libibverbs is loaded when devices are looked for and /sys/class/infiniband has some; a binary runs without it, and Devices says then what
// to install. What is used of its binary interface is declared in abi.h, so building needs a C compiler and no header of rdma-core. Without cgo the package
// builds too, and has no devices.
//
// # Devices
//
// There is a device for each port that is active, named as in "mlx5_0/1". On Ethernet it is reached by one entry of its GID table: of
// type RoCE v2, equal to an address that its interface has now, and never link-local; IPv4 before global IPv6 before unique local.
// Options.GIDIndex names another one.
//
// # Queue pairs
//
//	control  ◄──►  records (64 bytes: grants, credit, hello, goodbye) and messages, both written into the peer's inbox
//	out       ──►  our writes
//	in       ◄──   the peer's
//
// All receives are alike, without bytes, and shared by all peers (one shared receive queue): everything that arrives is a write with an
// immediate, and Poll posts as many again as were used, in the same crossing to C. Each peer has a share of them, which the sender
// knows: it sends no more than it has credit for, and the receiver's records give it back. So no receive is ever missing, however long
// an owner does not poll; what has no credit waits in the Domain. Shares of the completion queue are given out the same way, so that
// it cannot overrun. A peer that takes more than its share is disconnected.
//
// A batch of Post goes to the card in one crossing, as a chain and a doorbell for each 64 writes to a queue pair, and every sixteenth write
// and the last ask for a completion.
//
// # Keys
//
// The card enforces whole registrations, for all peers alike. What a peer may write to, the writer checks: Grant tells the peer key, place
// and range, and is ErrBusy until the peer has said that it knows. So a bad key or range ends as StatusAccess without the card,
// and Caps.GrantRange is false: it holds for peers that keep the protocol. Deregister takes memory that peers may write to away from the
// card at once, and other memory when the card has read what was posted from it. A write that is on its way then ends the queue pair;
// the writer takes a new one, and goes on behind that write (renew.go).
//
// # The end of a connection
//
// Fence has all queue pairs of the peer fail, waits until they are empty, takes what arrived, and destroys them: the card executes nothing
// of the peer any more, whatever it does. Whoever leaves says goodbye. A peer that dies without one is noticed by writes of no bytes
// that a card answers by itself, every quarter of a second: with the default time-outs within 0.8 s of its death, and within 2.2 s over a
// card that waits four times as long as it is told, as the specification allows.
//
// # Soft-RoCE
//
// What tests over rdma_rxe (linux 6.1) had to know: it has no event for the last receive of a queue pair, and needs none; a link
// that is down gives local operation errors; 7 retries are endless; the card of a process answers also while it is stopped; on a machine
// that is slow to answer it finds writes invalid that it sends again, which are sent anew over a new queue pair.
//
// # Ownership
//
// A Domain has one owner, like every other. The steps that may take long, because the kernel looks for the peer, run on goroutines, which
// Close joins.
package verbs
