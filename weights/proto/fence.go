package proto

import "slices"

// fence takes the right to write away from a peer.
func (m *member) fence(id ID, hard bool) {
	if slices.ContainsFunc(m.fences, func(f fence) bool { return f.id == id }) {
		return
	}
	m.fences = append(m.fences, fence{id: id, hard: hard})
	m.mine.Fence(id, hard)
}

// fenceWriters takes the rights of those writers of the part that are not known to be quiet, and with revoke of the others, too. A
// writer in quiet is one that the controller knows to be quiet.
func (m *member) fenceWriters(known func(id ID) bool, revoke bool) {
	p := m.part
	if !p.granted {
		return // nobody has a right of this epoch
	}
	for i, w := range p.Writers {
		id := p.Members[w].ID
		switch quiet := p.quiet[i] || known(id); {
		case !quiet && !broken(mutFence):
			m.fence(id, true)
		case revoke && slices.Contains(m.holders, id):
			m.fence(id, false)
			p.quiet[i] = true
		default:
			p.quiet[i] = true
		}
	}
}

// Fenced answers Fence: nothing of the peer can arrive any more.
func (m *member) Fenced(now Time, id ID) {
	m.enter(now)
	i := slices.IndexFunc(m.fences, func(f fence) bool { return f.id == id })
	if i < 0 {
		m.unexpected("fenced")
		return
	}
	m.fences = slices.Delete(m.fences, i, i+1)
	m.holders = slices.DeleteFunc(m.holders, func(h ID) bool { return h == id })
	m.serial++ // a fence makes all descriptors that the peer has worthless; nobody keeps count for each peer
	m.out.Note(Note{Kind: NoteFence, Peer: id})
	if p := m.part; p != nil {
		for k, w := range p.Writers {
			if p.Members[w].ID == id {
				p.quiet[k] = true
			}
		}
	}
	m.mayBeSettled()
}

// Unfenced answers Fence: the peer may still write. err says where.
func (m *member) Unfenced(now Time, id ID, err error) {
	m.enter(now)
	for i := range m.fences {
		if f := &m.fences[i]; f.id == id {
			f.stuck, f.hard, f.at = true, true, m.now+fenceAgain
			m.out.Note(Note{Kind: NoteFence, Peer: id, Code: CodeUnfenced, Text: err.Error()})
		}
	}
	m.mayBeSettled()
}

// stuck are the peers that could not be fenced so far.
func (m *member) stuck() (ids []ID) {
	for _, f := range m.fences {
		if f.stuck {
			ids = append(ids, f.id)
		}
	}
	return ids
}

// mayBeSettled goes on when every fence has been tried.
func (m *member) mayBeSettled() {
	if p := m.part; p != nil && p.granting {
		return
	}
	if !slices.ContainsFunc(m.fences, func(f fence) bool { return !f.stuck }) {
		m.role.settled()
	}
}

// Next is when Tick is due, false when nothing waits for the time.
func (m *member) Next() (Time, bool) {
	at, ok := m.due()
	for _, f := range m.fences {
		at, ok = earliest(at, ok, f.at)
	}
	if p := m.part; p != nil {
		at, ok = earliest(at, ok, p.doubtAt, p.sumsAt, p.flipBy)
	}
	return at, ok
}

// Tick does what is due. See Next.
func (m *member) Tick(now Time) {
	m.enter(now)
	m.forget(func(l *letter) bool {
		return l.since+sayUntil <= m.now && (m.part == nil || l.about != m.part.Key.Number) && l.kind != KindJoin
	})
	m.repeat()
	for i := range m.fences {
		if f := &m.fences[i]; f.at != 0 && f.at <= m.now {
			f.at = 0
			m.mine.Fence(f.id, f.hard)
		}
	}
	if p := m.part; p != nil && p.sumsAt != 0 && p.sumsAt <= m.now {
		m.tellSums()
	}
	if p := m.part; p != nil && p.doubtAt != 0 && p.doubtAt <= m.now {
		m.ask()
	}
	if p := m.part; p != nil && p.flipBy != 0 && p.flipBy <= m.now {
		m.role.late()
	}
}
