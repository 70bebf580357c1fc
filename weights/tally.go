package weights

import "github.com/hawser-project/hawser/reshard"

// Sent is what a publisher has written to one receiver in one stage, all of which has been placed.
type sent struct {
	rank   int // of the receiver
	digest uint64
	runs   int
	bytes  int64
}

// tally knows how much of each stage is left. Owned by the writer's goroutine.
type tally struct {
	left  []int          // runs, by stage
	sent  []map[int]sent // by stage and receiver; nil when told
	quiet func(stage int, to []sent)
}

func newTally(s *reshard.Slice, quiet func(stage int, to []sent)) *tally {
	t := &tally{left: make([]int, len(s.Stages)), sent: make([]map[int]sent, len(s.Stages)), quiet: quiet}
	for i := range s.Tasks {
		for _, r := range s.Tasks[i].Runs {
			if t.sent[r.Stage] == nil {
				t.sent[r.Stage] = map[int]sent{}
			}
			t.left[r.Stage]++
			x := t.sent[r.Stage][r.Peer]
			x.rank, x.runs, x.bytes = r.Peer, x.runs+1, x.bytes+r.Len
			t.sent[r.Stage][r.Peer] = x
		}
	}
	return t
}

// sum adds the digest of a run.
func (t *tally) sum(r *reshard.Run, digest uint64) {
	x := t.sent[r.Stage][r.Peer]
	x.digest += digest
	t.sent[r.Stage][r.Peer] = x
}

// ended notes that a run has been placed, and tells when it was the last of its stage.
// hot:
func (t *tally) ended(r *reshard.Run) {
	t.left[r.Stage]--
	if t.left[r.Stage] == 0 {
		t.tell(r.Stage)
	}
}

func (t *tally) tell(stage int) {
	to := make([]sent, 0, len(t.sent[stage]))
	for _, x := range t.sent[stage] {
		to = append(to, x)
	}
	t.sent[stage] = nil
	t.quiet(stage, to)
}
