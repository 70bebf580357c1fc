package wire

// Versions is a range of versions of the control protocol.
type Versions struct{ Min, Max uint16 }

// Spoken is what this build speaks.
var Spoken = Versions{MinVersion, MaxVersion}

// Common is the highest version in both ranges; false: there is none.
func (v Versions) Common(w Versions) (uint16, bool) {
	low, high := max(v.Min, w.Min), min(v.Max, w.Max)
	return high, low <= high
}
