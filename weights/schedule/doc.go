// Package schedule decides what a publisher does next: which run it writes, and where it stages a task. It is the part of a push that
// has neither clock nor memory nor network, so that package weights, which pushes over engines, and package weights/weightsim, which
// plays pushes that no machine here could carry, run the same code.
//
// [Windows] holds the runs whose bytes are ready and says which may be written now: to a limited number of destinations at a time, with
// a limited number of writes to each, the oldest first. [Arena] lends staging memory, which bounds how far staging may run
// ahead of the writes.
//
// Ownership: each belongs to one goroutine, or to whoever holds the lock that the caller has put around it.
package schedule
