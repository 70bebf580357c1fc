package proto

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// rig is a lane of rank 0, and everything that it wanted. The test is all other ranks.
type rig struct {
	cfg    *Layout
	lane   *Lane
	heads  [3][]byte
	grants [3][Window][]byte
	cancel [3][]byte
	did    []string
	posts  []Target
	miss   []int
	codes  []Code
	totals [3][Kinds]uint64
}

func (r *rig) say(s string)               { r.did = append(r.did, s) }
func (r *rig) Pack(uint64)                { r.say("pack") }
func (r *rig) PackY(uint64)               { r.say("packY") }
func (r *rig) HeadsIn(uint64)             { r.say("heads") }
func (r *rig) Received(uint64)            { r.say("received") }
func (r *rig) HalfFree(uint8)             { r.say("half") }
func (r *rig) CombIn(uint64)              { r.say("comb") }
func (r *rig) Head(i int) []byte          { return r.heads[i] }
func (r *rig) Grant(i, w int) []byte      { return r.grants[i][w] }
func (r *rig) Cancel(i int) []byte        { return r.cancel[i] }
func (r *rig) Write(op Op, t Target)      { r.say(op.String()); r.posts = append(r.posts, t) }
func (r *rig) Arrived(_ int, _, _ uint32) { r.say("arrived") }

func (r *rig) Scatter(op Op, targets []Target) {
	r.say([...]string{OpHead: "all head", OpComb: "all comb", OpCancel: "all cancel"}[op])
	r.posts = append(r.posts, targets...)
}

func (r *rig) Missing(_ uint64, rank int, why Code) {
	r.miss, r.codes = append(r.miss, rank), append(r.codes, why)
}

func (r *rig) Failed(_ uint64, why Code, blamed int) {
	r.say("failed")
	r.miss, r.codes = append(r.miss, blamed), append(r.codes, why)
}

