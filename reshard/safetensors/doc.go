// Package safetensors reads and writes checkpoints in the safetensors format: headers, the index of several files, and ranges of bytes.
//
// A file is an unsigned 64-bit length, a JSON object of that length, and the data. The object has, for every tensor, its type, its shape
// and where its bytes are. [ReadHeader] accepts a header only if every byte of the data belongs to exactly one tensor. [Open] takes a
// directory: one file, several, or several with an index. Data is read by range, never whole.
//
// Ownership: a [Checkpoint] owns its open files until Close; reads may be concurrent.
package safetensors
