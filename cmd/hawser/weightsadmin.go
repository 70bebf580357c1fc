package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/weights"
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
	// Of a receiver in a push: how much has come, and what it waits for; null: nothing, or it has not told yet.
	Arrived int64        `json:"arrived_bytes"`
	Of      int64        `json:"of_bytes"`
	Waiting *waitingJSON `json:"waiting"`
	waits   string
}

type waitingJSON struct {
	Stage   string        `json:"stage"`
	Have    uint64        `json:"have"` // writes
	Want    uint64        `json:"want"`
	Missing []missingJSON `json:"missing"`
	More    int           `json:"more"` // publishers that are not named
}

type missingJSON struct {
	Publisher int    `json:"publisher"`
	Have      uint64 `json:"have"`
	Want      uint64 `json:"want"`
	Down      bool   `json:"down"`
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
			Arrived: m.Arrived.Bytes, Of: m.Arrived.Of,
		}
		if w := m.Waiting; w != nil {
			x.Waiting = &waitingJSON{Stage: w.Stage, Have: w.Have, Want: w.Want, More: w.More, Missing: []missingJSON{}}
			for _, o := range w.Missing {
				x.Waiting.Missing = append(x.Waiting.Missing, missingJSON{o.Publisher, o.Have, o.Want, o.Down})
			}
			x.waits = waitingText(w)
		}
		if m.Role == "receiver" {
			x.Mode = modeOf(m.Shadow)
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
			m.Role, fmt.Sprint(m.Rank), instance, leader, m.Mode, m.State, number0(m.Version), number0(m.Pending), number0(m.Held), fmt.Sprint(m.Epoch), fmt.Sprintf("%.12s", m.Root), number0(uint64(m.Stuck)), m.waits,
		})
	}
	under := "no epoch under way"
	if r.Epoch > 0 {
		under = fmt.Sprintf("epoch %d under way", r.Epoch)
	}
	u.table(fmt.Sprintf("version %d, term %d, %s", r.Version, r.Term, under), []string{
		"role", "rank", "instance", "", "mode", "state", "serves", "pending", "kept", "epoch", "content root", "may still write", "waits for",
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
	WrongBytes *int64         `json:"wrong_bytes"` // with --from: in cells of 1 MiB that differ
	Ranks      []verifiedRank `json:"ranks"`
	Problems   []string       `json:"problems"`
}

type verifiedRank struct {
	Rank     int    `json:"rank"`
	Instance int    `json:"instance"`
	Shard    int    `json:"shard"` // rank within the instance
	Version  uint64 `json:"version"`
	Root     string `json:"root"`               // of the memory, now
	Recorded string `json:"recorded,omitempty"` // when the version came
	Want     string `json:"want,omitempty"`     // of the checkpoint
	cells    *weights.Content
}

// Help is shown below the first line of the help.
func (weightsVerifyCmd) Help() string {
	return "Receivers hash the memory that they serve, which must be what it was when the version came; ranks of equal place in their instances must hold the same. " +
		"The exit status is 5 when they do not."
}

// Run compares.
func (c *weightsVerifyCmd) Run(ctx context.Context, u *ui) error {
	c.hush(u)
	if (c.From == "") != (c.Layout == "") {
		return usage("--from and --layout come together")
	}
	var s *weights.Cluster
	var list []weights.Content
	err := weightsClient(ctx, &c.weightsNodeFlags, &c.controllerFlag, func(client *weights.Client) (err error) {
		if s, err = client.Status(ctx); err != nil {
			return err
		}
		u.status.show("verify: receivers hash their memory")
		list, err = client.Contents(ctx)
		return err
	})
	if err != nil {
		return err
	}
	r := c.compare(s, list)
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

// compare compares receivers with themselves and each other.
func (c *weightsVerifyCmd) compare(s *weights.Cluster, list []weights.Content) *verifiedJSON {
	r := &verifiedJSON{weightsHead: weightsResult("verify"), Version: c.Version, Ranks: []verifiedRank{}, Problems: []string{}}
	if r.Version == 0 {
		r.Version = uint64(s.Version)
	}
	wrong := func(format string, args ...any) { r.Problems = append(r.Problems, fmt.Sprintf(format, args...)) }
	shards := map[int]int{}         // instance -> ranks so far; they are sorted by rank
	first := map[int]verifiedRank{} // shard -> who has it first
	for i := range list {
		m := &list[i]
		x := verifiedRank{Rank: m.Rank, Instance: m.Instance, Shard: shards[m.Instance], Version: uint64(m.Version), Root: m.Root, Recorded: m.Recorded, cells: m}
		shards[m.Instance]++
		r.Ranks = append(r.Ranks, x)
		if m.Err != "" || x.Version != r.Version {
			if c.All {
				wrong("receiver %d serves version %d, not %d: %s", x.Rank, x.Version, r.Version, m.Err)
			}
			continue
		}
		if m.Recorded != "" && m.Recorded != m.Root {
			wrong("receiver %d: its memory has the root %.12s, it had %.12s when the version came", x.Rank, m.Root, m.Recorded)
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
	n, err := newNaive(c.From, weights.Version(r.Version), l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	wrong := int64(0)
	for i := range r.Ranks {
		x := &r.Ranks[i]
		if x.Version != r.Version || x.cells.Err != "" {
			continue
		}
		u.status.show("verify: resharding rank %d", x.Rank)
		bytes, want, err := n.wrong(x.cells)
		if err != nil {
			return err
		}
		wrong += bytes
		if x.Want = want; x.Want != x.Root {
			r.Problems = append(r.Problems, fmt.Sprintf("receiver %d has the root %.12s, the checkpoint resharded has %.12s: %d bytes are in cells that differ", x.Rank, x.Root, x.Want, bytes))
		}
	}
	r.WrongBytes = &wrong
	return nil
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
