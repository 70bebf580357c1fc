package proto

import (
	"errors"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/kv/layout"
)

const (
	// agingTime is the time in which waiting work rises by one class of priority.
	agingTime = 100 * time.Millisecond
	// roomTime is the pause after the engine had no room. Somebody else may fill it, so that no completion of ours tells when there is.
	roomTime = time.Millisecond
	// parts is into how many operations a window is cut, so that it is refilled while the rest is under way.
	parts = 4
	// maxFree bounds the states of attempts that are kept for the next ones.
	maxFree = 1024
)

// post is an operation that is outstanding.
type post struct {
	serving *serving // nil: the cookie is not in use
	job     *job
	writes  int
	bytes   uint64
}

// feedState is what an attempt has sent, and will. Each lane, one layer of one rank, has a next unit, which only grows.
type feedState struct {
	lanes   []feed
	first   int           // of the lanes that are ready, chained through feed.chain; -1: none
	last    int           // of them
	at      int           // lane that cursor is in; -1: none
	cursor  layout.Cursor // over units [next, to) of it
	batch   layout.Batch  // of the cursor, not posted yet
	pending bool          // batch is set
	parked  []parkedCursor
	left    uint64 // bytes
	class   int64  // of what waits: lower goes first
	slot    int    // in link.work, and 1; 0: nothing to post
}

// feed is one lane.
type feed struct {
	next  int32 // first unit that no cursor was made for
	to    int32 // end of those that a cursor has begun; not above next: none
	ready int32 // end of those that may be posted
	chain int32 // next lane that is ready, and 1
	on    bool  // in the chain, or at
}

// parkedCursor is one that was in a lane when its job was preempted: it goes on there, so that nothing is sent twice.
type parkedCursor struct {
	lane    int
	cursor  layout.Cursor
	batch   layout.Batch
	pending bool
}

// start lets an attempt post what is computed.
func (p *Prefiller) start(s *serving) {
	if s.step.state != serveQueued {
		return
	}
	if s.posts == nil {
		s.posts = p.takeFeeds(s.plan)
		if p.cfg.Verify {
			s.sums = make([]uint64, Sums(p.own.Layers))
		}
	}
	for g := range s.dst {
		first, end := s.plan.SrcPages(g)
		if have := s.job.source.Pages[g]; first < end && (first < have.First || end > have.First+len(have.Index)) {
			p.fail(s, CodeEngine, fmt.Sprintf("group %d: source pages %d .. %d are given, the attempt needs %d .. %d", g, have.First, have.First+len(have.Index)-1, first, end-1))
			return
		}
	}
	p.step(s, serveEvent{kind: svStart})
	if s.step.open() {
		for i, computed := range s.job.computed {
			p.raise(s, i, int(computed))
		}
		p.ready(s)
	}
}

// takeFeeds makes the state of an attempt that has sent nothing.
func (p *Prefiller) takeFeeds(plan *layout.Plan) *feedState {
	var f *feedState
	if last := len(p.freeFeeds) - 1; last >= 0 {
		f = p.freeFeeds[last]
		p.freeFeeds = p.freeFeeds[:last]
		*f = feedState{lanes: f.lanes, parked: f.parked[:0]}
	} else {
		f = &feedState{lanes: make([]feed, len(p.lanes))}
	}
	f.first, f.last, f.at, f.left = -1, -1, -1, plan.Bytes()
	for i := range f.lanes {
		first, _ := plan.Units(p.lanes[i].group)
		f.lanes[i] = feed{next: int32(first), ready: int32(first)}
	}
	return f
}

// dropFeeds takes back what an attempt has sent, when it has ended.
func (p *Prefiller) dropFeeds(s *serving) {
	if s.posts != nil && len(p.freeFeeds) < maxFree {
		p.freeFeeds = append(p.freeFeeds, s.posts)
	}
	s.posts = nil
}

// raise notes that tokens [0, computed) of a lane are in the source pages.
// hot:
func (p *Prefiller) raise(s *serving, lane, computed int) {
	f := s.posts
	c := &f.lanes[lane]
	ready := int32(s.plan.Ready(p.lanes[lane].group, computed))
	if ready <= c.ready {
		return
	}
	c.ready = ready
	if !c.on && c.ready > c.next && c.ready >= c.to {
		f.push(lane)
	}
}

// push puts a lane at the end of the chain.
// hot:
func (f *feedState) push(lane int) {
	c := &f.lanes[lane]
	c.on, c.chain = true, 0
	if f.last < 0 {
		f.first = lane
	} else {
		f.lanes[f.last].chain = int32(lane) + 1
	}
	f.last = lane
}

// pop takes the lane at the beginning off the chain.
// hot:
func (f *feedState) pop() int {
	lane := f.first
	if f.first = int(f.lanes[lane].chain) - 1; f.first < 0 {
		f.last = -1
	}
	return lane
}

