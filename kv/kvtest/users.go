package kvtest

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
)

// users are those who ask an instance of decoders. When it has several members, they also allot the pages, the same on all.
type users struct {
	w       *world
	index   int
	members []*decoder
	free    [][]uint32 // pages of each group, when users bring them
}

// fetch is a request at one member.
type fetch struct {
	*asked
	d        *decoder
	number   proto.Request
	known    bool // number is set
	attempts []*attempt
	cancel   bool // asked for
	ready    bool
	released bool
	ended    bool
	err      error
	quiet    bool
	result   proto.Result
}

// asked is a request.
type asked struct {
	*Request
	id     string
	prompt *prompt
	pages  [][]uint32 // what the users brought
	spans  []proto.Span
	of     []*fetch
	freed  bool
}

func (w *world) newUsers(index int) *users {
	u := &users{w: w, index: index, members: make([]*decoder, len(w.shape.dst.Members))}
	if w.bring() {
		for g := range w.shape.dst.Members[0].Groups {
			pages := make([]uint32, w.poolPages(w.shape.dst, g))
			for i := range pages {
				pages[i] = uint32(i)
			}
			u.free = append(u.free, pages)
		}
	}
	for m := range u.members {
		u.start(m)
	}
	return u
}

// bring reports whether users bring pages.
func (w *world) bring() bool { return len(w.shape.dst.Members) > 1 || w.sc.Bring }

// poolPages is the number of pages of a group that all members have.
func (w *world) poolPages(t *layout.Topology, group int) int {
	n := 0
	for m := range t.Members {
		if k := t.Members[m].PoolPages(group); k > 0 && (n == 0 || k < n) {
			n = k
		}
	}
	return n
}

// ask is a user's request, to all members.
func (u *users) ask(r *Request, n int) {
	w := u.w
	q := &asked{Request: r, id: fmt.Sprintf("r%d", n), prompt: newPrompt(r.Family, r.Shared, r.Tokens, uint32(n+1))}
	if w.bring() && !u.allot(q) {
		w.note("no pages for %s", q.id)
		return
	}
	w.asked = append(w.asked, q)
	w.byID[q.id] = q
	for _, s := range r.Sources {
		if r.Meet == ByExpect {
			w.expect(q, s)
		}
	}
	for m, d := range u.members {
		if m > 0 && r.Skip {
			continue
		}
		wait := proto.Time(0)
		if m > 0 {
			wait = w.delay()
		}
		f := &fetch{asked: q, d: d}
		q.of = append(q.of, f)
		d.do(wait, func() { d.fetch(f) })
	}
	u.over(q)
}

// allot takes the pages of a request, if there are enough.
func (u *users) allot(q *asked) bool {
	n := q.Tokens
	if !q.Tail {
		n--
	}
	g := u.w.shape.dst.Members[0].Groups
	for i := range g {
		first := min(q.Shared, n)
		if g[i].Window > 0 {
			first = max(first, n-g[i].Window)
		}
		first -= first % g[i].PageTokens
		pages := (n - first + g[i].PageTokens - 1) / g[i].PageTokens
		if len(u.free[i]) < pages {
			u.giveBack(q)
			return false
		}
		k := len(u.free[i]) - pages
		q.spans = append(q.spans, proto.Span{First: first, N: n})
		q.pages = append(q.pages, slices.Clone(u.free[i][k:]))
		u.free[i] = u.free[i][:k]
	}
	return true
}

func (u *users) giveBack(q *asked) {
	for i, pages := range q.pages {
		u.free[i] = append(u.free[i], pages...)
	}
	q.freed = true
}

// over gives the pages back that users brought, once no member needs them.
func (u *users) over(q *asked) {
	if q.freed || !u.w.bring() {
		return
	}
	for _, f := range q.of {
		if !f.d.dead && !f.over() {
			return
		}
	}
	u.giveBack(q)
}

