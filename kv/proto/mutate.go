package proto

// mutation names a guard of the protocol that a test can take away, to see that the tests notice. Only builds with the tag kvmutate have
// the means to; see mutate_on.go.
type mutation uint8

const (
	mutNone         mutation = iota
	mutTombOnCancel          // P: a Cancel of an unknown attempt leaves a tombstone
	mutTombOnReject          // P: a Reject does
	mutGate                  // P: nothing is submitted after the gate is closed
	mutNextKept              // P: what was sent is not sent again after a preemption
	mutSettle                // D: pages wait for the writes that P says it posted
	mutFence                 // D: pages wait for the fence of a link that has ended
	mutRecheck               // D: after the fence the count is looked at once more
	mutBye                   // both: Bye only when no attempt is live
	mutEpoch                 // both: messages of an ended link are dropped
	mutLowWater              // both: tombstones are kept as long as the attempt may be asked for
	mutCreditMax             // both: credits only grow
	mutSecondHolder          // D: the writers hold the pages too
	mutPublish               // D: pages are published only when they are ready
	mutEnd
)
