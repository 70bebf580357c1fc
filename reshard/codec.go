package reshard

import (
	"encoding/binary"
	"math"
)

// Kinds of codecs.
const (
	rawKind  = "raw"
	castKind = "cast"
	fp8Kind  = "fp8block"
)

// defaultFloor keeps the scale of a block of zeros finite.
const defaultFloor = 1e-10

// normal has all defaults filled in, and nothing that its kind does not use.
func (c Codec) normal() Codec {
	switch c.Kind {
	case "":
		return Codec{Kind: rawKind}
	case fp8Kind:
		if c.Block == [2]int{} {
			c.Block = [2]int{128, 128}
		}
		if c.Scale == Invalid {
			c.Scale = F32
		}
		if c.Floor == 0 {
			c.Floor = defaultFloor
		}
		return c
	}
	return Codec{Kind: c.Kind}
}

func (c Codec) scale() DType { return c.normal().Scale }

func (c Codec) key(b []byte) []byte {
	b = appendString(b, c.Kind)
	b = binary.AppendVarint(binary.AppendVarint(b, int64(c.Block[0])), int64(c.Block[1]))
	b = append(b, byte(c.Scale))
	b = binary.LittleEndian.AppendUint32(b, math.Float32bits(c.Floor))
	return appendBool(b, c.Recip)
}

// isFloat says that cast knows the type.
func isFloat(d DType) bool { return d == F32 || d == F16 || d == BF16 }

// bridge is the codec that makes a value of type to from one of type from, when the layout or the rule asks for c.
func bridge(c Codec, from, to DType) (Codec, bool) {
	c = c.normal()
	switch c.Kind {
	case rawKind:
		if from == to {
			return c, true
		}
		if isFloat(from) && isFloat(to) {
			return Codec{Kind: castKind}, true
		}
		return c, from.Size() == to.Size()
	case castKind:
		if from == to {
			return Codec{Kind: rawKind}, isFloat(from)
		}
		return c, isFloat(from) && isFloat(to)
	case fp8Kind:
		return c, isFloat(from) && to == F8E4M3 && c.Block[0] > 0 && c.Block[1] > 0 && (c.Scale == F32 || c.Scale == F8E8M0)
	}
	return c, false
}

// blocks is the shape of a tensor's scales.
func blocks(shape []int64, c Codec) []int64 {
	c = c.normal()
	out := append([]int64(nil), shape...)
	for i := range 2 {
		if d := len(out) - 2 + i; d >= 0 && c.Block[i] > 0 {
			out[d] = ceil(out[d], int64(c.Block[i]))
		}
	}
	return out
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }
