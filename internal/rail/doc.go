// Package rail makes several domains look like one: it places the parts of operations over the rails of a device, keeps
// account of what is in flight, and turns completions into the ends of operations.
//
// A [Group] belongs to one worker, which calls Step in a loop. Step never blocks, starts no goroutine and does a
// bounded amount of work, so a test can call it by hand and a simulator can call hundreds of them. Other goroutines
// hand over work through Submit and Call only. What happens is told to a [Sink], on the worker.
package rail
