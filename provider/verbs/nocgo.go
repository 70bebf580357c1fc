//go:build !cgo

package verbs

import (
	"context"
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

const libraryName = "libibverbs.so.1"

type none struct{}

// New returns a provider without devices: this binary was built without cgo and cannot load libraries.
func New(Options) provider.Provider { return none{} }

func (none) Name() string { return Name }

func (none) Devices(context.Context) ([]provider.Device, error) { return nil, errNoCgo() }

func (none) Open(context.Context, provider.Device, provider.Config) (provider.Domain, error) {
	return nil, errNoCgo()
}

func errNoCgo() error {
	return fmt.Errorf("verbs: %w: this binary was built without cgo (CGO_ENABLED=0)", provider.ErrUnavailable)
}
