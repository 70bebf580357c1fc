package weights

import (
	"bytes"
	"encoding/gob"

	"github.com/hawser-project/hawser/reshard"
)

// encodeLayout makes the blob of a layout: its JSON.
func encodeLayout(l *reshard.Layout, rules []reshard.Rule) ([]byte, error) {
	var b bytes.Buffer
	err := reshard.WriteLayout(&b, l, rules)
	return b.Bytes(), err
}

func decodeLayout(b []byte) (*reshard.Layout, []reshard.Rule, error) {
	return reshard.ParseLayout(bytes.NewReader(b))
}

func encodeSlice(s *reshard.Slice) []byte {
	var b bytes.Buffer
	_ = gob.NewEncoder(&b).Encode(s)
	return b.Bytes()
}

func decodeSlice(b []byte) (*reshard.Slice, error) {
	s := &reshard.Slice{}
	return s, gob.NewDecoder(bytes.NewReader(b)).Decode(s)
}
