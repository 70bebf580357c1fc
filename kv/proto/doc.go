// Package proto is the protocol between a decoder and its prefillers: the wire format and the two state machines, one for each side.
//
// A machine is a step core. It owns everything that the protocol must remember and does nothing by itself: no goroutine, lock, clock or
// I/O, and nothing depends on the order of a map. Each event is a method that takes the time; whatever the machine wants done
// it says, during the call and in order, to the interface that it was made with ([DecoderOut], [PrefillerOut]). These methods
// must not call the machine. Next says when Tick is due. The same machines run over engines (package kv) and over a model of
// the network with virtual time (package kvtest).
//
// Owner: whoever made the machine, who serializes all calls.
package proto
