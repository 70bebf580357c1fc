package moe

import "github.com/hawser-project/hawser/moe/backend"

// What a step reads and writes is described by the types of package backend.
type (
	Tensor   = backend.Tensor
	Input    = backend.Input
	Output   = backend.Output
	DType    = backend.DType
	Scaling  = backend.Scaling
	Quantize = backend.Quantize
	Queue    = backend.Queue
)
