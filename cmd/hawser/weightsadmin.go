package main

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/reshard/safetensors"
	"github.com/hawser-project/hawser/weights"
	"github.com/hawser-project/hawser/weights/stage"
)

type weightsStatusCmd struct {
	weightsNodeFlags
	controllerFlag

	Watch bool `help:"Print it again whenever it changes, until interrupted."`
}

// statusJSON is the result in JSON.
type statusJSON struct {
	weightsHead

	Term    uint64       `json:"term"`
	Epoch   uint64       `json:"epoch"` // under way; 0: none
	Version uint64       `json:"version"`
	Members []memberJSON `json:"members"`
}

type memberJSON struct {
	Name     string `json:"name"`
	Role     string `json:"role"`
	Rank     int    `json:"rank"`
	Instance int    `json:"instance"`
	Leader   bool   `json:"leader"`
	Mode     string `json:"mode,omitempty"` // receivers: in place, shadow
	State    string `json:"state"`
	Version  uint64 `json:"version"`
	Pending  uint64 `json:"pending"`
	Held     uint64 `json:"held"`
	Root     string `json:"root,omitempty"`
	Epoch    uint64 `json:"epoch"`
	InDoubt  bool   `json:"in_doubt"`
	Stuck    int    `json:"stuck_peers"`
}

// Run prints the status.
func (c *weightsStatusCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	return weightsClient(ctx, &c.weightsNodeFlags, &c.controllerFlag, func(client *weights.Client) error {
		for last := ""; ; {
			s, err := client.Status(ctx)
			if err != nil {
				return err
			}
			r := clusterJSON(s)
			if text := fmt.Sprintf("%+v", r); text != last {
				last = text
				r.print(u)
				if err := u.line(r); err != nil {
					return err
				}
			}
			if !c.Watch {
				return nil
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(progressPause):
			}
		}
	})
}

func clusterJSON(s *weights.Cluster) *statusJSON {
	r := &statusJSON{weightsHead: weightsResult("status"), Term: s.Term, Epoch: s.Epoch, Version: uint64(s.Version), Members: []memberJSON{}}
	for _, m := range s.Members {
		x := memberJSON{
			Name: m.Name, Role: m.Role, Rank: m.Rank, Instance: m.Instance, Leader: m.Leader, State: m.State, Version: uint64(m.Version),
			Pending: uint64(m.Pending), Held: uint64(m.Held), Root: m.Root, Epoch: m.Epoch, InDoubt: m.InDoubt, Stuck: m.Stuck,
		}
		if m.Role == "receiver" {
			x.Mode = "in place"
			if m.Shadow {
				x.Mode = "shadow"
			}
		}
		r.Members = append(r.Members, x)
	}
	return r
}

func (r *statusJSON) print(u *ui) {
	var rows [][]string
	for _, m := range r.Members {
		instance, leader := "", ""
		if m.Role == "receiver" {
			instance = fmt.Sprint(m.Instance)
		}
		if m.Leader {
			leader = "leader"
		}
		rows = append(rows, []string{
			m.Role, fmt.Sprint(m.Rank), instance, leader, m.Mode, m.State, number0(m.Version), number0(m.Pending), number0(m.Held), fmt.Sprint(m.Epoch), fmt.Sprintf("%.12s", m.Root), number0(uint64(m.Stuck)),
		})
	}
	under := "no epoch under way"
	if r.Epoch > 0 {
		under = fmt.Sprintf("epoch %d under way", r.Epoch)
	}
	u.table(fmt.Sprintf("version %d, term %d, %s", r.Version, r.Term, under), []string{
		"role", "rank", "instance", "", "mode", "state", "serves", "pending", "kept", "epoch", "content root", "may still write",
	}, rows)
}

func number0(n uint64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}

type weightsVerifyCmd struct {
	weightsNodeFlags
	controllerFlag

	Version uint64 `placeholder:"N" help:"The version that must be served (default: that of the last commit)."`
	All     bool   `help:"Fail for receivers that serve another version or none, too."`
	From    string `placeholder:"DIR" help:"Compare with this checkpoint, resharded rank by rank without a plan; {version} stands for the version. It needs --layout."`
	Layout  string `placeholder:"FILE" help:"Layout of the inference side."`
}

// verifiedJSON is the result in JSON.
type verifiedJSON struct {
	weightsHead

	Version    uint64         `json:"version"`
	Equal      bool           `json:"equal"`
	WrongBytes *int64         `json:"wrong_bytes"` // with --from: of ranks whose root differs, all that they hold
	Ranks      []verifiedRank `json:"ranks"`
	Problems   []string       `json:"problems"`
}

