package reshard

import "io"

// ParseSmallLayout is ParseLayout with a limit that keeps fuzzing fast.
func ParseSmallLayout(r io.Reader) (*Layout, []Rule, error) { return parseLayout(r, 1<<12) }

// Loads is the part of Stats that needs no lowering.
func (p *Plan) Loads() Stats { return p.loads() }
