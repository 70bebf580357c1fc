// Command hawser demonstrates, measures and inspects Hawser.
//
//	hawser demo                    replay a generated trace over every built-in network, push weights, do steps of MoE layers, with content checks
//	hawser kv replay               the same with your own trace, model shape, speed and faults
//	hawser kv prefill, kv decode   the two sides of it, each on its own
//	hawser moe check               steps of MoE layers between processes, or in one with every fault, compared byte by byte
//	hawser bench SCENARIO          speed against a yardstick in the same run, on one host or two (imm, write, pages, scatter, barrier, message)
//	hawser topo                    what could be used here, and why something cannot
//	hawser version
//
// A person reads the tables on standard output; a program reads --json FILE, or --json - and then nothing else is on
// standard output. The exit code is 0 when all went well, 1 for a failure, 2 for wrong usage. A failure is one line that begins
// with "hawser: ".
//
// Commands that need several processes start this program again with hidden flags and talk to it with package internal/proc;
// they end together.
package main
