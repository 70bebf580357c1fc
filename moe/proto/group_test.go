package proto

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/hawser-project/hawser"
)

// seats of a test: a group of rank 0, and what it wanted. The test is the other ranks.
type council struct {
	*rig
	group *Group
	did   []string
	last  map[string]Ready
	err   error
	next  uint64

	refuse error // of Active
}

func (c *council) Send(to Member, epoch uint32, round int, b []byte) {
	r, err := c.cfg.ParseReady(slices.Clone(b))
	if err != nil || r.View != epoch || r.Round != round || r.To != to.ID {
		panic(fmt.Sprint(r, err))
	}
	key := fmt.Sprintf("ready%d %d", round, to.Rank)
	c.did, c.last[key] = append(c.did, key), r
}

func (c *council) Fence(m Member) { c.did = append(c.did, fmt.Sprintf("fence %d %d", m.Rank, m.ID[0])) }

func (c *council) Recycle(_ uint32, fresh bool) {
	c.did = append(c.did, fmt.Sprintf("recycle %v", fresh))
}
func (c *council) Descriptors(m Member) []byte { return []byte{byte(m.Rank)} }
func (c *council) Import(m Member, d []byte) {
	c.did = append(c.did, fmt.Sprintf("import %d %d", m.Rank, len(d)))
}
func (c *council) Inactive(err error) { c.err = err }
func (c *council) Active(a Activated) error {
	c.did, c.next = append(c.did, "active"), a.Next[0]
	return c.refuse
}

func newCouncil(t *testing.T) *council {
	c := &council{rig: newRig(t), last: map[string]Ready{}}
	c.cfg.Lanes = 1
	c.rig.lane = NewLane(c.cfg, c.rig)
	c.group = NewGroup(c.cfg, ID{1}, []*Lane{c.rig.lane}, c)
	return c
}

// view is one of these ranks, whose identities are their numbers and one more, or as id says.
func view(epoch uint32, id map[int]byte, ranks ...int) View {
	v := View{Epoch: epoch}
	for _, r := range ranks {
		m := Member{r, ID{byte(r + 1)}}
		if b := id[r]; b > 0 {
			m.ID = ID{b}
		}
		v.Members = append(v.Members, m)
	}
	return v
}

// say lets a rank say a round.
func (c *council) say(t *testing.T, epoch uint32, round, rank int, f func(*Ready)) {
	t.Helper()
	r := Ready{View: epoch, Round: round, Source: rank, From: ID{byte(rank + 1)}, To: ID{1}, Config: c.cfg.Hash(), Has: c.last[fmt.Sprintf("ready2 %d", rank)].View}
	if round == 2 {
		r.Descriptors = []byte("d")
	}
	if f != nil {
		f(&r)
	}
	if err := c.group.Message(r.From, r.Append(nil, 1)); err != nil {
		t.Fatal(err)
	}
}

// enter brings a view about, with these ranks.
func (c *council) enter(t *testing.T, epoch uint32, ranks ...int) {
	t.Helper()
	if err := c.group.Activate(view(epoch, nil, append([]int{0}, ranks...)...)); err != nil {
		t.Fatal(err)
	}
	c.quiet()
	for _, r := range ranks {
		c.say(t, epoch, 1, r, nil)
	}
	c.group.Recycled()
	for _, r := range ranks {
		c.say(t, epoch, 2, r, nil)
		c.group.Imported(Member{r, ID{byte(r + 1)}}, nil)
	}
	if !c.group.Active() {
		t.Fatalf("not active: %q, %v", c.did, c.err)
	}
	c.did = nil
}

