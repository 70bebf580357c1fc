//go:build !race && !purego

package numeric

import "testing"

// The tests of rows again with the scalar code alone: both forms pass the same tests of all inputs, so they are equal.
func TestScalarForms(t *testing.T) {
	if !fast {
		t.Skip("the processor has no AVX2 and F16C: the other tests have run the scalar forms")
	}
	fast = false
	defer func() { fast = true }()
	t.Run("convert", TestConvert)
	t.Run("quantize", TestQuantize)
	t.Run("maxabs", TestMaxAbs)
	t.Run("maxnumber", TestMaxAbsNumber)
	t.Run("weigh", TestWeigh)
	t.Run("sums", TestFromSums)
}
