package proto

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-project/hawser"
)

// Constants of retries.
const (
	budgetSeconds = 10 // retries are a share of the requests of so long
	budgetShare   = 10 // one in so many
	budgetLeast   = 3
	paceBurst     = 32 // retries after a peer's death, at once
	pacePause     = time.Second / 200
	againFirst    = 20 * time.Millisecond // before the same prefiller is asked once more
	againMost     = 5 * time.Second
)

// budget counts requests and retries of the last seconds.
type budget struct {
	second            int64 // of the newest slot
	requests, retries [budgetSeconds]uint32
}

func (b *budget) at(now Time) int {
	s := int64(now / time.Second)
	for n := 0; b.second < s && n < budgetSeconds; n++ {
		b.second++
		b.requests[b.second%budgetSeconds], b.retries[b.second%budgetSeconds] = 0, 0
	}
	if b.second < s {
		b.second = s // older than all slots, which are empty now
		b.requests, b.retries = [budgetSeconds]uint32{}, [budgetSeconds]uint32{}
	}
	return int(b.second % budgetSeconds)
}

func (b *budget) request(now Time) { b.requests[b.at(now)]++ }

// retry takes a retry from the budget, if there is one.
func (b *budget) retry(now Time) bool {
	i := b.at(now)
	var requests, retries uint32
	for k := range b.requests {
		requests += b.requests[k]
		retries += b.retries[k]
	}
	if retries >= max(budgetLeast, requests/budgetShare) {
		return false
	}
	b.retries[i]++
	return true
}

// paced is when a retry after the loss of a link may begin: 32 at once, then 200 a second.
func (d *Decoder) paced() Time {
	d.pace = max(d.pace, d.now) + pacePause
	return max(d.now, d.pace-paceBurst*pacePause)
}

// again decides whether another attempt follows one that lost a writer, and prepares it.
func (d *Decoder) again(r *fetchRequest, cause error, byFence bool) bool {
	r.cause = cause
	if d.closing || r.told || d.now >= r.deadline || r.tries >= d.cfg.Tries {
		return false
	}
	pause, ok := r.verdict(cause)
	if !ok {
		return false
	}
	next := d.pick(r, r.from+1)
	if next < 0 {
		return false
	}
	if byFence || next != r.from && leaving(cause) {
		r.notBefore = d.paced()
	} else {
		if !d.budget.retry(d.now) {
			r.cause = fmt.Errorf("%w (not tried again: too many retries in the last %d s)", cause, budgetSeconds)
			return false
		}
		if next == r.from {
			r.notBefore = d.now + max(pause, againFirst<<min(r.tries, 6))
		}
	}
	if r.notBefore >= r.deadline {
		return false
	}
	d.stats.Retries++
	return true
}

// leaving: the prefiller goes away in good order, which is no more a reason to lose its requests than its death is.
func leaving(cause error) bool {
	code := codeOf(cause)
	return code == CodeDraining || code == CodeClosed
}

// codeOf is the code of a prefiller's answer, 0 when the cause is another.
func codeOf(cause error) Code {
	if e := (*RejectedError)(nil); errors.As(cause, &e) {
		return e.Code
	}
	if e := (*FailedError)(nil); errors.As(cause, &e) {
		return e.Code
	}
	return 0
}

// verdict says whether the cause of a loss allows another attempt, and excludes the source if it does not allow one there.
func (r *fetchRequest) verdict(cause error) (pause time.Duration, ok bool) {
	if e := (*RejectedError)(nil); errors.As(cause, &e) {
		pause = min(e.RetryAfter, againMost)
	}
	switch codeOf(cause) {
	case CodeInvalid, CodeLate:
		return 0, false
	case CodeInfeasible, CodePlan, CodeMismatch:
		r.excluded |= 1 << r.from
	}
	return pause, !errors.Is(cause, ErrCorrupt)
}

