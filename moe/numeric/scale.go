package numeric

// DefaultFloor is the least absolute maximum of a block unless its engine states another: it keeps the scale of a block of zeros from
// being zero.
const DefaultFloor = 1e-10

// Scale says how the scale of a block follows from its largest absolute value. The zero value is the usual one.
type Scale struct {
	Floor float32 // of the absolute maximum; 0: DefaultFloor. At least 2^-117, or the scale is subnormal and loses bits
	E8M0  bool    // the scale is a power of two, the next above
}

// Of is the scale: max(amax, Floor) / 448, in float32 division, with E8M0 rounded up to a power of two. By it a block is divided before it
// is encoded, and multiplied after it is decoded.
//
// hot: no allocation.
func (s Scale) Of(amax float32) float32 {
	floor := s.Floor
	if floor == 0 {
		floor = DefaultFloor
	}
	q := max(amax, floor) / MaxE4M3
	if s.E8M0 {
		return FromE8M0(CeilE8M0(q))
	}
	return q
}
