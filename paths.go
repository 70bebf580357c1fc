package hawser

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/internal/wire"
	"github.com/hawser-project/hawser/provider"
)

// plan is one way to reach a peer: a provider, and which rails of both sides are paired.
type plan struct {
	path  string
	pairs []pair
	text  string
}

// pair is a link to be: two rails, and the rails of the dialer that it may join when that one fails, beginning with it.
type pair struct {
	wire.Link
	dialers []uint16
}

// links are the pairs as they go over the wire.
func (p *plan) links() []wire.Link {
	out := make([]wire.Link, len(p.pairs))
	for i := range p.pairs {
		out[i] = p.pairs[i].Link
	}
	return out
}

// party is what plans knows of one side.
type party struct {
	rails   []wire.Rail
	require string
}

// wants reports whether a side accepts a network.
func (p *party) wants(network string) bool { return p.require == "" || serves(network, p.require) }

// serves reports whether a network is what is required: by its whole name, or by its family, as ofi:tcp is by ofi.
func serves(network, required string) bool {
	return network == required || strings.HasPrefix(network, required+":")
}

// plans lists the ways between two engines, most preferred first: by the answerer's order of providers, and only those that both accept.
// Rails are paired when provider and fabric are equal; rail r of the longer list meets rail r mod n of the shorter one. Each fabric is a
// way of its own, but those of cards, which many a cluster gives a fabric each, are one: cards reports which networks are made of them.
// missing says why there is none over the networks that are not among them.
func plans(prefer []provider.Provider, dialer, answerer *party, cards func(network string) bool) (ways []plan, missing map[string]string) {
	missing = map[string]string{}
	for _, p := range prefer {
		name := p.Name()
		if !dialer.wants(name) || !answerer.wants(name) {
			missing[name] = "not what is required"
			continue
		}
		var found []plan
		for _, fabric := range fabrics(answerer.rails, name) {
			ds, as := indexes(dialer.rails, name, fabric), indexes(answerer.rails, name, fabric)
			if len(ds) > 0 && len(as) > 0 {
				found = append(found, pairUp(name, ds, as))
			}
		}
		switch {
		case len(found) == 0:
			missing[name] = lacking(name, dialer.rails, answerer.rails)
		case cards(name):
			ways = append(ways, merge(found))
		default:
			ways = append(ways, found...)
		}
	}
	return ways, missing
}

// pairUp is the way over one fabric.
func pairUp(network string, ds, as []uint16) plan {
	pl := plan{path: network, text: fmt.Sprintf("%s, %d x %d rails", network, len(ds), len(as))}
	for r := range max(len(ds), len(as)) {
		i := r % len(ds)
		l := wire.Link{Dialer: ds[i], Answerer: as[r%len(as)]}
		pl.pairs = append(pl.pairs, pair{l, append(slices.Clone(ds[i:]), ds[:i]...)})
	}
	return pl
}

// merge makes one way of those over several fabrics.
func merge(found []plan) plan {
	out := found[0]
	for _, pl := range found[1:] {
		out.pairs = append(out.pairs, pl.pairs...)
	}
	if len(found) > 1 {
		out.text = fmt.Sprintf("%s, %d links over %d fabrics", out.path, len(out.pairs), len(found))
	}
	out.pairs = out.pairs[:min(len(out.pairs), wire.MaxRails)]
	return out
}

// lacking says why there is no way over a network.
func lacking(network string, dialer, answerer []wire.Rail) string {
	here, there := up(answerer, network), up(dialer, network)
	switch {
	case !here && !there:
		return "" // nobody would expect it
	case !here:
		return "none on the side that was dialed"
	case !there:
		return "none on the side that dialed"
	}
	return "the two sides are on different fabrics"
}

func up(rails []wire.Rail, network string) bool {
	return slices.ContainsFunc(rails, func(r wire.Rail) bool { return r.Provider == network && r.Down == 0 })
}

func fabrics(rails []wire.Rail, name string) []string {
	var out []string
	seen := map[string]bool{}
	for _, r := range rails {
		if r.Provider == name && !seen[r.Fabric] {
			seen[r.Fabric] = true
			out = append(out, r.Fabric)
		}
	}
	return out
}

func indexes(rails []wire.Rail, name, fabric string) []uint16 {
	var out []uint16
	for i, r := range rails {
		if r.Provider == name && r.Fabric == fabric && r.Down == 0 {
			out = append(out, uint16(i))
		}
	}
	return out
}
