// Package reshard plans how tensors move from one sharding to another: which rank writes which bytes of which tensor where.
//
// It is pure: ranks, buffers and offsets, but no addresses, no I/O, no engine. A [Layout] says which box of which tensor lies where on
// which rank, for the side that has the tensors and for the side that needs them. [Compute] matches the two and returns a [Plan], in
// which every byte of every destination comes from exactly one source, or an error that names what is missing. [Plan.Source] and
// [Plan.Dest] give a rank its part, a [Slice]. Package weights carries plans out.
//
// Ownership: layouts belong to the caller and are not changed; a Plan is immutable and may be used from any goroutine.
package reshard
