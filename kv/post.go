package kv

import (
	"errors"
	"time"

	"github.com/hawser-project/hawser"
)

// The window of a link: what may be posted and not completed, whichever comes first. Small enough that a cancelled request is
// quiet within about a millisecond of copying; large enough that the network always has more to do while a completion is on
// its way back, as long as that takes less than the time of 3 MiB.
const (
	windowWrites = 128
	windowBytes  = 4 << 20
	// postBytes is what one operation moves, so that the window is refilled in quarters.
	postBytes = windowBytes / 4
)

// post is an operation that is outstanding.
type post struct {
	job *Job
	n   uint64 // writes
}

// pump posts what waits on a link, as far as the window allows. Needs mu.
func (p *Prefiller) pump(l *serveLink) {
	page := p.cfg.Geometry.Group.PageBytes()
	window := max(1, min(windowWrites, int(windowBytes/page)))
	most := max(1, min(windowWrites/4, int(postBytes/page)))
	for len(l.work) > 0 && l.inFlight < window {
		w := &l.work[0]
		n := min(int(w.last-w.first), window-l.inFlight, most)
		if w.job.step.open() {
			ok, err := p.post(w, n)
			if err != nil {
				w.job.fail(CodeTransfer, err.Error())
				continue // its work is dropped, because the gate is closed now
			}
			if !ok {
				if !p.retrying {
					p.retrying = true
					p.wg.Go(p.retry)
				}
				return
			}
			w.first += uint32(n)
		} else {
			w.first = w.last
		}
		if w.first == w.last {
			w.job = nil
			l.work = l.work[1:]
		}
	}
}

// post submits the next n pages of w. It reports false when the engine has no room just now. Needs mu.
func (p *Prefiller) post(w *work, n int) (bool, error) {
	j, l := w.job, w.job.link
	src, dst := &p.cfg.Views[w.view], &l.views[w.view]
	last := w.first + uint32(n)
	cookie := p.takePost(j, uint64(n))
	err := p.writes.WritePages(hawser.WritePages{
		PageLen: p.cfg.Geometry.Group.PageBytes(),
		Src:     hawser.Pages{Region: src.Region, Indices: j.src[w.first:last], Stride: src.Stride, Offset: src.Base},
		Dst:     hawser.RemotePages{Remote: dst.remote, Indices: j.dst[w.first:last], Stride: dst.stride, Offset: dst.base},
		Imm:     hawser.Imm(j.imm),
	}, cookie)
	if err != nil {
		p.freePosts = append(p.freePosts, uint32(cookie))
		if errors.Is(err, hawser.ErrBusy) || errors.Is(err, hawser.ErrLimit) {
			return false, nil
		}
		return false, err
	}
	l.inFlight += n
	p.step(j, serveEvent{kind: svPost, n: uint64(n)})
	return true, nil
}

func (p *Prefiller) takePost(j *Job, n uint64) (cookie uint64) {
	if last := len(p.freePosts) - 1; last >= 0 {
		i := p.freePosts[last]
		p.freePosts = p.freePosts[:last]
		p.posts[i] = post{j, n}
		return uint64(i)
	}
	p.posts = append(p.posts, post{j, n})
	return uint64(len(p.posts) - 1)
}

// retryPost is the pause after the engine had no room. Somebody else may fill it, so that no completion of ours tells when there is.
const retryPost = time.Millisecond

// retry posts again what the engine had no room for.
func (p *Prefiller) retry() {
	select {
	case <-time.After(retryPost):
	case <-p.ctx.Done():
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.retrying = false
	for _, l := range p.links {
		p.pump(l)
	}
}

// completions takes the ends of writes and posts more.
func (p *Prefiller) completions() {
	ends := make([]hawser.Done, windowWrites)
	for {
		n, err := p.writes.Wait(p.ctx, ends)
		if err != nil {
			return // closing
		}
		p.mu.Lock()
		for _, e := range ends[:n] {
			p.completed(e)
		}
		p.mu.Unlock()
	}
}

// completed takes one end. Needs mu.
func (p *Prefiller) completed(e hawser.Done) {
	done := p.posts[e.Cookie]
	p.posts[e.Cookie] = post{}
	p.freePosts = append(p.freePosts, uint32(e.Cookie))
	j := done.job
	j.link.inFlight -= int(done.n)
	if e.Err == nil {
		p.stats.Writes += done.n
		p.stats.Bytes += done.n * p.cfg.Geometry.Group.PageBytes()
	} else if j.code == 0 {
		j.code, j.text = CodeTransfer, e.Err.Error()
	}
	p.step(j, serveEvent{kind: svComplete, n: done.n, ok: e.Err == nil})
	p.pump(j.link)
}
