package proto

// jobStep is the state machine of one request on P, to which the attempts of all members of its decoder attach.
//
//	none ──expect, join──► waiting ──the missing half──► live ──every member has ended──► ended
//	 └────────pay─────────────────────────────────────────┘│
//	                          ◄──────── unknown prompt ─────┘   waiting, live ── JoinWait, failure ──► ended
//
// Two halves are missing at most: a member that pays (member 0, or any that tries again; a member 0 that detaches counts too), and
// the prompt, if the decoders did not bring it.
type jobStep struct {
	state  jobState
	payer  bool // has come
	asked  bool // the inference engine does not know the prompt yet: Expect is missing
	wanted int  // live attempts
}

type jobState uint8

const (
	jobNone jobState = iota
	jobWaiting
	jobLive
	jobEnded
	jobStates
)

var jobStateNames = [jobStates]string{"none", "waiting", "live", "ended"}

func (s jobState) String() string { return jobStateNames[s] }

type jobEvent uint8

const (
	jobExpect  jobEvent = iota // the prompt came to P
	jobJoin                    // Dispatch of a member other than 0
	jobPay                     // Dispatch of member 0, or of a retry
	jobLeave                   // an attempt has ended
	jobDetach                  // member 0 will not dispatch
	jobFull                    // as jobPay, jobDetach or jobExpect, but there is no room
	jobUnknown                 // the inference engine does not know the prompt
	jobRefused                 // the inference engine refuses the job
	jobTimeout                 // JoinWait
	jobOver                    // every member has ended
	jobFail                    // the inference engine gave up, or Close
	jobEvents
)

var jobEventNames = [jobEvents]string{"expect", "join", "pay", "leave", "detach", "full", "unknown", "refused", "timeout", "over", "fail"}

func (e jobEvent) String() string { return jobEventNames[e] }

type jobEffect uint8

const (
	jxAdmit jobEffect = 1 << iota // ask the inference engine
	jxWait                        // JoinWait begins
	jxBusy                        // attempts fail: busy
	jxFail                        // attempts fail: unknown prompt
	jxStop                        // the inference engine's part is over
)

// step returns the next state and what to do. ok is false when the event means nothing in this state: then nothing changes.
func (j jobStep) step(e jobEvent) (next jobStep, fx jobEffect, ok bool) {
	switch j.state {
	case jobNone:
		switch e {
		case jobExpect:
			return jobStep{state: jobWaiting}, jxWait, true
		case jobJoin:
			return jobStep{state: jobWaiting, wanted: 1}, jxWait, true
		case jobPay:
			return jobStep{state: jobLive, payer: true, wanted: 1}, jxAdmit, true
		}
	case jobWaiting:
		return j.waiting(e)
	case jobLive:
		switch e {
		case jobJoin, jobPay:
			j.wanted++
			return j, 0, true
		case jobExpect, jobDetach:
			return j, 0, true
		case jobLeave:
			return j.leave()
		case jobUnknown:
			return jobStep{state: jobWaiting, payer: j.payer, asked: true, wanted: j.wanted}, jxWait, true
		case jobRefused, jobTimeout, jobOver, jobFail:
			j.state = jobEnded
			return j, jxStop, true
		}
	case jobEnded:
		if e == jobLeave {
			return j.leave()
		}
	}
	return j, 0, false
}

func (j jobStep) leave() (jobStep, jobEffect, bool) {
	if j.wanted == 0 {
		return j, 0, false
	}
	j.wanted--
	return j, 0, true
}

func (j jobStep) waiting(e jobEvent) (jobStep, jobEffect, bool) {
	switch e {
	case jobJoin:
		j.wanted++
	case jobPay:
		j.wanted++
		j.payer = true
	case jobDetach:
		j.payer = true
	case jobExpect:
		j.asked = false
	case jobLeave:
		return j.leave()
	case jobFull:
		j.state = jobEnded
		return j, jxBusy | jxStop, true
	case jobTimeout:
		j.state = jobEnded
		return j, jxFail | jxStop, true
	case jobOver, jobFail:
		j.state = jobEnded
		return j, jxStop, true
	default:
		return j, 0, false
	}
	if !j.complete() {
		return j, 0, true
	}
	j.state = jobLive
	return j, jxAdmit, true
}

// complete reports whether a job that waits misses nothing.
func (j jobStep) complete() bool { return j.payer && !j.asked && j.wanted > 0 }
