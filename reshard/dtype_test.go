package reshard

import "testing"

func TestDTypeNames(t *testing.T) {
	for d := F64; d <= Bool; d++ {
		text, err := d.MarshalText()
		if err != nil {
			t.Fatalf("%v: %v", d, err)
		}
		var back DType
		if err := back.UnmarshalText(text); err != nil || back != d {
			t.Errorf("%s is %v, %v, want %v", text, back, err, d)
		}
		if d.Size() == 0 {
			t.Errorf("%v has no size", d)
		}
	}
	for _, name := range []string{"invalid", "", "bf16", "F8"} {
		if d, err := ParseDType(name); err == nil {
			t.Errorf("%q is %v", name, d)
		}
	}
	if _, err := DType(200).MarshalText(); err == nil || DType(200).Size() != 0 {
		t.Errorf("type 200 exists")
	}
}
