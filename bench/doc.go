// Package bench measures Hawser against a yardstick in the same run.
//
// A scenario moves as many bytes twice: through Hawser and through the yardstick, between the same two processes, over memory of the
// same kind, in the same random order of blocks. After a pass over the whole pool that does not count, the two alternate within
// each round, and each [Row] carries all samples and the ratio of the two: the median over the rounds of ours / yardstick. The
// clock of a sample stops when the sender knows that the receiver's application has everything; a copy in the sender needs no
// such answer. The processor time of a sample is that of both processes.
//
//	scenario  ours                                    yardstick on shm            yardstick on tcp
//	write     one Write with immediate per block      copy in the sender          a net.Conn loop, confirmed
//	pages     WritePages, one immediate per page      copy in the sender          a net.Conn loop, confirmed
//	imm       a Write of 8 bytes with immediate       a pair of pipes             a net.Conn
//
// The yardstick has one connection, whatever the rails, and makes one call for each block or message.
//
// The receiving process is started by the caller of [Run] and runs [Serve]; the tool does so with a hidden command, the benchmarks
// of this package with their own test binary. [Run] owns the sending engine and its memory and frees both before it returns.
package bench