// ready lets an attempt wait for its turn, if it has something to post.
// hot:
func (p *Prefiller) ready(s *serving) {
	f := s.posts
	if f == nil || !s.step.open() || f.slot > 0 || f.first < 0 && f.at < 0 && !s.tailDue() {
		return
	}
	l := s.link
	f.class = int64(p.now/agingTime) - int64(s.priority)
	l.work.put(s)
	if !l.dirty {
		l.dirty = true
		p.dirty = append(p.dirty, l)
	}
}

// tailDue reports whether the tail is what an attempt has to post.
func (s *serving) tailDue() bool {
	return s.tail && !s.tailSent && s.step.left == 1 && s.job.tail
}

// close takes back what waits, as the attempt's gate is closed.
func (p *Prefiller) close(s *serving) {
	if f := s.posts; f != nil && f.slot > 0 && (s.step.state == serveTomb || !broken(mutGate)) {
		s.link.work.remove(s)
	}
}

// park closes the gate of an attempt whose source pages are wanted back. What was begun goes on where it was.
func (p *Prefiller) park(s *serving) {
	f := s.posts
	if s.step.open() {
		if f.at >= 0 {
			f.parked = append(f.parked, parkedCursor{f.at, f.cursor, f.batch, f.pending})
		}
		f.at, f.pending, f.first, f.last = -1, false, -1, -1
		for i := range f.lanes {
			c := &f.lanes[i]
			c.on, c.ready = false, c.next
			if broken(mutNextKept) {
				first, _ := s.plan.Units(p.lanes[i].group)
				c.next, c.to, c.ready = int32(first), 0, int32(first)
			}
		}
	}
	p.step(s, serveEvent{kind: svPreempt})
}

// pump posts what waits on a link, as far as the window allows.
// hot:
func (p *Prefiller) pump(l *serveLink) {
	for len(l.work.items) > 0 && !l.hungry {
		s := l.work.items[0]
		most := p.window(l)
		if most == 0 || !p.postNext(s, most) {
			return
		}
	}
}

// window is how many writes an operation may have now.
// hot:
func (p *Prefiller) window(l *serveLink) int {
	w, peer := &p.cfg.Window, l.peer
	if peer.writes == 0 {
		return max(1, min(w.Writes/parts, int(w.Bytes/parts)/int(max(1, l.longest))))
	}
	most := min(w.Writes-peer.writes, max(1, w.Writes/parts))
	room := w.Bytes - min(w.Bytes, peer.bytes)
	return max(0, min(most, int(min(room, max(w.Bytes/parts, uint64(l.longest)))/uint64(max(1, l.longest)))))
}

// postNext posts the next operation of an attempt, which is the first of its link's. It reports false when there is no room.
// hot:
func (p *Prefiller) postNext(s *serving, most int) bool {
	f := s.posts
	if !p.nextBatch(s, most) {
		if s.tailDue() {
			return p.postTail(s)
		}
		s.link.work.remove(s)
		return true
	}
	if f.batch.N > most {
		return false // it was cut for a larger window, before a preemption
	}
	group := f.batch.Group()
	w := &p.posting
	w.Batch, w.Src, w.Dst = f.batch, s.job.source.Pages[group], s.dst[group]
	bytes := uint64(f.batch.N) * uint64(f.batch.Len)
	ok := p.submit(s, f.batch.N, bytes, false, int(f.batch.Lane.Layer)/SumLayers)
	if ok && s.posts == f && s.step.state != serveStopping {
		f.pending = false
		f.left -= min(f.left, bytes)
		if s.step.open() {
			if f.first < 0 && f.at < 0 && !s.tailDue() {
				s.link.work.remove(s)
			} else {
				s.link.work.put(s)
			}
		}
	}
	return ok
}

// nextBatch sees to it that there is one, if anything is ready.
// hot:
func (p *Prefiller) nextBatch(s *serving, most int) bool {
	f := s.posts
	for !f.pending {
		if f.at < 0 {
			if f.first < 0 {
				return false
			}
			p.openLane(s, f.pop())
			continue
		}
		if f.cursor.Next(&f.batch, most) {
			f.pending = true
			break
		}
		p.closeLane(s)
	}
	return true
}

// openLane begins with what is ready of a lane, or goes on where it was preempted.
// hot:
func (p *Prefiller) openLane(s *serving, lane int) {
	f := s.posts
	c := &f.lanes[lane]
	f.at = lane
	if c.to > c.next {
		for i := range f.parked {
			if k := &f.parked[i]; k.lane == lane {
				f.cursor, f.batch, f.pending = k.cursor, k.batch, k.pending
				f.parked = append(f.parked[:i], f.parked[i+1:]...)
				return
			}
		}
	}
	where := &p.lanes[lane]
	c.to = c.ready
	f.cursor = s.plan.Cursor(p.cfg.Member, where.rank, where.model, int(c.next), int(c.to))
}

// closeLane ends with a lane for now: all that was ready when it was opened is posted.
// hot:
func (p *Prefiller) closeLane(s *serving) {
	f := s.posts
	lane := f.at
	c := &f.lanes[lane]
	f.at, c.on, c.next = -1, false, c.to
	if _, end := s.plan.Units(p.lanes[lane].group); int(c.next) == end {
		s.layer = p.lanes[lane].model
	}
	if c.ready > c.next {
		f.push(lane)
	}
}

