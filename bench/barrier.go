package bench

import (
	"context"
	"io"
	"time"
)

// sendBarriers measures barriers from the call to the return.
func sendBarriers(ctx context.Context, s *Session, t task, lat *trips) error {
	for range t.Count {
		start := time.Now()
		if err := s.eng.Barrier(ctx, s.group, immBarrier); err != nil {
			return err
		}
		lat.add(time.Since(start))
	}
	return nil
}

func joinBarriers(ctx context.Context, r *receiver, t task) error {
	for range t.Count {
		if err := r.eng.Barrier(ctx, r.group, immBarrier); err != nil {
			return err
		}
	}
	return nil
}

// meshYard does what a barrier does: a message to every other process, then one from each.
func meshYard(c Config) side {
	return side{
		name: streamName(c),
		send: func(_ context.Context, s *Session, t task, lat *trips) error {
			var mesh []stream
			for _, p := range s.peers {
				mesh = append(mesh, p.stream)
			}
			return meetAll(mesh, messageSize(s.config), t.Count, lat)
		},
		receive: func(_ context.Context, r *receiver, t task) error {
			return meetAll(r.mesh, messageSize(r.config), t.Count, nil)
		},
	}
}

// meetAll goes through n rounds over the streams to all others.
func meetAll(mesh []stream, size, n int, lat *trips) error {
	buf := make([]byte, size)
	for range n {
		start := time.Now()
		for _, c := range mesh {
			if _, err := c.Write(buf); err != nil {
				return err
			}
		}
		for _, c := range mesh {
			if _, err := io.ReadFull(c, buf); err != nil {
				return err
			}
		}
		if lat != nil {
			lat.add(time.Since(start))
		}
	}
	return nil
}