func newRig(t testing.TB) *rig {
	l, err := NewLayout(Config{
		MaxRanks: 3, MaxTokens: 16, Hidden: 8, TopK: 2, Experts: 6, InBytes: 1, WireBytes: 2, FirstChunk: 1, ChunkRecords: 1, PoolRecords: 4, StepTimeout: time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{cfg: &l}
	r.lane = NewLane(&l, r)
	r.lane.Open(1, 1, func(int) bool { return true })
	r.lane.Activate()
	return r
}

func (r *rig) counted(rank int, k Kind) {
	r.totals[rank][k]++
	r.lane.Counted(rank, k, r.totals[rank][k])
}

// head lets the header of a rank arrive.
func (r *rig) head(rank int, n uint32) {
	if r.heads[rank] == nil {
		r.heads[rank] = make([]byte, r.cfg.HeadBytes)
	}
	r.cfg.PutHeader(r.heads[rank], &Header{View: 1, Step: r.lane.Step(), Source: rank, Records: n}, []uint32{n})
	r.counted(rank, KindHead)
}

// begin begins a step that sends n records to each of the others.
func (r *rig) begin(t testing.TB, n uint32) {
	t.Helper()
	if err := r.lane.Begin(0, []uint32{0, n, n}); err != nil {
		t.Fatal(err)
	}
	r.lane.Packed()
}

// TestStepAlone: the order of a step without overflow, as its rank sees it.
func TestStepAlone(t *testing.T) {
	r := newRig(t)
	r.begin(t, 1)
	r.head(1, 1)
	r.head(2, 0)
	if err := r.lane.Receive(Whole); err != nil {
		t.Fatal(err)
	}
	r.lane.Unpacked(1, 0)
	if err := r.lane.Combine(0); err != nil {
		t.Fatal(err)
	}
	r.lane.YPacked()
	r.counted(1, KindComb)
	if slices.Contains(r.did, "comb") {
		t.Error("the results of rank 2 are not here")
	}
	r.counted(2, KindComb)
	r.lane.Reduced()
	want := []string{"pack", "all head", "heads", "arrived", "received", "packY", "all comb", "comb"}
	if !slices.Equal(r.did, want) || r.lane.Completed() != 1 || len(r.posts) != 4 {
		t.Errorf("%q, want %q; %d complete, %+v", r.did, want, r.lane.Completed(), r.posts)
	}
	if r.lane.Quiet() || !errors.Is(r.lane.Receive(Whole), hawser.ErrBusy) {
		t.Error("quiet with two Transfers under way, or received outside a step")
	}
	r.lane.Ended(Transfer{Op: OpHead, Rank: All})
	r.lane.Ended(Transfer{Op: OpComb, Rank: All})
	if !r.lane.Quiet() {
		t.Error("not quiet")
	}
}

// TestStepAllocatesNothing: a whole step with overflow in both directions.
func TestStepAllocatesNothing(t *testing.T) {
	r := newRig(t)
	records := []uint32{0, 3, 0}
	step := func() {
		r.did, r.posts = r.did[:0], r.posts[:0]
		if err := r.lane.Begin(0, records); err != nil {
			t.Fatal(err)
		}
		r.lane.Packed()
		r.head(1, 3)
		r.head(2, 0)
		_ = r.lane.Receive(Whole)
		for w := range 2 {
			if r.grants[1][w] == nil {
				r.grants[1][w] = make([]byte, GrantBytes)
			}
			g := Grant{r.lane.Step(), uint32(w), uint32(w)}
			g.Put(r.grants[1][w])
			r.counted(1, KindGrant+Kind(w))
			r.counted(1, KindChunk+Kind(w))
		}
		for p := range uint32(3) {
			r.lane.Unpacked(1, p)
		}
		_ = r.lane.Combine(0)
		r.lane.YPacked()
		for w := range Kind(3) {
			r.counted(1, KindComb+w)
		}
		r.counted(2, KindComb)
		r.lane.Reduced()
		r.lane.Ended(Transfer{Op: OpHead, Rank: All})
		r.lane.Ended(Transfer{Op: OpComb, Rank: All})
		for w := range Kind(2) {
			r.lane.Ended(Transfer{Op: OpGrant, Rank: 1, Kind: KindGrant + w})
			r.lane.Ended(Transfer{Op: OpChunk, Rank: 1, Kind: KindChunk + w})
		}
	}
	step()
	if n := testing.AllocsPerRun(100, step); n != 0 || r.lane.Completed() != r.lane.Step() || !r.lane.Quiet() {
		t.Errorf("%v allocations, %d of %d steps complete", n, r.lane.Completed(), r.lane.Step())
	}
}

// TestCorruptPeers: what a peer must not do makes that peer missing, and nobody else.
func TestCorruptPeers(t *testing.T) {
	for name, f := range map[string]func(r *rig){
		"a bad header": func(r *rig) { r.heads[1] = make([]byte, r.cfg.HeadBytes); r.counted(1, KindHead) },
		"a header of another step": func(r *rig) {
			r.heads[1] = make([]byte, r.cfg.HeadBytes)
			r.cfg.PutHeader(r.heads[1], &Header{View: 1, Step: 2, Source: 1}, nil)
			r.counted(1, KindHead)
		},
		"a header of another view": func(r *rig) {
			r.heads[1] = make([]byte, r.cfg.HeadBytes)
			r.cfg.PutHeader(r.heads[1], &Header{View: 2, Step: 1, Source: 1}, nil)
			r.counted(1, KindHead)
		},
		"a header of another source": func(r *rig) {
			r.heads[1] = make([]byte, r.cfg.HeadBytes)
			r.cfg.PutHeader(r.heads[1], &Header{View: 1, Step: 1, Source: 2}, nil)
			r.counted(1, KindHead)
		},
		"ids used again that were never sent": func(r *rig) {
			r.heads[1] = make([]byte, r.cfg.HeadBytes)
			r.cfg.PutHeader(r.heads[1], &Header{View: 1, Step: 1, Source: 1, Flags: FlagReuse, RouteHash: 7}, nil)
			r.counted(1, KindHead)
		},
		"a chunk without a grant": func(r *rig) { r.head(1, 1); r.counted(1, KindChunk) },
		"a chunk too many": func(r *rig) {
			r.head(1, 2)
			r.totals[1][KindChunk]++
			r.counted(1, KindChunk)
		},
		"a bad grant": func(r *rig) { r.grants[1][0] = make([]byte, GrantBytes); r.counted(1, KindGrant) },
		"a grant that was not asked for": func(r *rig) {
			r.grants[1][1] = make([]byte, GrantBytes)
			(&Grant{1, 1, 0}).Put(r.grants[1][1])
			r.counted(1, KindGrant+1)
		},
		"results too many": func(r *rig) { r.head(1, 1); r.counted(1, KindComb); r.totals[1][KindComb]++; r.counted(1, KindComb+3) },
		"a bad cancel":     func(r *rig) { r.cancel[1] = make([]byte, CancelBytes); r.counted(1, KindCancel) },
		"a cancel of a view": func(r *rig) {
			r.cancel[1] = make([]byte, CancelBytes)
			(&Cancel{Step: 1, View: 2, Code: CodeLimit}).Put(r.cancel[1])
			r.counted(1, KindCancel)
		},
	} {
		r := newRig(t)
		r.begin(t, 2)
		f(r)
		if !slices.Equal(r.miss, []int{1}) || !slices.Equal(r.codes, []Code{CodeCorrupt}) {
			t.Errorf("%s: missing %v, %v", name, r.miss, r.codes)
		}
		r.head(2, 0)
		if err := r.lane.Receive(Whole); err != nil || !slices.Contains(r.did, "received") {
			t.Errorf("%s: the step does not go on: %q, %v", name, r.did, err)
		}
	}
}

// TestPartialError: who is late is named, with the tokens that lack its part; no step follows, and everybody is told after this one.
func TestPartialError(t *testing.T) {
	r := newRig(t)
	r.begin(t, 2)
	r.head(2, 0)
	if at, ok := r.lane.Next(); !ok || at != time.Second {
		t.Fatalf("due at %v, %v", at, ok)
	}
	r.lane.Tick(time.Second - 1)
	if len(r.miss) > 0 {
		t.Fatal("missing before the time is over")
	}
	r.lane.Tick(time.Second)
	e := r.lane.PartialError([]uint32{0, 65, 1, 2}, 66)
	if e == nil || e.View != 1 || e.Step != 1 || !slices.Equal(e.Missing, []int{1}) || !e.Tokens.Has(0) || !e.Tokens.Has(65) || e.Tokens.Has(1) || e.Tokens.Has(2) {
		t.Fatalf("%+v", e)
	}
	if want := "step 1 of view 1: ranks 1 are missing, 2 tokens lack their part: activate a new view"; e.Error() != want {
		t.Errorf("%q, want %q", e.Error(), want)
	}
	if err := r.lane.Receive(Whole); err != nil {
		t.Fatal(err)
	}
	if err := r.lane.Combine(0); err != nil {
		t.Fatal(err)
	}
	r.lane.YPacked()
	r.counted(2, KindComb)
	r.counted(2, KindComb+1)
	if slices.Contains(r.did, "all cancel") {
		t.Error("told before the step has ended")
	}
	r.lane.Reduced()
	if !slices.Contains(r.did, "all cancel") || !errors.Is(r.lane.Begin(0, make([]uint32, 3)), hawser.ErrStale) {
		t.Errorf("%q", r.did)
	}
	if to1, to2 := r.lane.Told(1), r.lane.Told(2); to1 != (Cancel{2, 1, CodeMissing, 1}) || to2 != (Cancel{2, 1, CodeMissing, 1}) {
		t.Errorf("told %+v and %+v", to1, to2)
	}
}

// TestPoolLost: who waits for a grant is not late when somebody else holds the pool. But if nothing of it can come back, the step fails.
func TestPoolLost(t *testing.T) {
	r := newRig(t)
	r.begin(t, 0)
	r.head(1, 6) // gets the whole pool
	r.head(2, 2)
	r.lane.Tick(time.Second)
	if !slices.Equal(r.miss, []int{1, 1}) || !slices.Equal(r.codes, []Code{CodeLate, CodePool}) {
		t.Errorf("missing %v (%v), %q", r.miss, r.codes, r.did)
	}
}

// TestSuspectIsTold: who hears that it is held missing does not wait for the sender.
func TestSuspectIsTold(t *testing.T) {
	r := newRig(t)
	r.begin(t, 1)
	r.cancel[1] = make([]byte, CancelBytes)
	(&Cancel{Step: 2, View: 1, Code: CodeMissing, Blamed: 0}).Put(r.cancel[1])
	r.counted(1, KindCancel)
	if !slices.Equal(r.miss, []int{1}) || !slices.Equal(r.codes, []Code{CodeMissing}) {
		t.Errorf("missing %v, %v", r.miss, r.codes)
	}
	r = newRig(t)
	r.begin(t, 1)
	r.cancel[1] = make([]byte, CancelBytes)
	(&Cancel{Step: 2, View: 1, Code: CodeMissing, Blamed: 2}).Put(r.cancel[1])
	r.counted(1, KindCancel)
	if len(r.miss) > 0 {
		t.Errorf("missing %v", r.miss)
	}
}
