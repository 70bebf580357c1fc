// Package mem makes memory that can be registered with networks.
//
// Registered memory is never on the Go heap: a network, or another process, reads and writes it behind the
// compiler's back. A [Span] is owned by whoever made it, who calls Free when no network uses it any more.
package mem