// TestActivate: the two rounds, and that who takes part from the first view on gets descriptors once.
func TestActivate(t *testing.T) {
	c := newCouncil(t)
	if err := c.group.Activate(view(1, nil, 0, 1, 2)); err != nil {
		t.Fatal(err)
	}
	c.say(t, 1, 2, 2, func(r *Ready) { r.Lanes[0] = LaneState{9, 8} }) // says what round 1 says, too
	c.say(t, 1, 1, 1, func(r *Ready) { r.Lanes[0] = LaneState{5, 5} })
	c.group.Recycled()
	c.group.Imported(Member{2, ID{3}}, nil)
	c.say(t, 1, 2, 1, nil)
	c.say(t, 1, 2, 1, nil)
	c.group.Imported(Member{1, ID{2}}, nil)
	want := []string{"ready1 1", "ready1 2", "recycle false", "ready2 1", "ready2 2", "import 2 1", "import 1 1", "active"}
	if !slices.Equal(c.did, want) || c.next != 10 || c.err != nil {
		t.Errorf("%q, want %q; next step %d, %v", c.did, want, c.next, c.err)
	}
	if len(c.last["ready2 1"].Descriptors) != 1 {
		t.Error("no descriptors")
	}
	c.enter(t, 2, 1, 2)
	if len(c.last["ready2 1"].Descriptors) != 0 {
		t.Error("descriptors that it has")
	}
}

// TestActivateRefuses: what cannot be a change of view changes nothing.
func TestActivateRefuses(t *testing.T) {
	c := newCouncil(t)
	c.enter(t, 3, 1, 2)
	for _, x := range []struct {
		v    View
		want error
	}{
		{view(3, nil, 0, 1), hawser.ErrStale},
		{view(4, nil, 1, 2), hawser.ErrInvalid},
		{view(4, map[int]byte{0: 9}, 0, 1), hawser.ErrInvalid},
		{view(4, nil, 0, 2, 1), hawser.ErrInvalid},
		{view(4, nil, 0, 1, 3), hawser.ErrInvalid},
		{view(4, nil, 0, 1, 1), hawser.ErrInvalid},
	} {
		if err := c.group.Activate(x.v); !errors.Is(err, x.want) || !c.group.Active() {
			t.Errorf("%+v: %v, want %v", x.v, err, x.want)
		}
	}
	c.begin(t, 0)
	if err := c.group.Activate(view(4, nil, 0, 1)); !errors.Is(err, hawser.ErrBusy) {
		t.Error(err)
	}
}

// TestWhoIsFenced: who left, who came back under another identity, who was held missing, who says that a write may yet land; nobody else.
func TestWhoIsFenced(t *testing.T) {
	for name, x := range map[string]struct {
		before func(c *council)
		v      View
		say    func(*Ready)
		want   []string
	}{
		"nobody":   {nil, view(2, nil, 0, 1, 2), nil, nil},
		"who left": {nil, view(2, nil, 0, 1), nil, []string{"fence 2 3"}},
		"a successor": {nil, view(2, map[int]byte{2: 9}, 0, 1, 2), func(r *Ready) {
			if r.Source == 2 {
				r.From = ID{9}
			}
		}, []string{"fence 2 3"}},
		"held missing": {func(c *council) {
			c.begin(t, 0)
			c.group.PeerDown(2)
			c.rig.lane.Cancel(CodeCanceled)
		}, view(2, nil, 0, 1, 2), nil, []string{"fence 2 3"}},
		"unfenced there": {nil, view(2, nil, 0, 1, 2), func(r *Ready) { r.Unfenced = r.Source == 1 }, []string{"fence 1 2"}},
	} {
		c := newCouncil(t)
		c.enter(t, 1, 1, 2)
		if x.before != nil {
			x.before(c)
		}
		c.rig.lane.told = true // nobody needs to hear it here
		c.quiet()
		if err := c.group.Activate(x.v); err != nil {
			t.Fatal(name, err)
		}
		c.quiet()
		for _, m := range x.v.Members[1:] {
			c.say(t, 2, 1, m.Rank, x.say)
		}
		var fences []string
		for _, d := range c.did {
			if d[0] == 'f' {
				fences = append(fences, d)
			}
		}
		if !slices.Equal(fences, x.want) || (len(fences) == 0) != (c.group.stage == recycling) {
			t.Errorf("%s: %q, want %q; %q", name, fences, x.want, c.did)
		}
	}
}

// quiet ends the Transfers of the lane.
func (c *council) quiet() {
	for _, op := range []Op{OpHead, OpCancel} {
		if slices.Contains(c.rig.did, "all "+op.String()) {
			c.rig.lane.Ended(Transfer{Op: op, Rank: All})
		}
	}
	c.rig.did = nil
	c.group.Progress()
}