// over is true when nothing is left to happen to a request.
func (f *fetch) over() bool { return f.quiet && (f.ended || f.released) }

// fetch is a request that comes to a member.
func (d *decoder) fetch(f *fetch) {
	w, q := d.w, f.asked
	call := proto.Fetch{
		ID: q.id, Prompt: proto.Prompt{Tokens: q.Tokens}, Spans: q.spans, Pages: q.pages, Tail: q.Tail, Priority: q.Priority,
	}
	switch q.Meet {
	case ByIDs:
		call.Prompt.IDs = q.prompt.ids
	case ByKey:
		call.Prompt.Key = q.id
	}
	if len(d.pools) == 1 {
		call.Blocks = pool.Hashes(pool.Hash{}, q.prompt.ids, d.mem.of.Groups[0].PageTokens)
	}
	if q.Deadline > 0 {
		call.Deadline = w.now + q.Deadline
	}
	for _, s := range q.Sources {
		addrs := w.addrs(s)
		for i := range addrs {
			if q.Alias {
				addrs[i] += alias
			}
		}
		call.From = append(call.From, proto.Source{Writers: addrs})
	}
	d.fetching = f
	n, err := d.m.Fetch(w.now, call)
	d.fetching = nil
	w.note("%s: fetch %s of %d tokens: %v", d.name, q.id, q.Tokens, err)
	if err != nil {
		w.Refused++
		if f.ready || f.ended {
			w.fail("I3", "%s: Fetch of %s fails, and it has ended before: %v", d.name, q.id, err)
		}
		f.ended, f.quiet, f.err = true, true, err
		d.of.over(q)
		return
	}
	d.fetches = append(d.fetches, f)
	d.number(f, n)
	if q.Cancel > 0 {
		d.do(q.Cancel, func() {
			if !f.over() {
				w.note("%s: cancel %s", d.name, q.id)
				f.cancel = true
				d.m.Cancel(w.now, f.number, nil)
			}
		})
	}
}

func (d *decoder) number(f *fetch, n proto.Request) {
	if f.known && f.number != n {
		d.w.fail("I3", "%s: request %s is number %d and %d", d.name, f.id, f.number, n)
	}
	f.number, f.known = n, true
	d.byNumber[n] = f
}

// find is the request with a number.
func (d *decoder) find(r proto.Request, call string) *fetch {
	f := d.byNumber[r]
	if f == nil && d.fetching != nil {
		f = d.fetching
		d.number(f, r)
	}
	if f == nil {
		d.w.fail("I3", "%s: %s of request %d, which is not known", d.name, call, r)
	}
	return f
}

// content looks at all that a request has.
func (d *decoder) content(f *fetch, when string) {
	res := &f.result
	n := f.Tokens
	if !f.Tail {
		n--
	}
	for g := range d.mem.of.Groups {
		s := res.Spans[g]
		from := 0
		if f.spans != nil {
			from = f.spans[g].First
		}
		if win := d.mem.of.Groups[g].Window; win > 0 {
			from = max(from, n-win)
		}
		if s.N < n || s.First > from && from < n {
			d.w.fail("I5", "%s: %s %s with tokens %d .. %d of group %d, want %d .. %d", d.name, f.id, when, s.First, s.N, g, from, n)
			return
		}
		if err := d.mem.check(f.prompt, g, s.First, from, n, res.Pages[g]); err != nil {
			d.w.fail("I5", "%s: %s %s: group %d: %v", d.name, f.id, when, g, err)
			return
		}
	}
	if !f.Tail {
		return
	}
	switch got := binary.LittleEndian.Uint32(d.tails[res.Tail.Slot*wordBytes:]); {
	case !d.m.TailIs(res.Tail):
		d.w.fail("I5", "%s: %s %s: its tail slot is another's", d.name, f.id, when)
	case got != f.prompt.tail():
		d.w.fail("I5", "%s: %s %s: the tail is %#x, want %#x", d.name, f.id, when, got, f.prompt.tail())
	}
}
