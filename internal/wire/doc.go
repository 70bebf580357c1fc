// Package wire is the encoding of everything that engines say to each other over the control connection, of
// descriptors and of addresses. It does no I/O beyond framing, and trusts nothing: every length is checked against a bound
// and against what is there before it is used.
//
// Each message has one method, fields, that names its fields in order; the same method encodes and decodes, so the two
// cannot disagree. Integers are little endian; a string of bytes is a 32-bit length and the bytes.
package wire
