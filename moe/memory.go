package moe

import (
	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/moe/backend"
	"github.com/hawser-project/hawser/moe/internal/exec"
)

// memory is what a lane reads and writes: its own regions, and those of its peers.
type memory struct {
	areas   [exec.Areas]*hawser.Region
	remotes []remotes // by rank; empty for who is no peer
}

// remotes are what a lane may write at a peer: its own block there, the pool, the results.
type remotes struct {
	peer                 *hawser.Peer
	block, pool, results *hawser.Remote
}

// bytes are the own regions.
func (m *memory) bytes() (b exec.Memory) {
	for a, r := range m.areas {
		b[a] = r.Bytes()
	}
	return b
}

// ofBackend are those that a backend uses.
func (m *memory) ofBackend() backend.Memory {
	b := m.bytes()
	return backend.Memory{Send: b[exec.Send], Results: b[exec.Results], Y: b[exec.Y]}
}
