// Package kvbench measures package kv between processes: B1 to B8, whose figures stand in docs/performance.md.
//
// This process decodes. A child, which runs [Serve], prefills: its cache is filled before the clock starts, and its layers take as
// long as they are told to. Both read the same clock, so that a time taken there can be compared with one taken here. Whatever is
// compared alternates within each round, and a [Row] carries the median and the range of the rounds.
//
// The yardsticks are on the prefilling side: a copy of the same pages into other memory of the process for shared memory, a socket for
// TCP.
//
// Files: kvbench.go says what there is, pair.go holds the two processes, serve.go is the child, memory.go the content of both; the
// others are one measurement each.
package kvbench
