package reshard

import "fmt"

// dtypes has the name and the bytes of an element of each type.
var dtypes = [...]struct {
	name string
	size int64
}{
	Invalid: {"invalid", 0},
	F64:     {"F64", 8},
	F32:     {"F32", 4},
	F16:     {"F16", 2},
	BF16:    {"BF16", 2},
	F8E4M3:  {"F8_E4M3", 1},
	F8E5M2:  {"F8_E5M2", 1},
	F8E8M0:  {"F8_E8M0", 1},
	I64:     {"I64", 8},
	I32:     {"I32", 4},
	I16:     {"I16", 2},
	I8:      {"I8", 1},
	U64:     {"U64", 8},
	U32:     {"U32", 4},
	U16:     {"U16", 2},
	U8:      {"U8", 1},
	Bool:    {"BOOL", 1},
}

// Size is the bytes of one element; 0 for Invalid and unknown values.
func (d DType) Size() int64 {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].size
}

// String is the name in safetensors files.
func (d DType) String() string {
	if int(d) >= len(dtypes) {
		return fmt.Sprintf("dtype %d", uint8(d))
	}
	return dtypes[d].name
}

// ParseDType is the inverse of String. The name "invalid" is none.
func ParseDType(name string) (DType, error) {
	for i, d := range dtypes {
		if i > 0 && d.name == name {
			return DType(i), nil
		}
	}
	return Invalid, fmt.Errorf("reshard: no type %q: types are named as in safetensors, for example BF16", name)
}

// MarshalText is String, and fails for Invalid.
func (d DType) MarshalText() ([]byte, error) {
	if d.Size() == 0 {
		return nil, fmt.Errorf("reshard: %v has no name", d)
	}
	return []byte(d.String()), nil
}

// UnmarshalText is ParseDType.
func (d *DType) UnmarshalText(text []byte) error {
	v, err := ParseDType(string(text))
	if err == nil {
		*d = v
	}
	return err
}
