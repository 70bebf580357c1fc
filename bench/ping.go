package bench

import (
	"bufio"
	"context"
	"io"
	"time"

	"github.com/hawser-project/hawser"
)

// pingDepth is more than one: a completion may come after the answer that it caused.
const pingDepth = 16

// pinger is one side of a ping-pong of writes with immediates.
type pinger struct {
	*flow
	out     hawser.Write
	counter *hawser.Counter
	seen    uint64
}

func newPinger(eng *engine, out hawser.Write, immIn uint32, seen uint64) *pinger {
	return &pinger{flow: newFlow(eng, pingDepth), out: out, counter: eng.Counter(immIn), seen: seen}
}

func (p *pinger) write(ctx context.Context) error {
	if err := p.poll(); err != nil {
		return err
	}
	if _, err := p.slot(ctx); err != nil {
		return err
	}
	return p.queue.Write(p.out, 0)
}

func (p *pinger) await(ctx context.Context) error {
	p.seen++
	return p.counter.Wait(ctx, p.seen)
}

// sendPings measures round trips of a block with an immediate, and notes half of each.
func sendPings(ctx context.Context, s *Session, t task, lat *trips) error {
	src, dst := s.order.block(0, immSize)
	out := hawser.Write{Src: s.pool.Slice(src, immSize), Dst: s.peers[0].remote.Slice(dst, immSize), Imm: hawser.Imm(immData)}
	p := newPinger(s.eng, out, immAnswer, s.answers)
	s.answers += uint64(t.Count)
	for range t.Count {
		start := time.Now()
		if err := p.write(ctx); err != nil {
			return err
		}
		if err := p.await(ctx); err != nil {
			return err
		}
		lat.add(time.Since(start) / 2)
	}
	return p.drain(ctx)
}

// answerPings answers each write with a write.
func answerPings(ctx context.Context, r *receiver, t task) error {
	out := hawser.Write{Src: r.word.Slice(0, immSize), Dst: r.answer.Slice(0, immSize), Imm: hawser.Imm(immAnswer)}
	p := newPinger(r.eng, out, immData, r.count)
	r.count += uint64(t.Count)
	for range t.Count {
		if err := p.await(ctx); err != nil {
			return err
		}
		if err := p.write(ctx); err != nil {
			return err
		}
	}
	return p.drain(ctx)
}

// sendImms is sendWrites without the clock.
func sendImms(ctx context.Context, s *Session, t task, _ *trips) error {
	return sendWrites(ctx, s, t, nil)
}

func pingYard(c Config) side { return side{name: streamName(c), send: pingStream, receive: echoStream} }

func floodYard(c Config) side {
	return side{name: streamName(c), send: floodStream, receive: drainStream}
}

// pingStream sends messages, each after the answer to the one before, and notes half of each round trip.
func pingStream(_ context.Context, s *Session, t task, lat *trips) error {
	buf, rw := make([]byte, messageSize(s.config)), s.peers[0].stream
	for range t.Count {
		start := time.Now()
		if _, err := rw.Write(buf); err != nil {
			return err
		}
		if _, err := io.ReadFull(rw, buf); err != nil {
			return err
		}
		lat.add(time.Since(start) / 2)
	}
	return nil
}

func echoStream(_ context.Context, r *receiver, t task) error {
	buf := make([]byte, messageSize(r.config))
	for range t.Count {
		if _, err := io.ReadFull(r.stream, buf); err != nil {
			return err
		}
		if _, err := r.stream.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// streamBuffer is the read buffer of a stream of small messages, bytes.
const streamBuffer = 64 << 10

// floodStream sends messages without waiting between them, each in a call of its own, and waits for the confirmation.
func floodStream(_ context.Context, s *Session, t task, _ *trips) error {
	buf := make([]byte, messageSize(s.config))
	for range t.Count {
		if _, err := s.peers[0].stream.Write(buf); err != nil {
			return err
		}
	}
	return s.confirmed()
}

func drainStream(_ context.Context, r *receiver, t task) error {
	in, buf := bufio.NewReaderSize(r.stream, streamBuffer), make([]byte, messageSize(r.config))
	for range t.Count {
		if _, err := io.ReadFull(in, buf); err != nil {
			return err
		}
	}
	return r.confirm()
}
