package proto

import (
	"errors"
	"slices"
)

// switchInstance drives the instance to the new version. Leaders only.
func (r *Receiver) switchInstance() {
	p := r.part
	if r.cfg.Member.Shadow && !p.pausing {
		p.pausing, r.stopped = true, true
		r.mine.Pause(p.Version)
		return
	}
	r.flipAll()
}

// flipAll lets every rank flip: the whole instance is stopped.
func (r *Receiver) flipAll() {
	p := r.part
	p.flipBy = r.now + r.cfg.FlipAfter
	r.sayToMates(&Flip{Decision{Of: p.Key, Version: p.Version, Commit: true, Instances: []int{r.cfg.Member.Instance}}})
	r.flip()
	r.mayResume()
}

func (r *Receiver) flip() {
	if p := r.part; p != nil && p.phase == phSwitch && !p.flipping {
		p.flipping = true
		r.mine.Flip(p.Key, p.Version)
	}
}

// Flipped answers Flip.
func (r *Receiver) Flipped(now Time, err error) {
	r.enter(now)
	p := r.part
	if p == nil || p.phase != phSwitch || !p.flipping || p.flip {
		r.unexpected("flipped")
		return
	}
	p.flip = true
	switch {
	case r.cfg.Member.Leader && err != nil:
		r.switchFails(CodeFlip, err.Error())
	case r.cfg.Member.Leader:
		r.mayResume()
	case err != nil:
		r.say(p.leader(), Head{Term: p.Key.Term, Epoch: p.Key.Number}, &Flipped{Text: err.Error()})
		r.switchFails(CodeFlip, err.Error())
	default:
		r.commit()
		r.say(p.leader(), Head{Term: p.Key.Term, Epoch: p.Key.Number}, &Flipped{OK: true})
		r.done(Done{Of: p.Key, OK: true})
		r.over()
	}
}

// mateFlipped takes the answer of a rank. Leaders only.
func (r *Receiver) mateFlipped(from ID, x *Flipped) {
	p := r.part
	if p.phase != phSwitch || p.flipBy == 0 || !slices.Contains(r.mates(), from) {
		return
	}
	if !x.OK {
		r.switchFails(CodeFlip, "a rank could not flip: "+x.Text)
		return
	}
	if !slices.Contains(p.flipped, from) {
		p.flipped = append(p.flipped, from)
	}
	r.mayResume()
}

// mayResume starts the engine when all ranks have flipped.
func (r *Receiver) mayResume() {
	p := r.part
	if !p.flip || p.resuming || len(p.flipped) < len(r.mates()) && !broken(mutAllFlip) {
		return
	}
	p.resuming, p.flipBy = true, 0
	r.mine.Resume(p.Version)
}

// Resumed answers Resume.
func (r *Receiver) Resumed(now Time, err error) {
	r.enter(now)
	p := r.part
	if p == nil || !p.resuming {
		r.unexpected("resumed")
		return
	}
	p.resuming = false
	switch {
	case p.phase == phEnding: // after an abort that left everything as it was
		p.resumed, r.stopped = true, err != nil
		if err != nil {
			r.active = StateFailed
		}
		r.mayFinish()
	case err != nil:
		r.switchFails(CodeFlip, err.Error())
	default:
		r.stopped = false
		r.commit()
		r.done(Done{Of: p.Key, OK: true})
		r.over()
	}
}

// commit makes the version of the part the one that is served.
func (r *Receiver) commit() {
	p := r.part
	if r.cfg.Member.Shadow {
		r.held, r.heldBy = 0, Hash{}
		if r.active == StateCommitted {
			r.held, r.heldBy = r.version, r.root
		}
	}
	r.active, r.version, r.root, r.by = StateCommitted, p.Version, p.root, p.Key
}

// switchFails ends a switch: the instance is not resumed, and out of routing.
func (r *Receiver) switchFails(c Code, text string) {
	k := r.part.Key
	r.active, r.version = StateFailed, 0
	r.done(Done{Of: k, Code: c, Text: text})
	r.over()
}

func (r *Receiver) done(d Done) {
	r.doneOf = d
	r.say(r.term.ID, Head{Term: r.term}, &d)
}

// late: not all ranks have flipped in time.
func (r *Receiver) late() { r.switchFails(CodeFlip, "not all ranks flipped in time") }

