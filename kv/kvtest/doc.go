// Package kvtest runs the machines of package proto, decoders and prefillers, on a model of the network, of memory and of an
// inference engine, in virtual time. A run is decided by its [Scenario]: there is no goroutine, no clock, no order of a map. So one
// that fails can be run again, be made smaller ([Shrink]), and be kept in testdata/seeds.
//
// The model does whatever an engine does not rule out. Messages are lost, late and out of order. Writes land in any order, are
// counted with their landing or later, complete before or after it, or end with errors and land all the same. Sessions break,
// and one side notices before the other. Processes die and come back as others, or stand still and go on with what they knew.
// Fences have no proof for a while. There is no room, no immediate, no page. Timers are late. The inference engine preempts,
// aborts passes, gives up jobs, and tells progress by calls or by words, of which some are never seen.
//
// It knows what each word of memory is of, whose pages are whose, and what was promised to whom, and checks as it goes:
//
//	I1   a write lands only on a page of its attempt, and none can once the attempt is quiet
//	I2   a source page is neither freed nor changed while a write of it is outstanding
//	I3   an attempt, a request, a job ends, and once
//	I4   when all is at rest and everybody is alive or fenced, everything is free on both sides, and a request for all there is succeeds
//	I5   what is ready has the right content, from Ready to Release, also what came from the prefix cache
//	I6   no writer is counted beyond what it owes, no immediate for another attempt; what is whole is not thrown away
//	I7   after an answer that ends an attempt nothing of it is outstanding or submitted, and its count is right
//	I8   a Dispatch that comes after such an answer starts nothing; nobody forgets what is live
//	I9   a Cancel is answered, Drain and Close come to their end
//	I10  windows and credits are kept, and nobody waits for credits that he has
//	I11  nothing is used again, and no link is left, before what may still be written is fenced or settled
//
// Events that mean nothing in their state fail a run too, as do the machines' own checks. The files: scenario.go says what may be,
// world.go runs it, net.go and flight.go are the network, decode.go and users.go the decode side, prefill.go and engine.go the
// other one, fault.go what goes wrong, judge.go and attempt.go what is checked on the way, and rest.go at the end.
package kvtest

import "runtime/debug"

func stack() string { return string(debug.Stack()) }
