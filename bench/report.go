package bench

import (
	"encoding/json"
	"fmt"
	"io"
)

// ReadReport decodes what the tool wrote with --json.
func ReadReport(r io.Reader) (Report, error) {
	var rep Report
	if err := json.NewDecoder(r).Decode(&rep); err != nil {
		return Report{}, fmt.Errorf("bench: read report: %w", err)
	}
	if rep.Schema != Schema {
		return Report{}, fmt.Errorf("bench: read report: schema %d, want %d: it was not written by this version of hawser bench", rep.Schema, Schema)
	}
	return rep, nil
}
