package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
)

// sender submits the writes of ours. Owned by Run.
type sender struct {
	config   Config
	order    order
	pool     *hawser.Region
	remote   *hawser.Remote
	queue    *hawser.Queue
	done     []hawser.Done
	inFlight int
	answers  *hawser.Counter
	answered uint64
}

// send moves one sample and returns when the receiver's application says that it has everything.
func (s *sender) send(ctx context.Context, first uint64) error {
	err := s.order.runs(first, s.config.blocks(), s.config.Batch, func(src, dst []uint32) error {
		for s.inFlight >= s.config.Depth {
			if err := s.reap(ctx); err != nil {
				return err
			}
		}
		s.inFlight++
		return s.submit(src, dst)
	})
	if err != nil {
		return fmt.Errorf("bench: %s: %w", s.config.Kind, err)
	}
	for s.inFlight > 0 {
		if err := s.reap(ctx); err != nil {
			return fmt.Errorf("bench: %s: %w", s.config.Kind, err)
		}
	}
	s.answered++
	return s.answers.Wait(ctx, s.answered)
}

func (s *sender) submit(src, dst []uint32) error {
	size := s.config.Size
	if s.config.Kind == Pages {
		return s.queue.WritePages(hawser.WritePages{
			PageLen: size,
			Src:     hawser.Pages{Region: s.pool, Indices: src, Stride: size},
			Dst:     hawser.RemotePages{Remote: s.remote, Indices: dst, Stride: size},
			Imm:     hawser.Imm(immData),
		}, 0)
	}
	return s.queue.Write(hawser.Write{
		Src: s.pool.Slice(uint64(src[0])*size, size),
		Dst: s.remote.Slice(uint64(dst[0])*size, size),
		Imm: hawser.Imm(immData),
	}, 0)
}

func (s *sender) reap(ctx context.Context) error {
	n, err := s.queue.Wait(ctx, s.done)
	if err != nil {
		return err
	}
	s.inFlight -= n
	for _, d := range s.done[:n] {
		if d.Err != nil {
			return d.Err
		}
	}
	return nil
}

// pinger is one side of a ping-pong of writes with immediates.
type pinger struct {
	queue    *hawser.Queue
	done     [pingDepth]hawser.Done
	inFlight int
	out      hawser.Write
	counter  *hawser.Counter
	seen     uint64
}

// pingDepth is more than one: a completion may come after the answer that it caused.
const pingDepth = 16

func newPinger(eng *hawser.Engine, from hawser.Slice, to hawser.RemoteSlice, immOut, immIn uint32, seen uint64) *pinger {
	return &pinger{
		queue:   eng.NewQueue(pingDepth),
		out:     hawser.Write{Src: from, Dst: to, Imm: hawser.Imm(immOut)},
		counter: eng.Counter(immIn),
		seen:    seen,
	}
}

func (p *pinger) write(ctx context.Context) error {
	if n := p.queue.Poll(p.done[:]); n > 0 {
		if err := p.take(n); err != nil {
			return err
		}
	}
	for p.inFlight == pingDepth {
		if err := p.reap(ctx); err != nil {
			return err
		}
	}
	p.inFlight++
	return p.queue.Write(p.out, 0)
}

func (p *pinger) await(ctx context.Context) error {
	p.seen++
	return p.counter.Wait(ctx, p.seen)
}

func (p *pinger) reap(ctx context.Context) error {
	n, err := p.queue.Wait(ctx, p.done[:])
	if err != nil {
		return err
	}
	return p.take(n)
}

func (p *pinger) take(n int) error {
	p.inFlight -= n
	for _, d := range p.done[:n] {
		if d.Err != nil {
			return d.Err
		}
	}
	return nil
}

func (p *pinger) drain(ctx context.Context) error {
	for p.inFlight > 0 {
		if err := p.reap(ctx); err != nil {
			return err
		}
	}
	return nil
}

// ping measures n round trips.
func (p *pinger) ping(ctx context.Context, n int) ([]time.Duration, error) {
	trips := make([]time.Duration, n)
	for i := range trips {
		start := time.Now()
		if err := p.write(ctx); err != nil {
			return nil, err
		}
		if err := p.await(ctx); err != nil {
			return nil, err
		}
		trips[i] = time.Since(start)
	}
	return trips, p.drain(ctx)
}