// postTail posts the tail.
func (p *Prefiller) postTail(s *serving) bool {
	p.posting.TailSlot = s.slot
	ok := p.submit(s, 1, uint64(0), true, Sums(p.own.Layers)-1)
	if ok {
		s.tailSent = true
	}
	return ok
}

// submit is the only place where writes are submitted. The gate is looked at here, in the same event. It reports false when the engine
// has no room.
// hot:
func (p *Prefiller) submit(s *serving, writes int, bytes uint64, tail bool, sum int) bool {
	l, j := s.link, s.job
	if !s.step.open() && !broken(mutGate) {
		p.stats.AfterClose++
		p.broke("write of attempt %d submitted in state %v", s.seq, s.step.state)
		l.work.remove(s)
		return true
	}
	if uint64(writes) > s.step.left {
		p.fail(s, CodeTransfer, fmt.Sprintf("%d writes are planned more than the %d that are left", writes, s.step.left))
		return true
	}
	cookie := p.takePost(post{s, j, writes, bytes})
	w := &p.posting
	w.Link, w.Peer, w.Seq, w.Job, w.Imm = l.id, l.peer.id, s.seq, j.id, s.imm
	var value uint64
	var err error
	if tail {
		value, err = p.out.PostTail(cookie, w)
	} else {
		value, err = p.out.Post(cookie, w)
	}
	if err != nil {
		p.dropPost(cookie)
		if errors.Is(err, ErrRoom) {
			p.stats.NoRoom++
			p.starve(l)
			return false
		}
		p.fail(s, CodeTransfer, err.Error())
		return true
	}
	if s.sums != nil {
		s.sums[sum] += value
	}
	l.outstanding += writes
	j.outstanding += writes
	l.peer.writes += writes
	l.peer.bytes += bytes
	if s.step.posted+s.step.outstanding == 0 {
		p.note(s, ServePost, "", "")
	}
	p.step(s, serveEvent{kind: svPost, n: uint64(writes)})
	return true
}

// hot:
func (p *Prefiller) takePost(o post) uint64 {
	if last := len(p.freePosts) - 1; last >= 0 {
		i := p.freePosts[last]
		p.freePosts = p.freePosts[:last]
		p.posts[i] = o
		return uint64(i)
	}
	p.posts = append(p.posts, o)
	return uint64(len(p.posts) - 1)
}

// hot:
func (p *Prefiller) dropPost(cookie uint64) {
	p.posts[cookie] = post{}
	p.freePosts = append(p.freePosts, uint32(cookie))
}

// starve lets a link wait until the engine has room.
func (p *Prefiller) starve(l *serveLink) {
	l.hungry = true
	p.hungry = append(p.hungry, l)
	if p.room.slot == 0 {
		p.alarms.set(&p.room, p.now+roomTime)
	}
}

// feed tries the links that wait for room, in their order.
func (p *Prefiller) feed() {
	p.alarms.clear(&p.room)
	hungry := p.hungry
	p.hungry = nil
	for i, l := range hungry {
		l.hungry = false
		p.pump(l)
		if l.hungry { // no room again: the others keep their places before it
			p.hungry = append(p.hungry[:0], hungry[i+1:]...)
			p.hungry = append(p.hungry, l)
			return
		}
	}
}

// Completed ends an operation. An error says that it is not known what of it landed.
// hot:
func (p *Prefiller) Completed(now Time, cookie uint64, err error) {
	p.enter(now)
	if cookie >= uint64(len(p.posts)) || p.posts[cookie].serving == nil {
		p.stats.Unexpected++
		p.broke("completion of operation %d, which is not outstanding", cookie)
		p.leave()
		return
	}
	o := p.posts[cookie]
	p.dropPost(cookie)
	s, l, j := o.serving, o.serving.link, o.job
	l.outstanding -= o.writes
	j.outstanding -= o.writes
	l.peer.writes -= o.writes
	l.peer.bytes -= o.bytes
	if err == nil {
		p.stats.Writes += uint64(o.writes)
		p.stats.Bytes += o.bytes
	} else if s.code == 0 && s.step.end == endNone {
		s.code, s.text = CodeTransfer, err.Error()
	}
	p.step(s, serveEvent{kind: svComplete, n: uint64(o.writes), ok: err == nil})
	p.mayUnpin(j)
	p.mayForget(l)
	if len(p.hungry) > 0 {
		p.feed()
	}
	if !l.ended {
		p.pump(l)
	} else if now := l.peer.link; now != nil && now != l {
		p.pump(now)
	}
	p.leave()
}

// before is the order of the attempts of a link that have something to post: higher priority first, aged by one class in agingTime, then
// less left.
// hot:
func (s *serving) before(o *serving) bool {
	a, b := s.posts, o.posts
	switch {
	case a.class != b.class:
		return a.class < b.class
	case a.left != b.left:
		return a.left < b.left
	}
	return s.seq < o.seq
}

func (s *serving) place() *int { return &s.posts.slot }
