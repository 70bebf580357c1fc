package pool

import (
	"crypto/sha256"
	"encoding/binary"
)

// Hash names the content of a full page: its tokens and all tokens before it. It is cut from SHA-256, so that nobody can make
// a prompt that is served from another's pages. The zero Hash is that of no page.
type Hash [16]byte

// Hashes returns the hash of each full page of a prompt; the tokens of a last partial page do not count. Prompts whose caches
// must not be shared (another adapter, another tenant) have different seeds; a seed is any Hash, the zero one included.
func Hashes(seed Hash, tokens []uint32, pageTokens int) []Hash {
	hashes := make([]Hash, len(tokens)/pageTokens)
	block := make([]byte, len(seed)+4*pageTokens)
	for i := range hashes {
		copy(block, seed[:])
		for k, t := range tokens[i*pageTokens : (i+1)*pageTokens] {
			binary.LittleEndian.PutUint32(block[len(seed)+4*k:], t)
		}
		sum := sha256.Sum256(block)
		copy(seed[:], sum[:])
		hashes[i] = seed
	}
	return hashes
}
