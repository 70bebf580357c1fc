// Package ring holds the queues between goroutines and between processes.
//
// [Queue] connects goroutines of one process: submitters and workers. The Shared types connect two processes over a
// mapped page, where every field that the other side wrote is checked before use.
package ring
