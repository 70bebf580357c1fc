package proto

// mutation names a guard of the protocol that a test can take away, to see that the tests notice. Only builds with the tag weightmutate
// have the means to; see mutate_on.go.
type mutation uint8

const (
	mutNone      mutation = iota
	mutAllFlip            // leader: Resume only when all ranks have flipped
	mutEarlyPut           // receiver: immediates go back only when everybody who wrote is quiet or fenced
	mutFence              // receiver: who is not known to be quiet is fenced
	mutAlone              // member: who is prepared does not end its part by itself
	mutTermReuse          // controller: a term is higher than all that were seen
	mutTermID             // member: the engine's id is part of a term
	mutStart              // controller: START only with all grants
	mutStopped            // receiver: it grants only when the whole instance is stopped
	mutQuiet              // controller: BEGIN only when every publisher of the last epoch is quiet or fenced
	mutLog                // controller: a decision is told only when it is durable
	mutEpoch              // member: messages of another epoch are dropped
	mutUnknown            // controller: no record in a foreign log means unknown, not abort
	mutPrepared           // controller: commit only when every rank is prepared
	mutLease              // receiver: what is copied from does not change
	mutOut                // member: that an instance is out is no decision
	mutUnquiet            // controller: commit only when every publisher is quiet
	mutStuck              // receiver: no epoch while somebody may still write
	mutEnd
)
