package bench

import (
	"context"
	"time"

	"github.com/hawser-project/hawser"
)

// pingMessages measures round trips of Send and Receive, and notes half of each.
func pingMessages(ctx context.Context, s *Session, t task, lat *trips) error {
	f := newFlow(s.eng, pingDepth)
	peer, data := s.peers[0].remote.Peer(), s.message(0)
	for range t.Count {
		start := time.Now()
		if err := sendMessage(ctx, f, peer, data); err != nil {
			return err
		}
		if _, err := s.eng.Receive(ctx); err != nil {
			return err
		}
		lat.add(time.Since(start) / 2)
	}
	return f.drain(ctx)
}

// answerMessages sends each message back.
func answerMessages(ctx context.Context, r *receiver, t task) error {
	f := newFlow(r.eng, pingDepth)
	for range t.Count {
		m, err := r.eng.Receive(ctx)
		if err != nil {
			return err
		}
		if err := sendMessage(ctx, f, m.From, m.Data); err != nil {
			return err
		}
	}
	return f.drain(ctx)
}

func sendMessage(ctx context.Context, f *flow, to *hawser.Peer, data []byte) error {
	if err := f.poll(); err != nil {
		return err
	}
	cookie, err := f.slot(ctx)
	if err != nil {
		return err
	}
	return f.queue.Send(to, data, cookie)
}

// message is the source block at a position, as a message.
func (s *Session) message(position int) []byte {
	at, _ := s.order.block(position, s.config.Size)
	return s.pool.Bytes()[at:][:s.config.Size]
}

// sendMessages measures the rate.
func sendMessages(ctx context.Context, s *Session, t task, _ *trips) error {
	f, peer, first := s.flow, s.peers[0].remote.Peer(), t.First%uint64(s.config.slots())
	f.begin(t.Count, nil) // the latency of a row is that of the round trips
	for i := range t.Count {
		cookie, err := f.slot(ctx)
		if err != nil {
			return err
		}
		if err := f.queue.Send(peer, s.message((int(first)+i)%s.config.slots()), cookie); err != nil {
			return err
		}
	}
	return s.finished(ctx)
}

// checkEvery is how many messages there are for each one whose whole content is compared; the lengths of all are.
const checkEvery = 64

// takeMessages receives all, then tells the sender.
func takeMessages(ctx context.Context, r *receiver, t task) error {
	size := r.config.Size
	for i := range t.Count {
		m, err := r.eng.Receive(ctx)
		if err != nil {
			return err
		}
		if uint64(len(m.Data)) != size {
			r.wrong += size
		} else if i%checkEvery == 0 {
			r.wrong += strayBytes(m.Data, r.config.Seed, r.config.slots())
		}
	}
	return r.signal(ctx)
}
