package proto

// serveStep is the state machine of one attempt on P. It is pure; the Prefiller feeds it, and only submits writes that the step has
// let pass, so that looking at the gate and submitting are one thing.
//
//	new ──dispatch──► queued ──start──► running ──all posted──► draining ──completed──► tomb
//	 │                  ▲ │                 │                       │
//	 │                  │ │                 └─preempt─► pausing     │
//	 │                  └─┼─────── completed ───────────┘  │        │
//	 │                    └── cancel, failure, link ended ─┴────────┴──► stopping ──completed──► tomb
//	 └── refuse, cancel ──► tomb
//
// A tomb remembers the answer, so that a repeated or late message gets it again and never starts anything, until D says that it
// forgets the attempt.
type serveStep struct {
	state       serveState
	left        uint64 // writes not posted yet, the tail's among them
	outstanding uint64 // writes posted and not completed
	posted      uint64 // writes completed without error
	exact       bool   // no write ended with an error
	end         serveEnd
	refused     bool // tomb: the answer to Dispatch was Reject
	failed      bool // tomb: the answer to Dispatch is Failed
}

type serveState uint8

const (
	serveNew serveState = iota
	serveQueued
	serveRunning
	servePausing
	serveDraining
	serveStopping
	serveTomb
	serveStates
)

var serveStateNames = [serveStates]string{"new", "queued", "running", "pausing", "draining", "stopping", "tomb"}

func (s serveState) String() string { return serveStateNames[s] }

func (s serveState) live() bool { return s >= serveQueued && s <= serveStopping }

// phase is what a decoder is told of a state.
func (s serveState) phase() Phase {
	return [serveStates]Phase{PhaseUnknown, PhaseQueued, PhaseRunning, PhasePausing, PhaseRunning, PhaseRunning, PhaseTomb}[s]
}

// serveEnd says whom a stopping attempt answers.
type serveEnd uint8

const (
	endNone   serveEnd = iota
	endCancel          // CancelAck
	endFail            // Failed
	endSilent          // nobody: the link has ended
)

func (e serveEnd) String() string { return [...]string{"none", "cancel", "fail", "silent"}[e] }

type serveEventKind uint8

const (
	svDispatch  serveEventKind = iota // valid, or a repetition
	svRefuse                          // a Dispatch that is not
	svStart                           // a pass with the job begins, or something is computed already
	svPost                            // n writes were submitted
	svPreempt                         // the source pages are wanted back
	svComplete                        // n writes completed; ok or with an error
	svCancel                          // D does not want it any more
	svFail                            // deadline, Close, or the inference engine gave up
	svLinkEnded                       // peer down, a newer Hello, Bye, protocol error
	serveEvents
)

var serveEventNames = [serveEvents]string{
	"dispatch", "refuse", "start", "post", "preempt", "complete", "cancel", "fail", "link-ended",
}

func (k serveEventKind) String() string { return serveEventNames[k] }

type serveEvent struct {
	kind serveEventKind
	n    uint64 // dispatch: writes in all; post, complete: writes
	ok   bool   // complete
}

type serveEffect uint8

const (
	fxAccept    serveEffect = 1 << iota
	fxReject                // answer Reject
	fxTiming                // send the timing: everything is posted
	fxDigest                // send the sums: everything has completed
	fxCancelAck             // answer CancelAck
	fxFailed                // answer Failed
)

// open reports whether writes may be submitted.
func (a serveStep) open() bool { return a.state == serveRunning }

// step returns the next state and what to do. ok is false when the event means nothing in this state: then nothing changes.
func (a serveStep) step(e serveEvent) (next serveStep, fx serveEffect, ok bool) {
	switch e.kind {
	case svDispatch:
		if a.state == serveNew {
			return serveStep{state: serveQueued, left: e.n, exact: true}, fxAccept, true
		}
		return a, a.answer(), true
	case svRefuse:
		if a.state == serveNew {
			return serveStep{state: serveTomb, exact: true, refused: true}, fxReject, true
		}
	case svStart:
		return a.start()
	case svPost:
		if a.open() && e.n <= a.left {
			a.left -= e.n
			a.outstanding += e.n
			return a.drain()
		}
	case svPreempt:
		return a.preempt()
	case svComplete:
		return a.complete(e)
	case svCancel:
		return a.cancel()
	case svFail:
		if a.state >= serveQueued && a.state <= serveDraining {
			return a.stop(endFail)
		}
		return a, 0, a.state > serveDraining
	case svLinkEnded:
		if a.state.live() {
			return a.stop(endSilent)
		}
	}
	return a, 0, false
}

// answer is what a repeated Dispatch gets.
func (a serveStep) answer() serveEffect {
	switch {
	case a.refused:
		return fxReject
	case a.failed:
		return fxFailed
	case a.state == serveStopping, a.end != endNone:
		return 0 // the answer to Cancel or the failure itself follows, or was given
	}
	return fxAccept
}

func (a serveStep) start() (serveStep, serveEffect, bool) {
	if a.state != serveQueued {
		return a, 0, a.state == serveRunning || a.state >= serveDraining
	}
	a.state = serveRunning
	return a.drain()
}

// drain goes on once everything is posted.
func (a serveStep) drain() (serveStep, serveEffect, bool) {
	if a.left > 0 {
		return a, 0, true
	}
	a.state = serveDraining
	a, fx, ok := a.quiet()
	return a, fx | fxTiming, ok
}

func (a serveStep) preempt() (serveStep, serveEffect, bool) {
	if a.state != serveRunning {
		return a, 0, a.state.live() // nothing to read, or nothing more to post
	}
	a.state = servePausing
	return a.quiet()
}

func (a serveStep) complete(e serveEvent) (serveStep, serveEffect, bool) {
	if e.n > a.outstanding {
		return a, 0, false
	}
	a.outstanding -= e.n
	if e.ok {
		a.posted += e.n
	} else {
		a.exact = false
		if a.state >= serveRunning && a.state <= serveDraining {
			return a.stop(endFail)
		}
	}
	return a.quiet()
}

func (a serveStep) cancel() (serveStep, serveEffect, bool) {
	switch a.state {
	case serveNew:
		// Cancel may overtake its Dispatch. Without this tomb the Dispatch would start the attempt after D was told that it
		// is over, and has reused the pages.
		return serveStep{state: serveTomb, exact: true, end: endCancel}, fxCancelAck, true
	case serveTomb:
		return a, fxCancelAck, true
	case serveStopping:
		if a.end == endFail {
			a.end = endCancel
		}
		return a, 0, true
	}
	return a.stop(endCancel)
}

func (a serveStep) stop(end serveEnd) (serveStep, serveEffect, bool) {
	a.state, a.end = serveStopping, end
	return a.quiet()
}

// quiet goes on with an attempt that only waits for its writes, once none is outstanding.
func (a serveStep) quiet() (serveStep, serveEffect, bool) {
	if a.outstanding > 0 {
		return a, 0, true
	}
	switch a.state {
	case servePausing:
		a.state = serveQueued
		return a, 0, true
	case serveDraining, serveStopping:
		a.state = serveTomb
	default:
		return a, 0, true
	}
	switch a.end {
	case endCancel:
		return a, fxCancelAck, true
	case endFail:
		a.failed = true
		return a, fxFailed, true
	case endNone:
		return a, fxDigest, true
	}
	return a, 0, true
}