// TestActiveFails: what cannot be written to is not active, and its epoch is used up. Until then it says for whom it waits.
func TestActiveFails(t *testing.T) {
	c := newCouncil(t)
	c.refuse = errors.New("no")
	if err := c.group.Activate(view(1, nil, 0, 1, 2)); err != nil {
		t.Fatal(err)
	}
	awaits := func(want ...int) {
		t.Helper()
		if got := c.group.Awaited(); !slices.Equal(got, want) {
			t.Errorf("awaits %v, want %v", got, want)
		}
	}
	awaits(1, 2)
	c.say(t, 1, 1, 2, nil)
	awaits(1)
	c.say(t, 1, 1, 1, nil)
	c.group.Recycled()
	awaits(1, 2)
	for _, r := range []int{1, 2} {
		c.say(t, 1, 2, r, nil)
		c.group.Imported(Member{r, ID{byte(r + 1)}}, nil)
	}
	awaits()
	if c.group.Active() || !errors.Is(c.err, c.refuse) || !errors.Is(c.err, ErrInactive) {
		t.Errorf("active %v, %v", c.group.Active(), c.err)
	}
	c.refuse, c.err = nil, nil
	if c.enter(t, 2, 1, 2); c.err != nil {
		t.Error(c.err)
	}
}

// TestRegionsSetAside: one set of regions may wait for who may yet write it, a second one may not.
func TestRegionsSetAside(t *testing.T) {
	c := newCouncil(t)
	for epoch := uint32(1); epoch < 6; epoch += 2 {
		if epoch > 1 {
			if c.last["ready2 1"].View != epoch-1 || len(c.last["ready2 1"].Descriptors) == 0 {
				t.Errorf("view %d: no descriptors of the new regions", epoch)
			}
		}
		c.enter(t, epoch, 1, 2)
		c.rig.lane.told = true
		if err := c.group.Activate(view(epoch+1, nil, 0, 1)); err != nil {
			t.Fatal(err)
		}
		c.quiet()
		c.say(t, epoch+1, 1, 1, nil)
		c.group.Fenced(Member{2, ID{3}}, true)
		if epoch == 3 {
			if !errors.Is(c.err, hawser.ErrLimit) || !errors.Is(c.err, ErrInactive) {
				t.Errorf("%v, %q", c.err, c.did)
			}
			return
		}
		if c.err != nil || !slices.Contains(c.did, "recycle true") {
			t.Errorf("%v, %q", c.err, c.did)
		}
		c.group.Recycled()
	}
}

// TestForeignReady: messages of strangers, of the past, of other configurations.
func TestForeignReady(t *testing.T) {
	c := newCouncil(t)
	if err := c.group.Activate(view(5, nil, 0, 1)); err != nil {
		t.Fatal(err)
	}
	bad := func(from ID, f func(*Ready)) error {
		r := Ready{View: 5, Round: 1, Source: 1, From: ID{2}, To: ID{1}, Config: c.cfg.Hash()}
		f(&r)
		return c.group.Message(from, r.Append(nil, 1))
	}
	for name, err := range map[string]error{
		"sender": bad(ID{7}, func(*Ready) {}), "recipient": bad(ID{2}, func(r *Ready) { r.To = ID{7} }), "myself": bad(ID{2}, func(r *Ready) { r.Source = 0 }),
		"member": bad(ID{2}, func(r *Ready) { r.Source = 2 }), "identity": bad(ID{7}, func(r *Ready) { r.From = ID{7} }),
	} {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := bad(ID{2}, func(r *Ready) { r.View = 4 }); err != nil || c.group.stage != round1 {
		t.Errorf("the past: %v, stage %d", err, c.group.stage)
	}
	c.say(t, 5, 1, 1, func(r *Ready) { r.Config++ })
	if !errors.Is(c.err, hawser.ErrInvalid) {
		t.Errorf("another configuration: %v", c.err)
	}
	c.say(t, 6, 1, 1, nil) // of the future
	if err := c.group.Activate(view(6, nil, 0, 1)); err != nil || c.group.stage != recycling {
		t.Errorf("%v, stage %d", err, c.group.stage)
	}
}
