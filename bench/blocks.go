package bench

import (
	"context"
	"io"

	"github.com/hawser-project/hawser"
)

// A block belongs to a receiver by its position in the order of a run, so that all processes know without a word whose it is.
func owner(position, peers int) int { return position % peers }

// sendBlocks moves one sample by requests of up to a batch of blocks, and returns when the applications of all receivers have said that
// they have everything. at is the position of src[0] and dst[0].
func sendBlocks(ctx context.Context, s *Session, t task, lat *trips, submit func(f *flow, at int, src, dst []uint32, cookie uint64) error) error {
	f := s.flow
	f.begin((t.Count+s.config.Batch-1)/s.config.Batch, lat)
	err := s.order.runs(t.First, t.Count, s.config.Batch, func(at int, src, dst []uint32) error {
		cookie, err := f.slot(ctx)
		if err != nil {
			return err
		}
		return submit(f, at, src, dst, cookie)
	})
	if err != nil {
		return err
	}
	return s.finished(ctx)
}

// finished waits for the ends of all requests, and for the answers of all receivers.
func (s *Session) finished(ctx context.Context) error {
	if err := s.flow.drain(ctx); err != nil {
		return err
	}
	return s.answered(ctx)
}

// sendWrites does what sendBlocks does, in one loop: at some million blocks a second a call for each of them counts.
func sendWrites(ctx context.Context, s *Session, t task, lat *trips) error {
	f, size, remote := s.flow, s.config.Size, s.peers[0].remote
	f.begin(t.Count, lat)
	err := s.order.runs(t.First, t.Count, t.Count, func(_ int, src, dst []uint32) error {
		for i := range src {
			cookie, err := f.slot(ctx)
			if err != nil {
				return err
			}
			err = f.queue.Write(hawser.Write{
				Src: s.pool.Slice(uint64(src[i])*size, size),
				Dst: remote.Slice(uint64(dst[i])*size, size),
				Imm: hawser.Imm(immData),
			}, cookie)
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.finished(ctx)
}

func sendPages(ctx context.Context, s *Session, t task, lat *trips) error {
	size, remote := s.config.Size, s.peers[0].remote
	return sendBlocks(ctx, s, t, lat, func(f *flow, _ int, src, dst []uint32, cookie uint64) error {
		return f.queue.WritePages(hawser.WritePages{
			PageLen: size,
			Src:     hawser.Pages{Region: s.pool, Indices: src, Stride: size},
			Dst:     hawser.RemotePages{Remote: remote, Indices: dst, Stride: size},
			Imm:     hawser.Imm(immData),
		}, cookie)
	})
}

func sendScatters(ctx context.Context, s *Session, t task, lat *trips) error {
	size, source := s.config.Size, s.pool.All()
	targets := make([]hawser.Target, 0, s.config.Batch)
	return sendBlocks(ctx, s, t, lat, func(f *flow, at int, src, dst []uint32, cookie uint64) error {
		targets = targets[:0]
		for i := range src {
			to := s.peers[owner(at+i, len(s.peers))].remote
			targets = append(targets, hawser.Target{Dst: to.Slice(uint64(dst[i])*size, size), SrcOff: uint64(src[i]) * size, Len: size})
		}
		return f.queue.Scatter(hawser.Scatter{Src: source, Targets: targets, Imm: hawser.Imm(immData)}, cookie)
	})
}

// countBlocks waits for the immediates of this receiver's blocks, then tells the sender.
func countBlocks(ctx context.Context, r *receiver, t task) error {
	r.count += uint64(r.own(t))
	if err := r.eng.Counter(immData).Wait(ctx, r.count); err != nil {
		return err
	}
	return r.signal(ctx)
}

// own is how many blocks of a task are this receiver's.
func (r *receiver) own(t task) int {
	n, peers := 0, r.config.Peers
	below := func(position int) int { return (position + peers - 1 - r.index) / peers } // of its positions
	_ = r.order.runs(t.First, t.Count, t.Count, func(at int, src, _ []uint32) error {   // its function does not fail
		n += below(at+len(src)) - below(at)
		return nil
	})
	return n
}

// blockYard is memcpy on one host, else one socket for each receiver.
func blockYard(c Config) side {
	if c.local() {
		return side{name: "memcpy", send: copyBlocks}
	}
	return side{name: yardTCP, send: streamBlocks, receive: unstreamBlocks}
}

// copyBlocks is memcpy of one sample.
func copyBlocks(_ context.Context, s *Session, t task, _ *trips) error {
	s.order.copy(s.yard.Bytes(), s.pool.Bytes(), s.config.Size, t)
	return nil
}

// copy copies the blocks of a task.
func (o order) copy(dst, src []byte, size uint64, t task) {
	_ = o.runs(t.First, t.Count, t.Count, func(_ int, ss, ds []uint32) error { // its function does not fail
		for i := range ss {
			s, d := uint64(ss[i])*size, uint64(ds[i])*size
			copy(dst[d:d+size], src[s:s+size])
		}
		return nil
	})
}

// streamBlocks writes one sample to the receivers' streams, a call for each block, and waits for their confirmations.
func streamBlocks(_ context.Context, s *Session, t task, _ *trips) error {
	size, pool := s.config.Size, s.pool.Bytes()
	err := s.order.runs(t.First, t.Count, t.Count, func(at int, src, _ []uint32) error {
		for i, b := range src {
			if _, err := s.peers[owner(at+i, len(s.peers))].stream.Write(pool[uint64(b)*size:][:size]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.confirmed()
}

// unstreamBlocks is the other side of streamBlocks.
func unstreamBlocks(_ context.Context, r *receiver, t task) error {
	size, pool := r.config.Size, r.yard.Bytes()
	err := r.order.runs(t.First, t.Count, t.Count, func(at int, _, dst []uint32) error {
		for i, b := range dst {
			if owner(at+i, r.config.Peers) != r.index {
				continue
			}
			if _, err := io.ReadFull(r.stream, pool[uint64(b)*size:][:size]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return r.confirm()
}
