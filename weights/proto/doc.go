// Package proto is the protocol of a weight push: the wire format, and three state machines, one for each role. The [Controller] runs
// epochs, a [Publisher] is a rank that has the new weights, a [Receiver] one that serves them.
//
// A machine is a step core. It owns everything that the protocol must remember and does nothing by itself: no goroutine, lock, clock or
// I/O, and nothing depends on the order of a map. Each event is a method that takes the time; whatever the machine wants done it says,
// during the call and in order, to the interface that it was made with ([ControllerOut], [PublisherOut], [ReceiverOut]). These methods
// must not call the machine: what they begin is answered later, by the event that their comment names. Next says when Tick is due.
// The same machines run over engines (package weights), over simulated networks, and over the model of a network in the tests here.
//
// One machine is one engine: its [ID] is the engine's, random per Open, so a process that was started again is another member and has
// forgotten everything, the memory of its weights included.
//
// # Who calls what
//
// The caller (the shell) owns connections, memory, plans and the disk. It gives the machine
//   - Message, with each message that came, and from whom;
//   - PeerDown, when the session with an engine has ended: no message of that session comes after it; and Controller (members only),
//     when it has a session with a controller;
//   - Blob, when a plan's slice or a layout that was wanted has come and its hash is right;
//   - Tick, at the time of Next;
//   - the answer to each wish: Adopted after Adopt, Granted after Grant, Fenced or Unfenced after Fence, and so on.
//
// and the orders of its user: Push and Leave of a Publisher, Suspend and Awake of a Receiver, Update, Rollback and Decide of a
// Controller. Large things do not travel in messages: these name them by their SHA-256, who misses one says so, and the shell sends
// it (Out.Blob there, the event Blob here).
//
// # Messages
//
// The network delivers each message at most once, in any order, and may lose it. What matters is sent again until it is acknowledged
// ([Ack]) or has lost its meaning; so every handler is idempotent, and one that came too early is kept. An epoch is named by its
// [Key]: the full term of the controller that began it, and its number.
//
// Owner: whoever made the machine, who serializes all calls.
package proto
