package proto

// Next is when Tick is due; ok is false if nothing is awaited.
func (l *Lane) Next() (at Time, ok bool) {
	return l.deadline, l.phase == receiving || l.phase == combining
}

// Tick: who owes something by now is missing. Who waits for a grant owes nothing, and nobody does while pieces are offered here.
func (l *Lane) Tick(now Time) {
	if at, ok := l.Next(); !ok || now < at {
		return
	}
	l.deadline = now + l.cfg.StepTimeout
	for i := range l.peers {
		if p := &l.peers[i]; p.member && !p.missing && l.owes(p) {
			l.miss(i, CodeLate)
		}
	}
	l.turned()
}

// owes: something of this peer is awaited, and it has what it needs to write it.
func (l *Lane) owes(p *peer) bool {
	if l.phase == combining {
		return !p.combIn
	}
	if !p.head {
		return true
	}
	for w := range l.cfg.Window {
		if p.window[w].state == slotGranted || p.busy[KindGrant+Kind(w)] > 0 && int(p.granted) < l.cfg.Chunks(int(p.in)) {
			return true
		}
	}
	return false
}

// awaits: the step in progress needs something more of this peer.
func (l *Lane) awaits(p *peer) bool {
	return !p.missing && (!p.combIn || l.phase <= receiving && (!p.head || p.in > 0 && int(p.unpacked) < l.cfg.Pieces(int(p.in))))
}

// PeerDown: the session with this rank has ended. It is not a member again before the next view.
func (l *Lane) PeerDown(rank int) {
	p := &l.peers[rank]
	if !l.open || !p.member || p.down {
		return
	}
	p.down = true
	if l.phase != idle {
		if l.awaits(p) {
			l.miss(rank, CodeDown)
			l.flush()
			l.packY()
			l.turned()
		}
		return
	}
	l.flush()
}

// miss goes on without a peer. What it has not given is never read in this view: the chunks it was granted stay out of use.
func (l *Lane) miss(rank int, why Code) {
	p := &l.peers[rank]
	p.missing = true
	l.partial = true
	l.stop(CodeMissing, rank)
	if p.head {
		if pieces := l.cfg.Pieces(int(p.in)); p.in > 0 {
			l.left -= pieces - int(p.unpacked)
		}
		l.wanted -= l.cfg.Chunks(int(p.in)) - int(p.granted)
	} else {
		l.heads--
	}
	if !p.combIn {
		l.combs--
	}
	if p.first == slotArrived {
		p.first = slotFree
	}
	for w := range l.cfg.Window {
		switch s := &p.window[w]; {
		case s.state == slotArrived || s.state == slotGranted && broken(mutLost):
			s.state = slotFree
			l.free = append(l.free, s.chunk)
		case s.state == slotGranted:
			l.away++
		}
	}
	l.out.Missing(l.step, rank, why)
	l.grant()
}

// Fault: a Transfer failed towards this rank. Ended follows. unfenced: it may yet be placed there.
func (l *Lane) Fault(rank int, unfenced bool) {
	p := &l.peers[rank]
	if unfenced {
		p.unfenced = true
		l.stop(CodeUnfenced, rank)
		l.fail(CodeUnfenced, rank)
		return
	}
	l.PeerDown(rank)
}

// Cancel ends the step in progress, and the lane.
func (l *Lane) Cancel(why Code) {
	l.stop(why, l.cfg.Rank)
	l.fail(why, l.cfg.Rank)
}

// Stop: no step begins after the one in progress. Everybody is told when it has ended.
func (l *Lane) Stop(why Code) {
	if l.open {
		l.stop(why, l.cfg.Rank)
		l.tell()
	}
}

func (l *Lane) stop(why Code, blamed int) {
	if !l.stale {
		l.stale, l.why, l.blamed = true, why, blamed
	}
}

// fail ends the step in progress. What is still being unpacked or written goes on; its end is not awaited here.
func (l *Lane) fail(why Code, blamed int) {
	if l.phase == idle {
		l.tell()
		return
	}
	l.phase = idle
	l.why, l.blamed = why, blamed
	l.flush()
	l.tell()
	l.out.Failed(l.step, why, blamed)
}

// tell sends the one Cancel of the view, once no step is in progress.
func (l *Lane) tell() {
	if l.told || !l.active || l.phase != idle || broken(mutTell) {
		return
	}
	l.told = true
	l.targets = l.targets[:0]
	for i := range l.peers {
		if p := &l.peers[i]; p.member && !p.down { // who is missing, too: it may be alive
			l.targets = append(l.targets, Target{Rank: i, Kind: KindCancel})
		}
	}
	l.scatter(OpCancel)
}

// Told is what the Cancel says to a rank: the first step that this lane does not complete.
func (l *Lane) Told(rank int) Cancel {
	c := Cancel{Step: l.step, View: l.view, Code: l.why, Blamed: l.blamed}
	if l.completed == l.step || !l.begun {
		c.Step++
	}
	if l.peers[rank].missing {
		c.Code, c.Blamed = CodeMissing, rank
	}
	return c
}

// cancelled: a peer has said that it stops. It fails every step from the one that it names on, and no step earlier: for these the peer
// has posted all that it owes. Unless it holds this rank missing, then nothing more comes from it.
func (l *Lane) cancelled(rank int) {
	p := &l.peers[rank]
	p.taken[KindCancel]++
	c, err := l.cfg.ParseCancel(l.out.Cancel(rank))
	running := l.phase != idle
	switch {
	case err != nil || c.View != l.view || p.taken[KindCancel] > 1:
		l.stop(CodeCorrupt, rank)
		if running && l.awaits(p) {
			l.miss(rank, CodeCorrupt)
		}
	case running && (c.Step == l.step || c.Step < l.step && !broken(mutLater)):
		l.stop(c.Code, rank)
		l.fail(c.Code, rank)
	default:
		l.stop(c.Code, rank)
		if running && c.Code == CodeMissing && c.Blamed == l.cfg.Rank && l.awaits(p) {
			l.miss(rank, CodeMissing)
		}
	}
	if !running {
		l.tell()
	}
	l.flush()
	l.packY()
	l.turned()
}
