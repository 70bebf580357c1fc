//go:build !cgo

package ofi

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

var errNoCgo = fmt.Errorf("libfabric: %w: this binary was built without cgo (CGO_ENABLED=0)", provider.ErrUnavailable)

func (n network) devices() ([]provider.Device, error) { return nil, errNoCgo }

func (n network) open(provider.Device, provider.Config) (provider.Domain, error) {
	return nil, errNoCgo
}
