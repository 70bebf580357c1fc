package proto

// mutation names a guard of the protocol that a test can take away, to see that the tests notice. Only builds with the tag moemutate
// have the means to; see mutate_on.go.
type mutation uint8

const (
	mutNone     mutation = iota
	mutGate              // a value goes to a peer only when the Transfer that used it last has ended
	mutSource            // records are packed only when no Transfer reads them
	mutY                 // the same for results
	mutBusy              // no step begins before the results of the last one were summed
	mutUnpacked          // a chunk is granted again only when it was unpacked
	mutWindow            // a slot is granted again only when its chunk was counted
	mutCounted           // nothing is read that was not counted
	mutResults           // results go back only when all of a source's records were unpacked
	mutEmpty             // who has no records for a peer answers it too
	mutLost              // chunks that a missing peer holds stay out of use
	mutLater             // a Cancel fails all later steps, not only the one that it names
	mutTell              // a lane that stops tells everybody
	mutRefuse            // after a peer was missing no step begins
	mutQuiet             // round 1 only when all own Transfers have ended
	mutRound1            // nothing is recycled before round 1 of all
	mutListed            // who could not end a Transfer is fenced
	mutGone              // who left is fenced
	mutNext              // the next step is after everybody's, not only after the own
	mutFresh             // who was fenced gets descriptors again
	mutResend            // a READY that was not delivered is sent again
	mutUnsent            // what is sent again is of the epoch that is tried
	mutRound2            // no step before round 2 of all
	mutEnd
)