// pick is the source to ask next, from a number on: the first that is not known to be bad, or else the first that may work some day.
// It is -1 when there is none.
func (d *Decoder) pick(r *fetchRequest, from int) int {
	some, n := -1, len(r.f.From)
	for k := range n {
		i := (from + k) % n
		switch {
		case r.excluded&(1<<i) != 0:
		case d.healthy(&r.f.From[i]):
			return i
		case some < 0:
			some = i
		}
	}
	return some
}

// healthy: nothing speaks against asking a source.
func (d *Decoder) healthy(s *Source) bool {
	for _, a := range s.Writers {
		if l := d.links[a]; l != nil && (l.err != nil || l.draining || l.state == linkFencing) {
			return false
		}
	}
	return true
}

// miss has links of a source tried again of which a request has been kept away, so that the next one may find them up.
func (d *Decoder) miss(s *Source) {
	for _, a := range s.Writers {
		if l := d.links[a]; l != nil && l.state == linkDown && l.err != nil && !l.missed {
			l.missed = true
			d.want(l)
		}
	}
}

// choose makes a request use a source, from a number on. It reports false when there is none left.
func (d *Decoder) choose(r *fetchRequest, from int) bool {
	i := d.pick(r, from)
	if i < 0 {
		return false
	}
	for k := from % len(r.f.From); k != i; k = (k + 1) % len(r.f.From) {
		d.miss(&r.f.From[k])
	}
	if r.src == nil || i != r.from {
		next := d.source(&r.f.From[i])
		next.refs++
		d.leaveSource(r)
		r.from, r.src = i, next
	}
	return true
}

// source finds or makes what stands for a source.
func (d *Decoder) source(s *Source) *fetchSource {
	key := s.Writers[0]
	if len(s.Writers) > 1 {
		key = strings.Join(s.Writers, ",")
	}
	if have := d.sources[key]; have != nil {
		return have
	}
	src := &fetchSource{key: key, links: make([]*fetchLink, len(s.Writers))}
	d.sources[key] = src
	for i, a := range s.Writers {
		l := d.link(a)
		src.links[i] = l
		l.sources = append(l.sources, src)
	}
	d.pairUp(src)
	return src
}

// leaveSource ends a request's use of its source, which is forgotten with its last use if it is of no use.
func (d *Decoder) leaveSource(r *fetchRequest) {
	s := r.src
	if r.src = nil; s == nil {
		return
	}
	if s.refs--; s.refs == 0 && !s.up() {
		d.forgetSource(s)
	}
}

func (d *Decoder) forgetSource(s *fetchSource) {
	delete(d.sources, s.key)
	for _, l := range s.links {
		l.sources = without(l.sources, s)
		d.forgetLink(l)
	}
}

// sourceFailed: a request that waits cannot be served by its source, or never will. It goes on with another one, or later, or ends.
func (d *Decoder) sourceFailed(r *fetchRequest, err error, never bool) {
	r.tries++
	r.cause = err
	if never {
		r.excluded |= 1 << r.from
	}
	from := r.from
	d.unwait(r)
	switch {
	case r.tries >= d.cfg.Tries && !never, !d.choose(r, r.from+1):
		r.cause = nil // it is the cause
		d.drop(r, err)
		return
	case r.from == from:
		r.notBefore = max(r.notBefore, d.now+min(backoffFirst<<min(r.tries-1, 6), backoffMost))
	}
	d.stats.Retries++
	d.note(Note{Kind: NoteRetry, Request: r.id, Err: err})
	d.wait(r)
}

// anew lets a request wait for another attempt.
func (d *Decoder) anew(r *fetchRequest) {
	r.at = nil
	d.unpin(r)
	d.note(Note{Kind: NoteRetry, Request: r.id, Err: r.cause})
	if !d.choose(r, r.from+1) {
		d.drop(r, fmt.Errorf("%w: no prefiller is left", hawser.ErrPeerDown))
		return
	}
	d.wait(r)
	d.arm(r)
}

func without[T comparable](list []T, x T) []T {
	for i := range list {
		if list[i] == x {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}
