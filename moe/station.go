package moe

import (
	"context"
	"encoding/binary"
	"sync"

	"github.com/hawser-project/hawser"
)

// station takes the messages of an engine, for all groups on it: it lives as long as there is one.
type station struct {
	eng  *hawser.Engine
	stop context.CancelFunc
	wg   sync.WaitGroup
	uses int // guarded by stations.mu

	mu     sync.Mutex
	groups map[uint64]func(hawser.Message) // by number; guarded by mu
	early  []hawser.Message                // for groups that are not there yet, the oldest first; guarded by mu
	bytes  int                             // of them; guarded by mu
}

// stations are those of the engines that have groups: there is one queue of messages for an engine.
var stations = struct {
	mu sync.Mutex
	of map[*hawser.Engine]*station // guarded by mu
}{of: map[*hawser.Engine]*station{}}

// Messages of a group begin with frameMagic and its number. The rest is the protocol's.
const (
	frameMagic = 0x474d7768 // "hwMG"
	frameBytes = 12
)

func appendFrame(b []byte, group uint64) []byte {
	b = binary.LittleEndian.AppendUint32(b, frameMagic)
	return binary.LittleEndian.AppendUint64(b, group)
}

// maxEarly bounds the bytes kept for groups that are not there yet, such as come while the slower ranks still make theirs.
const maxEarly = 16 << 20

// enroll hands the messages of a group to f from now on, one at a time, those that came before it first.
func enroll(eng *hawser.Engine, group uint64, f func(hawser.Message)) (leave func()) {
	stations.mu.Lock()
	s := stations.of[eng]
	if s == nil {
		ctx, stop := context.WithCancel(context.Background())
		s = &station{eng: eng, stop: stop, groups: map[uint64]func(hawser.Message){}}
		stations.of[eng] = s
		s.wg.Go(func() { s.receive(ctx) })
	}
	s.uses++
	stations.mu.Unlock()
	s.mu.Lock()
	s.groups[group] = f
	var keep []hawser.Message
	for _, m := range s.early {
		if groupOf(m.Data) == group {
			s.bytes -= len(m.Data)
			f(m)
		} else {
			keep = append(keep, m)
		}
	}
	s.early = keep
	s.mu.Unlock()
	return func() { s.leave(group) }
}

func (s *station) leave(group uint64) {
	s.mu.Lock()
	delete(s.groups, group)
	s.mu.Unlock()
	stations.mu.Lock()
	s.uses--
	last := s.uses == 0
	if last {
		delete(stations.of, s.eng)
	}
	stations.mu.Unlock()
	if last {
		s.stop()
		s.wg.Wait()
	}
}

// receive ends with ctx, or with the engine.
func (s *station) receive(ctx context.Context) {
	for {
		m, err := s.eng.Receive(ctx)
		if err != nil {
			return
		}
		if len(m.Data) < frameBytes || binary.LittleEndian.Uint32(m.Data) != frameMagic {
			continue // nobody else's: see New
		}
		s.mu.Lock()
		if f := s.groups[groupOf(m.Data)]; f != nil {
			f(m)
		} else {
			s.keep(m)
		}
		s.mu.Unlock()
	}
}

// keep keeps a message for a group that may come. Needs mu.
func (s *station) keep(m hawser.Message) {
	s.early = append(s.early, m)
	for s.bytes += len(m.Data); s.bytes > maxEarly; s.early = s.early[1:] {
		s.bytes -= len(s.early[0].Data)
	}
}

func groupOf(frame []byte) uint64 { return binary.LittleEndian.Uint64(frame[4:]) }
