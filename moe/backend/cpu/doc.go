// Package cpu is the backend that every machine has: its lanes move and sum rows with the processor.
//
// Every method does its work before it returns, so its flag is set then. A [Backend] owns some workers, which sleep while there is
// nothing to do; whoever calls a method of a lane works too, and alone if there is little. Work is cut into parts of rows that lie together,
// which whoever is free takes; which one that is does not change a byte of what comes out.
//
// Owner: a lane belongs to whoever made it, who calls one method at a time. Lanes are independent, and may be called at the same time.
package cpu
