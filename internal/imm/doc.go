// Package imm counts immediates: one [Table] per engine, one [Counter] per value that arrived or that somebody asked for.
//
// Workers call Table.Add for each arrival, without locks unless the value is new. Counts only grow. Who waits for a
// count is not this package's business beyond one number: each Counter has a threshold, and Add says when it is
// reached.
package imm
