package providertest

import (
	"fmt"

	"github.com/hawser-project/hawser/provider"
)

// powered passes the optional powers of a Domain through a decorator, which hides them otherwise.
type powered struct{ provider.Domain }

// Revoke implements [provider.Revoker]: ErrUnsupported where the decorated Domain has no such method.
func (p powered) Revoke(k provider.Key, peer provider.Peer) error {
	if r, ok := p.Domain.(provider.Revoker); ok {
		return r.Revoke(k, peer)
	}
	return fmt.Errorf("revoke key %#x from peer %#x: %w", k.ID, peer, provider.ErrUnsupported)
}
