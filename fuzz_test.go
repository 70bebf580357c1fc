package hawser_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/wire"
)

// FuzzDescriptor: what is taken for a descriptor, as bytes or as text, comes back as the same descriptor; everything else is
// ErrInvalid.
func FuzzDescriptor(f *testing.F) {
	d := wire.Descriptor{Owner: wire.ID{1}, Region: 2, Gen: 3, Off: 4, Len: 5, Rights: 1, MAC: [16]byte{6}, Addr: "somewhere"}
	raw := wire.Append(nil, &d)
	f.Add(raw)
	f.Add(raw[:len(raw)-1])
	var hd hawser.Descriptor
	if err := hd.UnmarshalBinary(raw); err != nil {
		f.Fatal(err)
	}
	text, err := hd.MarshalText()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		var d hawser.Descriptor
		if err := d.UnmarshalBinary(b); err == nil {
			if again, err := d.MarshalBinary(); err != nil || !bytes.Equal(again, b) {
				t.Fatalf("%x is %x again: %v", b, again, err)
			}
		} else if !errors.Is(err, hawser.ErrInvalid) {
			t.Fatal(err)
		}
		if err := d.UnmarshalText(b); err == nil {
			text, err := d.MarshalText()
			var again hawser.Descriptor
			if err == nil {
				err = again.UnmarshalText(text)
			}
			if err != nil || again != d { // not the same text: base64 may have ends of lines in it
				t.Fatalf("%q is %q again: %v", b, text, err)
			}
		} else if !errors.Is(err, hawser.ErrInvalid) {
			t.Fatal(err)
		}
	})
}
