// Package pool lends the pages of a KV cache and remembers which of them hold the beginning of a prompt that may come again.
//
// A page is an index, valid in every view of the cache; the pool never touches memory. Each page is in one of five states:
//
//	free         nobody needs it
//	leased       it belongs to a lease: Reserve until both owners have dropped it
//	quarantined  its lease is marked by Quarantine: a peer that cannot be stopped may still write it
//	cached       it holds a published block that nobody uses; Reserve takes it when no page is free, oldest use first
//	pinned       it holds a published block that a Prefix of Lookup uses, and its own lease has ended
//
// A lease has two owners, because two parties can end in any order: the request, which reads the pages, and the writer, who
// fills them (on a decoder the peers, on a prefiller the forward pass). A page whose request was aborted is not lent again
// before its writer is done as well. For the same reason pages cannot be published while a writer has them.
//
//	prefix := p.Lookup(hashes)                      // what is here already, pinned
//	lease, err := p.Reserve(missing)                // the rest; the request holds it
//	p.Hold(lease, pool.OwnerWriter)                 // before the first peer learns of the pages
//	...
//	p.Drop(lease, pool.OwnerWriter)                 // nobody writes any more
//	p.Publish(lease, hashes[len(prefix.Pages):])    // only when all is there
//	...
//	p.Drop(lease, pool.OwnerRequest)
//	p.Unpin(prefix)
//
// A Pool is safe for concurrent use: one mutex guards it, and there is no goroutine.
package pool
