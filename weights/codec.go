package weights

import (
	"bytes"

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
