package exec

import "github.com/hawser-project/hawser/moe/proto"

// Scatter is the lane's wish to write to many.
//
// hot:
func (e *Exec) Scatter(op proto.Op, targets []proto.Target) {
	e.posts = e.posts[:0]
	for i := range targets {
		e.posts = append(e.posts, e.post(op, &targets[i]))
	}
	e.wire.Scatter(op, e.posts)
}

// Write is the lane's wish to write to one.
//
// hot:
func (e *Exec) Write(op proto.Op, t proto.Target) { e.wire.Write(op, e.post(op, &t)) }

// post says where a write goes, and writes the record that it carries if it is one.
func (e *Exec) post(op proto.Op, t *proto.Target) Post {
	l, sd, sc := e.places, int64(e.cfg.Dispatch), int64(e.cfg.Combine)
	p := Post{Rank: t.Rank, Kind: t.Kind}
	switch op {
	case proto.OpHead:
		base, _ := e.lane.Slots(t.Rank)
		p.From, p.Src, p.Len = Send, l.send(t.Rank, base), int64(e.cfg.HeadBytes)+int64(t.N)*sd
		p.To = Blocks
	case proto.OpChunk:
		base, _ := e.lane.Slots(t.Rank)
		p.From, p.Src, p.Len = Send, l.send(t.Rank, base)+int64(e.cfg.HeadBytes)+int64(t.First)*sd, int64(t.N)*sd
		p.To, p.Dst = Pool, l.chunk(t.Chunk)
	case proto.OpGrant:
		slot := int(t.Kind - proto.KindGrant)
		p.From, p.Src, p.Len = Sources, int64(t.Rank)*recordsBytes+int64(slot)*proto.GrantBytes, proto.GrantBytes
		p.To, p.Dst = Blocks, l.grant(slot)
		g := proto.Grant{Step: e.lane.Step(), Seq: t.Piece, Chunk: t.Chunk}
		g.Put(e.mem[Sources][p.Src:])
	case proto.OpCancel:
		p.From, p.Src, p.Len = Sources, int64(t.Rank)*recordsBytes+grantsBytes, proto.CancelBytes
		p.To, p.Dst = Blocks, l.cancel()
		c := e.lane.Told(t.Rank)
		c.Put(e.mem[Sources][p.Src:])
	case proto.OpComb:
		p.From, p.Src, p.Len = Y, e.yAt(t)*sc, int64(t.N)*sc
		p.To, p.Dst = Results, int64(t.First)*sc
	}
	return p
}

// yAt is the slot in Y where the results of a piece lie.
func (e *Exec) yAt(t *proto.Target) int64 {
	if e.streamed {
		if t.N == 0 {
			return 0
		}
		return int64(e.st.at[e.st.index(t.Rank, t.Piece)])
	}
	first, _ := e.cfg.Piece(int(e.lane.Records(t.Rank)), int(t.Piece))
	return int64(e.yBase[t.Rank]) + int64(first)
}

// Head copies a header. What a peer wrote is copied before it is looked at: a hostile one writes meanwhile.
func (e *Exec) Head(rank int) []byte {
	b := e.block(rank)
	copy(e.head[rank], b)
	return e.head[rank]
}

// Grant copies a grant.
func (e *Exec) Grant(rank, slot int) []byte {
	n := copy(e.record[:proto.GrantBytes], e.block(rank)[e.places.grant(slot):])
	return e.record[:n]
}

// cancelOf copies a cancel record.
func (e *Exec) cancelOf(rank int) []byte {
	n := copy(e.record[:], e.block(rank)[e.places.cancel():])
	return e.record[:n]
}

// block is what a source writes.
func (e *Exec) block(rank int) []byte {
	n := e.places.Block()
	return e.mem[Blocks][int64(rank)*n : int64(rank+1)*n]
}
