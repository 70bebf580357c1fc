// Package trace reads and makes request traces of an LLM service.
//
// A trace is JSON lines, one request a line, in order of arrival:
//
//	{"timestamp": 27000, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59]}
//
// The timestamp is in milliseconds, the lengths are in tokens, and there is one hash id per block of [BlockTokens]
// prompt tokens. Equal ids mean equal tokens and an equal prefix before them.
//
// [Read] and [Open] read a file; [Generate] makes a trace with the statistics of a conversation service:
//
//	requests := trace.Generate(trace.Config{Seed: 1})
//
// The package owns nothing; what it returns belongs to the caller.
package trace
