// Package bench measures Hawser against a yardstick in the same run.
//
// A scenario does the same work twice: through Hawser and through the yardstick, between the same processes, over memory of the same kind, in the
// same random order of blocks. After a pass over the whole pool that does not count, the two alternate within each round, and each [Row] carries
// all samples and the ratio of the two: the median over the rounds of ours / yardstick. The clock of a sample stops when the sender knows that the
// receivers' applications have everything; a copy in the sender needs no such answer. The processor time of a sample is that of all processes.
//
//	scenario  ours                                             yardstick on shm        yardstick on tcp
//	imm       a Write of 8 bytes with immediate                two pipes               a socket
//	write     one Write with immediate per block               copy in the sender      a socket, confirmed
//	pages     WritePages, one immediate per page               copy in the sender      a socket, confirmed
//	scatter   Scatter, one immediate per target                copy in the sender      a socket per receiver, confirmed
//	message   Send and Receive                                 two pipes               a socket
//	barrier   Barrier of this process and all receivers        pipes                   sockets between all pairs
//
// Sockets are net.Conns, pipes os.Files. There is one connection between two processes, whatever the rails, and one call for each block or message; on TCP, messages of imm,
// message and barrier are longer by 32 bytes, because those of Hawser carry a header, too. The targets of a scatter are blocks of one receiver, or of
// several who take turns.
//
// imm and message have two figures: the latency of a ping-pong, and the rate without waiting. In the scenarios of blocks, one in some operations is
// timed while the rate is measured.
//
// A [Site] says where the receiving processes are: children on this host, which run [Serve] (the tool starts them with a hidden command, the
// benchmarks of this package with their own test binary), or one [Server] each on other hosts. [Site.Run] measures a row; who measures something
// else in turn with it opens a [Session] and calls its Round. The Session owns the sending engine and its memory.
//
// Files: scenario.go says what a scenario is and lists them, blocks.go, ping.go, message.go and barrier.go are what their sides do; session.go is
// the measuring process, receiver.go a receiving one, line.go what they say to each other, mailbox.go and server.go the same between hosts,
// stream.go the yardstick's connections.
package bench
