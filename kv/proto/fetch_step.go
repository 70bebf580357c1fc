package proto

// fetchStep is the state machine of one attempt on D, over its writers. It is pure.
//
//	asked ──all accepted──► active
//	  └──────────┬────────────┘
//	             ├── all complete ──► ready ──release──► done
//	             └── one lost, cancel ──► stopping ── all settled ──► released
//	                                         └── one stuck ──► quarantined ── all settled ──► released
//
// An attempt that was stopped never becomes ready: the caller has been told, or another attempt follows. Its pages are free when it
// is released, and not before.
type fetchStep struct {
	state fetchState
	again bool // stopping: another attempt follows
}

type fetchState uint8

const (
	fetchAsked       fetchState = iota // Dispatches are out
	fetchActive                        // all writers have accepted
	fetchReady                         // all writes have landed; the pages are the caller's until it releases them
	fetchStopping                      // Cancels are out
	fetchQuarantined                   // a fence has no proof yet
	fetchReleased                      // nothing can land any more, the pages are free
	fetchDone                          // the caller has released it
	fetchStates
)

func (s fetchState) String() string {
	return [...]string{"asked", "active", "ready", "stopping", "quarantined", "released", "done"}[s]
}

// quiet: nothing can land any more.
func (s fetchState) quiet() bool { return s == fetchReady || s == fetchReleased || s == fetchDone }

type fetchEventKind uint8

const (
	evWriters fetchEventKind = iota // a writer has another state, or its digest is proved
	evLost                          // a writer will not complete
	evStop                          // the caller, the deadline or Close ends it
	evCorrupt                       // a digest differs
	evRelease                       // the caller gives the pages back
	fetchEvents
)

func (k fetchEventKind) String() string {
	return [...]string{"writers", "lost", "stop", "corrupt", "release"}[k]
}

// writersAre says what holds for the writers of an attempt; a set.
type writersAre uint8

const (
	allAccepted writersAre = 1 << iota // or further
	allComplete
	allProved  // by their digests, or none is wanted
	allSettled // complete or ended
	someStuck
)

func (w writersAre) are(all writersAre) bool { return w&all == all }

type fetchEvent struct {
	kind    fetchEventKind
	writers writersAre
	again   bool // lost: another attempt is allowed
}

// fetchEffect is what the machine does after a step; several at once, in this order.
type fetchEffect uint8

const (
	fxReady      fetchEffect = 1 << iota // tell the caller that the pages are ready
	fxTell                               // tell the caller the cause
	fxCancel                             // send Cancel to the writers that may still write
	fxQuarantine                         // the pages are out of service
	fxQuiet                              // nothing can land any more: immediate, and writers' hold on the pages
	fxAgain                              // begin another attempt
	fxRelease                            // the request's hold on the pages ends
)

// step returns the next state and what to do. ok is false when the event means nothing in this state: then nothing changes.
func (a fetchStep) step(e fetchEvent) (next fetchStep, fx fetchEffect, ok bool) {
	switch a.state {
	case fetchAsked, fetchActive:
		switch e.kind {
		case evWriters:
			if e.writers.are(allComplete | allProved) {
				a.state = fetchReady
				return a, fxReady | fxQuiet, true
			}
			if e.writers.are(allAccepted) {
				a.state = fetchActive
			}
			return a, 0, true
		case evLost:
			if e.again {
				a.again = true
				return a.stop(e.writers, 0)
			}
			return a.stop(e.writers, fxTell)
		case evStop, evCorrupt:
			return a.stop(e.writers, fxTell)
		}
	case fetchStopping, fetchQuarantined:
		switch e.kind {
		case evWriters:
			next, fx = a.settle(e.writers)
			return next, fx, true
		case evStop:
			if a.again {
				a.again, fx = false, fxTell
			}
			return a, fx, true
		case evLost, evCorrupt:
			return a, 0, true // it ends anyway
		}
	case fetchReady:
		switch e.kind {
		case evRelease:
			a.state = fetchDone
			return a, fxRelease, true
		case evStop:
			return a, 0, true // too late
		}
	}
	return a, 0, false
}

func (a fetchStep) stop(writers writersAre, fx fetchEffect) (fetchStep, fetchEffect, bool) {
	a.state = fetchStopping
	next, more := a.settle(writers)
	return next, fx | fxCancel | more, true
}

// settle looks whether a stopped attempt is over, or out of service.
func (a fetchStep) settle(writers writersAre) (fetchStep, fetchEffect) {
	var fx fetchEffect
	switch {
	case writers.are(allSettled):
		a.state, fx = fetchReleased, fxQuiet
	case writers.are(someStuck) && a.state == fetchStopping:
		a.state, fx = fetchQuarantined, fxQuarantine
	default:
		return a, 0
	}
	if a.again {
		a.again = false
		fx |= fxAgain
	}
	return a, fx
}
