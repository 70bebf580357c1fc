// Package bench measures Hawser against a yardstick in the same run.
//
// A scenario moves the same bytes twice: through Hawser and through the yardstick, between the same two processes, over memory of the
// same kind, in the same order of pages. The two alternate within each round, and each [Row] carries all samples and the ratio
// of the two: the median over the rounds of ours / yardstick. The clock of a sample stops when the sender knows that the receiver's
// application has everything.
//
//	scenario  ours                                    yardstick on shm            yardstick on tcp
//	write     one Write with immediate per block      copy in the sender          a net.Conn loop, confirmed
//	pages     WritePages, one immediate per page      copy in the sender          a net.Conn loop, confirmed
//	imm       a Write of 8 bytes with immediate       a pair of pipes             a net.Conn
//
// The receiving process is started by the caller of [Run] and runs [Serve]; the tool does so with a hidden command, the benchmarks
// of this package with their own test binary. [Run] owns the sending engine and its memory and frees both before it returns.
package bench