type verifiedRank struct {
	Rank     int    `json:"rank"`
	Instance int    `json:"instance"`
	Shard    int    `json:"shard"` // rank within the instance
	Version  uint64 `json:"version"`
	Root     string `json:"root"`
	Want     string `json:"want,omitempty"` // of the checkpoint
}

// Help is shown below the first line of the help.
func (weightsVerifyCmd) Help() string {
	return "Content roots are compared, which receivers computed when they took the version: ranks of equal place in their instances must have equal ones. " +
		"The exit status is 5 when they have not."
}

// Run compares.
func (c *weightsVerifyCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	if (c.From == "") != (c.Layout == "") {
		return usage("--from and --layout come together")
	}
	var s *weights.Cluster
	err := weightsClient(ctx, &c.weightsNodeFlags, &c.controllerFlag, func(client *weights.Client) (err error) {
		s, err = c.rooted(ctx, client)
		return err
	})
	if err != nil {
		return err
	}
	r := c.compare(s)
	if c.From != "" {
		if err := c.reshard(u, r); err != nil {
			return err
		}
	}
	r.Equal = len(r.Problems) == 0
	r.print(u)
	err = u.result(r)
	if !r.Equal {
		err = errors.Join(fmt.Errorf("verify v%d: %s: %w", r.Version, r.Problems[0], weights.ErrDigest), err)
	}
	return err
}

// rootLimit is how long receivers may take for the roots of what they serve; with digests off they take none.
const rootLimit = 20 * time.Second

