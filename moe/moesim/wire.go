package moesim

import (
	"github.com/hawser-project/hawser/internal/rail"
	"github.com/hawser-project/hawser/moe/internal/exec"
	"github.com/hawser-project/hawser/moe/proto"
	"github.com/hawser-project/hawser/provider"
)

// transfer is what the executor waits for as one.
type transfer struct {
	r    *rank
	t    proto.Transfer
	left int
}

// write is one part.
type write struct {
	rail.Op
	x    *transfer
	rank int
}

// Scatter posts a transfer to many.
func (r *rank) Scatter(op proto.Op, posts []exec.Post) {
	x := &transfer{r: r, t: proto.Transfer{Op: op, Rank: proto.All}, left: len(posts)}
	for i := range posts {
		r.submit(x, posts[i])
	}
}

// Write posts one to one peer.
func (r *rank) Write(op proto.Op, p exec.Post) {
	r.submit(&transfer{r: r, t: proto.Transfer{Op: op, Rank: p.Rank, Kind: p.Kind}, left: 1}, p)
}

func (r *rank) submit(x *transfer, post exec.Post) {
	p := r.peers[post.Rank]
	p.last[post.Kind] = post
	w := &write{x: x, rank: post.Rank}
	w.Kind, w.Owner, w.Peer, w.Src, w.Dst = rail.Write, w, p.p, r.areas[post.From], p.remote[post.To]
	w.SrcOff, w.DstOff, w.Len = uint64(post.Src), uint64(post.Dst), uint64(post.Len)
	w.HasImm, w.Imm, w.Parts = true, uint32(post.Kind), 1
	if p.local {
		r.posts.near++
	} else {
		r.posts.far++
		r.posts.bytes += post.Len
	}
	r.posts.all += post.Len
	if !r.g.Submit(&w.Op) {
		r.w.fail("rank %d: the worker is %d operations behind", r.index, rail.SubmitDepth)
	}
}

// Complete is called by the group when a write has ended.
func (w *write) Complete(*rail.Op) {
	x := w.x
	if w.Status != provider.StatusOK {
		x.r.w.fail("a write of rank %d to rank %d ends with %v", x.r.index, w.rank, w.Status)
		return
	}
	if x.left--; x.left == 0 {
		x.r.e.Ended(x.t)
		x.r.look()
	}
}
