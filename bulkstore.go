package hawser

import (
	"slices"
	"sync"
)

// Room for bulk messages that are on their way or have not been received yet, bytes. A sender whose message does not fit waits.
const (
	bulkRoomPeer   = MaxBulk     // of one peer: its longest message
	bulkRoomEngine = 4 * MaxBulk // of all peers together
	bulkMinCost    = 4 << 10     // what the shortest message counts for, so that there are not too many
)

// bulkStore hands out room for bulk messages, and holds those that are here until somebody calls Receive. It may be called by
// anyone, without bulk.mu.
type bulkStore struct {
	ready chan struct{} // the inbox's

	mu      sync.Mutex
	used    uint64
	peers   map[*Peer]uint64 // what each has of used; no zeros
	waiting []*bulkIn        // oldest first
	here    []bulkMessage    // oldest first
}

type bulkMessage struct {
	Message
	cost uint64
}

func newBulkStore(ready chan struct{}) *bulkStore {
	return &bulkStore{ready: ready, peers: map[*Peer]uint64{}}
}

func bulkCost(n uint64) uint64 { return max(n, bulkMinCost) }

// request makes in wait for room.
func (st *bulkStore) request(in *bulkIn) {
	st.mu.Lock()
	in.queued = true
	st.waiting = append(st.waiting, in)
	st.unlockAndAdmit()
}

// unlockAndAdmit gives room to those who wait: the oldest first, unless its peer has its share already. Needs mu, and gives it back.
func (st *bulkStore) unlockAndAdmit() {
	var admitted []*bulkIn
	full := false
	st.waiting = slices.DeleteFunc(st.waiting, func(in *bulkIn) bool {
		n, p := bulkCost(in.len), in.s.peer
		if full || st.peers[p]+n > bulkRoomPeer {
			return false
		}
		if st.used+n > bulkRoomEngine { // younger ones do not overtake: a long message would wait for ever
			full = true
			return false
		}
		st.used += n
		st.peers[p] += n
		in.queued, in.holds = false, true
		admitted = append(admitted, in)
		return true
	})
	st.mu.Unlock()
	for _, in := range admitted {
		in.s.bulk.accept(in)
	}
}

// release gives room back. Needs mu.
func (st *bulkStore) release(p *Peer, n uint64) {
	st.used -= n
	if st.peers[p] -= n; st.peers[p] == 0 {
		delete(st.peers, p)
	}
}

// forget takes back what a transfer has, or waits for. in may be nil.
func (st *bulkStore) forget(in *bulkIn) {
	if in == nil {
		return
	}
	st.mu.Lock()
	if in.queued {
		in.queued = false
		st.waiting = slices.DeleteFunc(st.waiting, func(w *bulkIn) bool { return w == in })
	}
	if in.holds {
		in.holds = false
		st.release(in.s.peer, bulkCost(in.len))
	}
	st.unlockAndAdmit()
}

// put takes a whole message, unless its transfer has been forgotten in the meantime.
func (st *bulkStore) put(in *bulkIn, data []byte) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !in.holds {
		return false
	}
	in.holds = false // the message has the room now
	st.here = append(st.here, bulkMessage{Message{From: in.s.peer, Data: data}, bulkCost(in.len)})
	signal(st.ready)
	return true
}

// take takes the oldest message.
func (st *bulkStore) take() (m Message, ok bool) {
	st.mu.Lock()
	if len(st.here) == 0 {
		st.mu.Unlock()
		return Message{}, false
	}
	m = st.here[0].Message
	st.release(m.From, st.here[0].cost)
	st.here[0] = bulkMessage{}
	st.here = st.here[1:]
	st.unlockAndAdmit()
	return m, true
}

func (st *bulkStore) empty() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return len(st.here) == 0
}
