// Package imm counts immediates: one [Table] per engine, one [Counter] per value that arrived or that somebody asked for.
//
// A value is open or managed. Open ones count from the first arrival on, and a source may create a limited number of them. Managed
// ones lie in a [Range] that somebody holds: they count only while they are open there, and what arrives at another time is stale.
//
// Workers call Table.Add for each arrival, without locks unless the value is new. Counts only grow. Who waits for a
// count is not this package's business beyond one number: each Counter has a threshold, and Add says when it is
// reached.
package imm
