// Package moetest says what MoE dispatch and combine must do, without doing it: routings of all kinds ([Dist], [Routing]) and files of
// them, a dense reference that says of every byte what it must be ([Ref]), and a deterministic fabric that delivers fragments in any
// order, strikes with every fault, and watches every slot of memory ([World]).
//
// Everything is a function of a seed. A rank computes what it must receive from the routing alone, so processes need not talk to be
// checked.
package moetest
