// Package stage does on the CPU what a push does to bytes: it copies, casts and quantizes the pieces of a task into staging memory, and
// takes digests of what is sent, of what has arrived, and of everything that a receiver has.
//
// It knows plans and bytes, but no engine. Quantization in shards gives the bits that quantization of the whole tensor gives: the scale
// of a block depends on its largest absolute value alone, and the largest of the parts is the largest of the whole.
package stage
