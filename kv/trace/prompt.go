package trace

// Tokens are the token ids of the prompt. A trace does not have them, so they are derived: token i of a block is a hash of the
// block's id and i. Equal ids give equal tokens, and prompts that begin with the same blocks begin with the same tokens.
func (r Request) Tokens() []uint32 {
	tokens := make([]uint32, r.Input)
	for i := range tokens {
		tokens[i] = token(r.Hashes[i/BlockTokens], i%BlockTokens)
	}
	return tokens
}

// token is the upper half of splitmix64's output number i for a seed that is the id. Ids are small and close to each other, so
// they are spread first.
func token(id uint64, i int) uint32 {
	x := id*0xd1342543de82ef95 + uint64(i+1)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return uint32((x ^ x>>31) >> 32)
}

// Reuse is how much of a trace's prompts was in a prompt before, as a prefix cache that never evicts would find it.
type Reuse struct {
	Requests int
	Hits     int // requests of which at least one page was there
	Tokens   int // of all prompts
	Reused   int // tokens in pages that were there
	Pages    int // of all prompts, a last partial page included
	Partial  int // prompts that end in a partial page; such a page is never shared
	Distinct int // pages that a cache would store, partial ones not included
}

// MeasureReuse counts in pages of so many tokens. Only full pages are shared, and only at the beginning of a prompt.
func MeasureReuse(requests []Request, pageTokens int) Reuse {
	u := Reuse{Requests: len(requests)}
	seen := map[uint64]int{} // tokens of each block that some prompt had; a block at the end of a prompt may be partly used
	for _, r := range requests {
		known, chain := 0, true // tokens at the beginning that were seen
		for k, id := range r.Hashes {
			n := min(BlockTokens, r.Input-k*BlockTokens)
			had := min(seen[id], n)
			if chain {
				known += had
			}
			chain = chain && had == BlockTokens
			seen[id] = max(seen[id], n)
		}
		shared := known / pageTokens
		full := r.Input / pageTokens
		u.Tokens += r.Input
		u.Reused += shared * pageTokens
		u.Pages += full
		u.Distinct += full - shared
		if shared > 0 {
			u.Hits++
		}
		if r.Input%pageTokens != 0 {
			u.Pages++
			u.Partial++
		}
	}
	return u
}
