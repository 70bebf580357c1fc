// Package soak is the long test of whole engines in whole processes; all of it is tests, built with the tag soak ("make soak").
//
// Four member processes, on two hosts (network namespaces, two cables between them) when that is possible, do what users do, at random:
// write, signal, talk, connect, fence, close regions and engines. The parent kills them, stops them, and cuts cables. Every so often it
// heals all that, waits until everything has been resolved, and looks for what is wrong or was left behind. Then it cuts one rail of two
// for a while: no operation may fail of that.
//
// Members agree about memory over a bus that no fault touches: the pipes of the processes, with the parent as router. A writer asks an
// owner for a lease of a cell; the owner gives it a descriptor, a place and an immediate. Writer and owner know from the number of the
// lease what the bytes will be. The writer writes and reports how that ended; the owner looks at the cell:
//
//   - The write went well: the bytes and the count are exactly right.
//   - It failed, or the writer is gone: the cell is dirty, and stays so until the writer is fenced. Then each byte is either what it
//     was before or what was to be written, and neither bytes nor count change any more.
//   - It was never submitted: nothing has changed.
//
// A writer spoils its source as soon as an operation ends, so that bytes that are read too late are found as well.
//
// Files: soak_test.go the test, cluster_test.go the processes and the bus, faults_test.go, network_test.go, round_test.go the quiet
// times; in the members member_test.go, node_test.go an engine, owner_test.go and writer_test.go the two sides of a lease,
// mail_test.go messages, usage_test.go what may be left behind.
package soak