// rooted waits until the receivers that serve the version have told their roots, which they take after the push.
func (c *weightsVerifyCmd) rooted(ctx context.Context, client *weights.Client) (*weights.Cluster, error) {
	for deadline := time.Now().Add(rootLimit); ; {
		s, err := client.Status(ctx)
		if err != nil {
			return nil, err
		}
		version := cmp.Or(weights.Version(c.Version), s.Version)
		owes := func(m weights.MemberStatus) bool { return m.Role == "receiver" && m.Version == version && m.Root == "" }
		if !slices.ContainsFunc(s.Members, owes) || time.Now().After(deadline) {
			return s, nil
		}
		select {
		case <-time.After(20 * time.Millisecond): // between two looks
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// compare compares receivers with each other.
func (c *weightsVerifyCmd) compare(s *weights.Cluster) *verifiedJSON {
	r := &verifiedJSON{weightsHead: weightsResult("verify"), Version: c.Version, Ranks: []verifiedRank{}, Problems: []string{}}
	if r.Version == 0 {
		r.Version = uint64(s.Version)
	}
	wrong := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	shards := map[int]int{}         // instance -> ranks so far; members are sorted by rank
	first := map[int]verifiedRank{} // shard -> who has it first
	for _, m := range s.Members {
		if m.Role != "receiver" {
			continue
		}
		x := verifiedRank{Rank: m.Rank, Instance: m.Instance, Shard: shards[m.Instance], Version: uint64(m.Version), Root: m.Root}
		shards[m.Instance]++
		r.Ranks = append(r.Ranks, x)
		if x.Version != r.Version {
			if c.All {
				wrong("receiver %d is %s and serves version %d", x.Rank, m.State, x.Version)
			}
			continue
		}
		if one, ok := first[x.Shard]; !ok {
			first[x.Shard] = x
		} else if one.Root != x.Root {
			wrong("receivers %d and %d hold the same shard, and have the roots %.12s and %.12s", one.Rank, x.Rank, one.Root, x.Root)
		}
	}
	if len(first) == 0 {
		wrong("no receiver serves version %d", r.Version)
	}
	return r
}

// reshard compares receivers with a checkpoint.
func (c *weightsVerifyCmd) reshard(u *ui, r *verifiedJSON) (err error) {
	l, _, err := readLayout(c.Layout)
	if err != nil {
		return err
	}
	ckpt, err := checkpointAt(c.From, weights.Version(r.Version))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ckpt.Close()) }()
	wrong := int64(0)
	roots := map[int]string{} // by shard
	for i := range r.Ranks {
		x := &r.Ranks[i]
		if x.Version != r.Version {
			continue
		}
		u.status.show("verify: resharding rank %d", x.Rank)
		if x.Rank >= len(l.Buffers) {
			return usage("--layout: it has %d ranks, receiver %d has joined", len(l.Buffers), x.Rank)
		}
		want, ok := roots[x.Shard]
		if !ok {
			root, err := naiveRoot(ckpt, l, x.Rank)
			if err != nil {
				return usage("--from: %w", err)
			}
			want = hex.EncodeToString(root[:])
			roots[x.Shard] = want
		}
		if x.Want = want; x.Want != x.Root {
			r.Problems = append(r.Problems, fmt.Sprintf("receiver %d has the root %.12s, the checkpoint resharded has %.12s", x.Rank, x.Root, x.Want))
			for _, n := range l.Buffers[x.Rank] {
				wrong += n
			}
		}
	}
	r.WrongBytes = &wrong
	return nil
}

// naiveRoot is the content root of a rank that was loaded from a checkpoint without a plan.
func naiveRoot(ckpt *safetensors.Checkpoint, l *reshard.Layout, rank int) (root [32]byte, err error) {
	var memory [][]byte
	for _, n := range l.Buffers[rank] {
		memory = append(memory, make([]byte, n))
	}
	if err := ckpt.Load(l, rank, memory); err != nil {
		return root, err
	}
	held, err := l.Held(rank)
	if err != nil {
		return root, err
	}
	sum := stage.NewRoot()
	for i := range held {
		h := &held[i]
		name := l.Tensors[h.Tensor].Name
		if h.Scales {
			name += " scales"
		}
		sum.Begin(name)
		h.Spans(func(off, n int64) bool {
			sum.Add(memory[h.Buffer][off : off+n])
			return true
		})
	}
	return sum.Sum(), nil
}

func (r *verifiedJSON) print(u *ui) {
	var rows [][]string
	for _, x := range r.Ranks {
		rows = append(rows, []string{fmt.Sprint(x.Rank), fmt.Sprint(x.Instance), fmt.Sprint(x.Shard), number0(x.Version), fmt.Sprintf("%.16s", x.Root), fmt.Sprintf("%.16s", x.Want)})
	}
	header := []string{"rank", "instance", "shard", "serves", "content root", "checkpoint"}
	u.table(fmt.Sprintf("verify version %d", r.Version), header, rows)
	for _, p := range r.Problems {
		u.printf("problem: %s\n", p)
	}
	if r.Equal {
		u.printf("all receivers that serve version %d are equal\n", r.Version)
	}
}

type weightsRollbackCmd struct {
	weightsNodeFlags
	controllerFlag

	To     uint64 `placeholder:"N" help:"The version to serve again: one that receivers have kept, or that another instance still serves (default: what receivers have kept)."`
	Epoch  uint64 `placeholder:"E" help:"Decide this epoch, which members are in doubt about."`
	Decide string `enum:",commit,abort" default:"" placeholder:"commit|abort" help:"How --epoch ended."`
	Force  bool   `help:"Decide although a member of the epoch cannot be asked."`
}

// Help is shown below the first line of the help.
func (weightsRollbackCmd) Help() string {
	return "With --epoch and --decide everybody is asked first; if anybody knows the other decision, yours is refused."
}

// Run rolls back or decides.
func (c *weightsRollbackCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	switch {
	case (c.Epoch != 0) != (c.Decide != ""):
		return usage("--epoch and --decide come together")
	case c.Epoch != 0 && c.To != 0:
		return usage("--to goes without --epoch")
	case c.Epoch == 0 && c.Force:
		return usage("--force goes with --epoch")
	}
	return weightsClient(ctx, &c.weightsNodeFlags, &c.controllerFlag, func(client *weights.Client) error {
		r, err := c.order(ctx, u, client)
		if r == nil {
			return err
		}
		out := newPushed(r, err)
		out.Command = "rollback"
		out.print(u, err)
		return errors.Join(err, u.result(out))
	})
}

func (c *weightsRollbackCmd) order(ctx context.Context, u *ui, client *weights.Client) (*weights.Report, error) {
	s, err := client.Status(ctx)
	if err != nil {
		return nil, err
	}
	if c.Epoch != 0 {
		clusterJSON(s).print(u)
		return client.Decide(ctx, c.Epoch, c.Decide == "commit", c.Force)
	}
	to := weights.Version(c.To)
	for _, m := range s.Members {
		if to == 0 && m.Role == "receiver" {
			to = m.Held
		}
	}
	if to == 0 {
		return nil, usage("--to: no receiver has kept an older version: say which one, if another instance serves it, or push it again")
	}
	return client.Rollback(ctx, to)
}
