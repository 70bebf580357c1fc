// Package moebench measures dispatch and combine of MoE layers between processes, beside others that exchange the same rows, and says what
// to expect of sizes that are not at hand (simulate.go).
//
// Every rank is a process, which calls [Serve]; the parent drives all of them by lines over their standard input and output. A round has a
// run of steps of each kind: whole steps; exchanges, which are steps whose backend copies nothing, so that the protocol and the network
// remain; stages, which are what the backend does and nothing else; and copies of as many bytes, the floor. What others take for a
// step is their exchange and our stages, for everything else would be the same code; stages by themselves find their rows in caches, where a
// step has to get what another processor wrote, so this favours the others. In a run all ranks pass a barrier before each step,
// outside the clock, and a step takes as long as the slowest rank.
//
// After each run all ranks do another step over poisoned memory, of which every byte is compared with what must be there.
package moebench
