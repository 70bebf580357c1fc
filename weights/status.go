package weights

import (
	"cmp"
	"encoding/hex"
	"slices"
	"strings"

	"github.com/hawser-project/hawser/weights/proto"
)

// Cluster is what a controller knows of its members: a snapshot.
type Cluster struct {
	Term    uint64
	Epoch   uint64  // that is under way; 0: none
	Version Version // of the last commit
	Waits   string  // what an operation that has not begun waits for
	Members []MemberStatus
}

// MemberStatus is what a member has said of itself last.
type MemberStatus struct {
	ID       string // of its engine
	Name     string
	Role     string // "publisher", "receiver"
	Rank     int
	Instance int
	Leader   bool
	Shadow   bool
	State    string
	Version  Version // receivers: served, 0: none
	Pending  Version // of the epoch that it is in, or that it offers
	Held     Version // receivers: that it could take back
	Root     string  // content root of Version, in hexadecimal; empty: not known
	Epoch    uint64
	InDoubt  bool
	Stuck    int // peers that may still write into it
	// Waiting is what a receiver waits for in the epoch that is under way, as it was a moment ago; nil: nothing, or it has not told yet.
	Waiting *Waiting
	Arrived Arrived // the same
}

// Status is a snapshot of what members have told.
func (c *Controller) Status() Cluster {
	c.mu.Lock()
	defer c.mu.Unlock()
	st := c.m.Status()
	s := Cluster{Term: st.Term.Number, Epoch: st.Running.Number, Version: st.Version, Waits: st.Waits}
	for _, j := range st.Members {
		m := MemberStatus{
			ID: j.Member.ID.String(), Name: j.Name, Role: j.Member.Role.String(), Rank: j.Member.Rank, Instance: j.Member.Instance, Leader: j.Member.Leader,
			Shadow: j.Member.Shadow, State: j.State.String(), Version: j.Version, Pending: j.Pending, Held: j.Held, Epoch: j.Epoch.Number,
			InDoubt: j.State == proto.StateInDoubt, Stuck: len(j.Stuck),
		}
		if s.Epoch != 0 { // members do not report their state while it runs
			m.Waiting, m.Arrived = c.clock.owing(j.Member.ID, s.Epoch), c.clock.arrived(j.Member.ID, s.Epoch)
		}
		if j.Root != (proto.Hash{}) {
			m.Root = hex.EncodeToString(j.Root[:])
		}
		s.Members = append(s.Members, m)
	}
	slices.SortFunc(s.Members, func(a, b MemberStatus) int {
		return cmp.Or(strings.Compare(a.Role, b.Role), a.Rank-b.Rank)
	})
	return s
}
