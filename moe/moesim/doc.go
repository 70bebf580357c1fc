// Package moesim plays steps of MoE dispatch and combine between ranks with adapters that do not exist, in virtual time: to learn what to
// expect of sizes that are not at hand. The protocol and what carries it out (moe/proto, moe/internal/exec) are those that run elsewhere, so
// are the queues of an engine's worker (internal/rail); the network is provider/sim. Rows have no bytes: headers and grants alone are
// real. What the GPUs do takes the time that [Costs] say.
//
// All numbers that come of it are simulated, and the assumptions are part of a [Result]. The models of adapters are calibrated on
// published tables of plain writes, not on steps of MoE layers.
//
// Everything belongs to the goroutine that calls [Run].
package moesim
