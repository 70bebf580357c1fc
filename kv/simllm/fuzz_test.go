package simllm

import "testing"

// FuzzParseLayerTime: what is taken prints as something that means the same.
func FuzzParseLayerTime(f *testing.F) {
	f.Add("1ms")
	f.Add("0.593,3.61e-4,2.6e-8")
	f.Add("-1,nan,inf")
	f.Add("1e-10,0,0")
	f.Fuzz(func(t *testing.T, s string) {
		lt, err := ParseLayerTime(s)
		if err != nil {
			return
		}
		again, err := ParseLayerTime(lt.String())
		if err != nil || again.String() != lt.String() {
			t.Fatalf("%q is %v, which is %v: %v", s, lt, again, err)
		}
	})
}
