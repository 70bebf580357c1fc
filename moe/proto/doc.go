// Package proto is the protocol of MoE dispatch and combine: sizes and layouts, the records that travel, and two state machines. A
// [Lane] runs the steps of one lane of one rank, a [Group] changes the view: who takes part.
//
// A machine is a step core. It owns everything that the protocol must remember and does nothing by itself: no goroutine, lock, clock or
// I/O. Each event is a method; whatever the machine wants done it says, during the call and in order, to the interface that it was made
// with ([LaneOut], [GroupOut]). These methods must not call the machine. A step of a Lane allocates nothing.
//
// # A step
//
// Send order is (destination, expert, token, column). So each destination gets one contiguous run of records: the first [Config.FirstChunk]
// of them travel with the header into a place that only this source writes, the rest in chunks, into a pool that the receiver owns and
// grants piece by piece. Results come back into one slot per record. There is no barrier, because
//
//   - who begins a step has the results of the one before from everybody, and each of them sends these after it has unpacked all records;
//   - the header of a step tells that the results of the step before were summed, so their memory may be written again;
//   - a chunk of the pool is granted again only after it was counted and unpacked, a slot of a grant only after its chunk was counted;
//   - a value (a kind of immediate towards a peer) is used again only when the Transfer that used it has ended: so a part that was
//     counted is never placed again, even if its acknowledgement is lost and its rail dies;
//   - local memory is written again only when no Transfer reads it.
//
// # Failure
//
// A peer that owes something when the time is over, or that went down, is missing: the step ends without it, and after that the lane
// refuses steps until the next view. A lane that stops says so to everybody, once per view ([Cancel]). A view begins by
// [Group.Activate]: all members say that they are quiet, who did not is fenced, and only then is memory used again.
//
// Owner: whoever made a machine, who serializes all calls.
package proto