func (r *Receiver) gone(id ID) {
	p := r.part
	if p == nil || p.phase != phSwitch || p.resuming {
		return
	}
	switch {
	case r.cfg.Member.Leader && slices.Contains(r.mates(), id):
		r.switchFails(CodeLost, "a rank is gone")
	case !r.cfg.Member.Leader && id == p.leader() && !p.flipping:
		r.switchFails(CodeLost, "the leader is gone")
	}
}

func (r *Receiver) wanted(Version, Mode) {}

// stray answers a Flip for a part that is over.
func (r *Receiver) stray(from ID, h Head, b Body) {
	if _, ok := b.(*Flip); ok {
		f := &Flipped{OK: r.by == h.key() && r.active == StateCommitted}
		if !f.OK {
			f.Text = "it is over here"
		}
		r.tell(from, h, f)
	}
}

// again answers a decision that came when the part was over.
func (r *Receiver) again(d *Decision, to ID) {
	x := r.doneOf
	if x.Of != d.Of {
		x = Done{Of: d.Of, OK: !d.Commit || r.by == d.Of, Stuck: r.stuck()}
	}
	r.say(to, Head{Term: r.term}, &x)
}

// out takes this instance out of an epoch.
func (r *Receiver) out(x *OutOf) {
	p := r.part
	switch {
	case p != nil && !p.source() && inChain(x.Since, x.Of, p.Key):
		if broken(mutOut) {
			r.learn(Decision{Of: p.Key, Version: p.Version})
		}
		r.leaves(x)
	case p == nil && r.by == x.Of && r.active == StateCommitted: // it flipped, but the instance was not resumed
		if !r.cfg.Member.Leader {
			r.active, r.version = StateFailed, 0
			r.reportAll()
		}
	}
}

// leaves ends the part of a rank whose instance is out.
func (r *Receiver) leaves(x *OutOf) {
	switch p := r.part; {
	case p.phase == phEnding:
	case p.phase == phSwitch || x.Commit && p.phase == phVoted:
		if !r.cfg.Member.Leader { // which decides for itself
			r.switchFails(x.Code, x.Text)
		}
	default:
		r.end(false, nil, x.Code, x.Text)
	}
}

// end ends a part that does not commit here. clean: nobody was told to start. quiet are writers that are known to be quiet.
func (r *Receiver) end(clean bool, quiet []ID, c Code, text string) {
	p := r.part
	p.why = errors.New(text)
	p.whyCode = c
	r.enterPhase(phEnding)
	if p.source() {
		r.stopWriting()
		r.mayFinish()
		return
	}
	p.clean = clean && !r.cfg.Poisons && p.Mode != ModeBack
	if broken(mutEarlyPut) && p.granted && !p.granting {
		r.mine.Put(p.Key)
		p.granted = false
	}
	r.fenceWriters(func(id ID) bool { return slices.Contains(quiet, id) }, true)
	r.mayBeSettled()
}

// mayFinish ends the part when nothing can be written any more, and nothing is under way.
func (r *Receiver) mayFinish() {
	p := r.part
	if p.source() {
		if !p.started || p.wrote {
			r.done(Done{Of: p.Key, OK: true})
			r.over()
		}
		return
	}
	if p.dirtied && !p.clean {
		r.spoil()
	}
	if p.stuck = r.stuck(); len(p.stuck) > 0 && !broken(mutStuck) {
		if d := (Done{Of: p.Key, Code: CodeUnfenced, Text: "somebody may still write", Stuck: p.stuck}); r.doneOf.Of != d.Of {
			r.done(d)
			r.reportAll()
		}
		return
	}
	if len(r.fences) > 0 && !broken(mutStuck) {
		return
	}
	if r.stopped && r.cfg.Member.Leader && r.active == StateCommitted && !p.resumed {
		p.resuming = true
		r.mine.Resume(r.version)
		return
	}
	r.done(Done{Of: p.Key, OK: true})
	r.over()
}

// spoil notes that the copy that was written is worth nothing.
func (r *Receiver) spoil() {
	if r.cfg.Member.Shadow {
		r.held, r.heldBy = 0, Hash{}
		return
	}
	r.active, r.version = StateFailed, 0
}
