package weightbench

import (
	"context"
	"time"
)

// Peers are what a benchmark measures beside the floor.
type Peers struct {
	Python string // that has torch
}

// turns are those of the peers that can take part; who cannot has a reason.
func (p *Peers) turns(_ context.Context, w *world, c Config) ([]*turn, error) {
	file := &turn{System: System{Name: "file"}, run: w.file}
	if c.Case.Codec == "fp8block" {
		file.Skipped = "files hold what the trainers have: nobody quantizes"
	}
	return []*turn{file}, nil
}

func (p *Peers) stop() {}

var _ = time.Second
