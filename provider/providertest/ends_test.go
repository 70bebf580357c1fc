package providertest

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// defects are ways to break what Caps.AccessEnds promises. Each is a change of what a Domain over a network that keeps it does;
// the network is one process, so what both sides know is in rig.
var defects = map[string]func(r *rig, d *endsBadly, cs []provider.Completion) []provider.Completion{
	"the refused write is flushed": func(_ *rig, _ *endsBadly, cs []provider.Completion) []provider.Completion {
		for i := range cs {
			if cs[i].Kind == provider.KindWrite && cs[i].Status == provider.StatusAccess {
				cs[i].Status = provider.StatusFlushed
			}
		}
		return cs
	},
	"what was flushed ended well": func(_ *rig, _ *endsBadly, cs []provider.Completion) []provider.Completion {
		for i := range cs {
			if cs[i].Kind == provider.KindWrite && cs[i].Status == provider.StatusFlushed {
				cs[i].Status = provider.StatusOK
			}
		}
		return cs
	},
	"the writer is not told why": func(_ *rig, d *endsBadly, cs []provider.Completion) []provider.Completion {
		for i := range cs {
			if cs[i].Kind == provider.KindPeerDown && cs[i].Status == provider.StatusAccess && d.refused {
				cs[i].Status = provider.StatusPeerDown
			}
		}
		return cs
	},
	"the receiver is not told": func(_ *rig, d *endsBadly, cs []provider.Completion) []provider.Completion {
		return slices.DeleteFunc(cs, func(c provider.Completion) bool {
			return c.Kind == provider.KindPeerDown && c.Status == provider.StatusAccess && !d.refused
		})
	},
	"the receiver hears that it was refused a connection": func(_ *rig, d *endsBadly, cs []provider.Completion) []provider.Completion {
		for i := range cs {
			if cs[i].Kind == provider.KindPeerDown && cs[i].Status == provider.StatusAccess && !d.refused {
				cs[i].Status = provider.StatusRefused
			}
		}
		return cs
	},
	"another connection of the receiver ends": func(r *rig, d *endsBadly, cs []provider.Completion) []provider.Completion {
		for i := range cs {
			if cs[i].Kind == provider.KindPeerDown && cs[i].Status == provider.StatusAccess && !d.refused {
				r.hurt(d, cs[i].Peer)
			}
		}
		return cs
	},
	"the immediate of a refused write comes": func(_ *rig, d *endsBadly, cs []provider.Completion) []provider.Completion {
		for i := range cs {
			if cs[i].Kind == provider.KindPeerDown && cs[i].Status == provider.StatusAccess && !d.refused {
				imm := provider.Completion{Kind: provider.KindImm, Peer: cs[i].Peer, Imm: 0xBAD}
				return slices.Insert(cs, i, imm)
			}
		}
		return cs
	},
	"the part inside lands":        nil, // below, in Post
	"no connection comes up again": nil, // below, in Connect
}

// rig is what the Domains of one broken network share.
type rig struct {
	defect  string
	granted map[uint64][2]uint64 // base and length, by key
}

// endsBadly is a Domain of a broken network.
type endsBadly struct {
	provider.Domain
	r       *rig
	up      []provider.Peer
	refused bool // the latest write that ended with StatusAccess was this side's
	more    []provider.Completion
}

// hurt disconnects a peer that has nothing to do with p.
func (r *rig) hurt(d *endsBadly, p provider.Peer) {
	for _, x := range d.up {
		if x != p && d.Domain.Disconnect(x) == nil {
			return
		}
	}
}

func (d *endsBadly) Grant(k provider.Key, p provider.Peer, off, n uint64) (provider.Key, error) {
	g, err := d.Domain.Grant(k, p, off, n)
	if err == nil {
		d.r.granted[g.ID] = [2]uint64{g.Base, n}
	}
	return g, err
}

func (d *endsBadly) Connect(p provider.Peer, a provider.Addr, active bool) error {
	if d.r.defect == "no connection comes up again" && d.refused {
		return errors.New("not again")
	}
	return d.Domain.Connect(p, a, active)
}

