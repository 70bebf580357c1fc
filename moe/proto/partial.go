package proto

import (
	"fmt"
	"strings"
)

// Bitmap has a bit for each token.
type Bitmap []uint64

// Set sets a bit, Has reads one.
func (b Bitmap) Set(i int)      { b[i/64] |= 1 << (i % 64) }
func (b Bitmap) Has(i int) bool { return b[i/64]>>(i%64)&1 != 0 }

// PartialError: a step was finished without ranks that did not give what they owed. The group needs a new view.
type PartialError struct {
	View    uint32
	Step    uint64
	Missing []int  // ranks, ascending
	Tokens  Bitmap // own tokens whose sum lacks something
}

func (e *PartialError) Error() string {
	ranks := make([]string, len(e.Missing))
	for i, r := range e.Missing {
		ranks[i] = fmt.Sprint(r)
	}
	tokens := 0
	for i := range 64 * len(e.Tokens) {
		if e.Tokens.Has(i) {
			tokens++
		}
	}
	return fmt.Sprintf("step %d of view %d: ranks %s are missing, %d tokens lack their part: activate a new view", e.Step, e.View, strings.Join(ranks, ", "), tokens)
}

// PartialError says who was missing in the last step that was begun, or is nil. tokens says of each slot of the results which token it
// belongs to; count is how many tokens there are. After the step has failed it means nothing.
func (l *Lane) PartialError(tokens []uint32, count int) *PartialError {
	if !l.partial {
		return nil
	}
	e := &PartialError{View: l.view, Step: l.step, Tokens: make(Bitmap, (count+63)/64)}
	for i := range l.peers {
		p := &l.peers[i]
		if !p.missing {
			continue
		}
		e.Missing = append(e.Missing, i)
		for _, t := range tokens[p.base : p.base+p.out] {
			e.Tokens.Set(int(t))
		}
	}
	return e
}
