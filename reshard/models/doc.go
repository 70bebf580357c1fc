// Package models knows the tensors of published models, and writes layouts for them.
//
// The data is models.json: one pattern for each tensor of a checkpoint, with its shape and type, the dimension that tensor parallelism
// cuts, the engine parameter that it is fused into, and whether it is quantized when an engine serves FP8. Totals are checked against
// what the publishers say.
//
// [Generate] places a model on a mesh of ranks, for a trainer or for an inference engine. [Reference] gives pairs of layouts with fixed
// names, which tests, commands and published figures use.
//
// Everything here is a value that nobody changes; all functions may be called from any goroutine.
package models
