package bench

import (
	"errors"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/mem"
)

// Values of Config.Foreign.
const (
	ForeignDst  = "dst"  // the pools of receivers
	ForeignBoth = "both" // those, and the sender's
)

// pool makes the pool of one side.
func (e *engine) pool(c Config, receiver bool) (*hawser.Region, error) {
	if c.Foreign == "" || !receiver && c.Foreign != ForeignBoth {
		return e.Alloc(c.Pool, hawser.MemOptions{})
	}
	span, err := mem.New(c.Pool, mem.Private)
	if err != nil {
		return nil, err
	}
	r, err := e.Register(span.Bytes(), hawser.RegisterOptions{})
	if err != nil {
		return nil, errors.Join(err, span.Free())
	}
	e.foreign = span // until close
	return r, nil
}

// freeForeign gives back what pool has made, once the engine is closed.
func (e *engine) freeForeign() error {
	if e.foreign == nil {
		return nil
	}
	return e.foreign.Free()
}
