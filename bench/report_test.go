package bench

import (
	"strings"
	"testing"
)

func TestReadReportRefuses(t *testing.T) {
	for text, want := range map[string]string{
		``:                         "EOF",
		`[]`:                       "cannot unmarshal",
		`{"rows":[]}`:              "schema 0",
		`{"schema":1,"rows":[]}`:   "schema 1",
		`{"schema":2,"rows":"no"}`: "cannot unmarshal",
	} {
		if _, err := ReadReport(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ReadReport(%q): %v, want %q in it", text, err, want)
		}
	}
}