// ownToken marks writes that Post added.
const ownToken = 1 << 63

func (d *endsBadly) Post(wrs []provider.WR) (int, error) {
	if d.r.defect != "the part inside lands" {
		return d.Domain.Post(wrs)
	}
	for i, wr := range wrs {
		if g, ok := d.r.granted[wr.RemoteKey]; ok && (wr.Op == provider.OpWrite || wr.Op == provider.OpWriteImm) {
			if off := wr.RemoteAddr - g[0]; off < g[1] && wr.Len > g[1]-off {
				part := wr
				part.Op, part.Token, part.Len = provider.OpWrite, ownToken, g[1]-off
				if n, err := d.Domain.Post([]provider.WR{part}); n == 0 || err != nil {
					return i, err
				}
			}
		}
		if n, err := d.Domain.Post([]provider.WR{wr}); n == 0 || err != nil {
			return i, err
		}
	}
	return len(wrs), nil
}

func (d *endsBadly) Poll(cs []provider.Completion) (int, error) {
	n, err := d.Domain.Poll(cs[:max(len(cs)-2, min(len(cs), 1))]) // room for one that a defect adds
	got := slices.DeleteFunc(append(d.more, cs[:n]...), func(c provider.Completion) bool { return c.Token == ownToken })
	for _, c := range got {
		if c.Kind == provider.KindPeerUp {
			d.up = append(d.up, c.Peer)
		}
		if c.Kind == provider.KindWrite && c.Status == provider.StatusAccess {
			d.refused = true
		}
	}
	if change := defects[d.r.defect]; change != nil {
		got = change(d.r, d, got)
	}
	n = copy(cs, got)
	d.more = slices.Clone(got[n:])
	return n, err
}

func broken(defect string) Factory {
	return Factory{
		Memory: mem.Heap,
		Network: func(*testing.T) Network {
			f := sim.New(sim.Config{Seed: 1, NIC: sim.NIC{Ordered: true, AccessEnds: true}})
			r := &rig{defect: defect, granted: map[uint64][2]uint64{}}
			return Network{Provider: func(host string) provider.Provider {
				return Decorate(f.Provider(host), func(d provider.Domain) provider.Domain { return &endsBadly{Domain: d, r: r} })
			}}
		},
	}
}

// brokenEnv names the defect of TestBrokenNetwork, which passes without one.
const brokenEnv = "HAWSER_PROVIDERTEST_BROKEN"

// brokenGuard is short: one of the defects is that something never comes.
const brokenGuard = 2 * time.Second

func TestBrokenNetwork(t *testing.T) {
	defect := os.Getenv(brokenEnv)
	w := newWorld(t, broken(defect))
	if defect != "" {
		w.guard = brokenGuard
	}
	w.name, w.table = "RefusalEndsOneConnection", &expectations{}
	refusalEndsOneConnection(w)
}

// TestRefusalsThatEndBadlyAreCaught: a network that breaks one of the promises of Caps.AccessEnds fails the property about it.
func TestRefusalsThatEndBadlyAreCaught(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	run := func(defect string) (string, error) {
		cmd := exec.Command(exe, "-test.run=^TestBrokenNetwork$", "-test.count=1", "-test.timeout=1m", "-providertest.seed=1")
		cmd.Env = append(os.Environ(), brokenEnv+"="+defect)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	said := regexp.MustCompile(`(?m)^ +[a-z_]+\.go:\d+: (.*)`)
	for defect := range defects {
		t.Run(strings.ReplaceAll(defect, " ", "-"), func(t *testing.T) {
			t.Parallel()
			out, err := run(defect)
			if err == nil || !strings.Contains(out, "--- FAIL: TestBrokenNetwork") {
				t.Fatalf("a network where %s passes: %v\n%s", defect, err, out)
			}
			var why []string
			for _, m := range said.FindAllStringSubmatch(out, -1) {
				why = append(why, m[1])
			}
			t.Logf("caught: %s", strings.Join(why, "; "))
		})
	}
}
