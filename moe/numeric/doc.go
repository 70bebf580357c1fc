// Package numeric has the arithmetic of narrow numbers: conversions between float32 and bf16, f16, e4m3fn, e5m2 and ue8m0, one at a time
// and by rows, the quantization of blocks to FP8, and weighted sums of rows. Dispatch and combine use it, and the weight push.
//
// Everything rounds to nearest, ties to even, keeps subnormals and the sign of zero, and gives the same bits on every machine: rows
// go through AVX2 where the processor has it, with results equal to the scalar code's, and nothing is fused.
//
// Rows are little-endian bytes, as they lie in registered memory and in files; they need no alignment.
//
//	s := numeric.Scale{}.Of(numeric.MaxAbs(row, numeric.TypeBF16)) // over all rows of a block
//	numeric.DivE4M3(dst, row, numeric.TypeBF16, s)                 // dst[i] = e4m3(row[i] / s)
//
//	numeric.Weigh(acc, rows, numeric.TypeBF16, []int{0, 512}, []float32{0.25, 0.75}) // float32 sums of two rows
//	numeric.FromSums(out, numeric.TypeBF16, acc)                                     // rounded
package numeric
