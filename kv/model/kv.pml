/*
 * The protocol between one decoder D and its prefillers P, for the model checker spin: who may write into which page when, whatever
 * is lost, late, twice, in another order, crashed or frozen. README.md beside this file says how to run it and what was seen.
 *
 * What is left out, and why what holds here holds without it too ("more behaviour" means that the model allows all that can happen
 * and more, which is sound for what must never happen):
 *
 *  - Channels. A message that was sent can be received at any time, in any order, never, or again and again, until its receiver would
 *    ignore it for good. So the network is a bit for each message: lossy, unordered and duplicating without a bound, which is more
 *    than any channel of some length. With LIVE a message is received once, and LOSSES of them are lost.
 *  - Time. A timer may fire at any moment: more behaviour.
 *  - A frozen P is a process that makes no step, which any process here may do for ever. What only a freeze brings, a fence without
 *    proof, may come at any time: more behaviour.
 *  - Beat and Query are not messages. P may at any time learn any lowWater that D reached in this epoch, and answer for a tombstone
 *    as if asked: that is what lost, late and repeated ones can do. CancelAck, Failed and State{tomb} are one message, Answer, as D does
 *    the same for each. Of Bye and of a peer that is down, the other side learns at any later time, or never.
 *  - A write's bytes and its immediate land in one step, the later of the two moments. The step may come at any time, so the page is
 *    checked at every moment at which bytes can arrive. Completion at P, with or without an error, is another step at any other time:
 *    what completed may land later, and what failed may too. What is lost never makes that step. When D sees a count is its own step.
 *  - An attempt has one page, and each writer owes UNITS writes to it, the last of which stands for the tail. Layers, ranks, plans, chunks,
 *    windows and source pages decide which writes there are and how soon, not which may be made. Pages and values are taken lowest
 *    first: they are alike, and reuse at once is the hardest case.
 *  - A job is its attempt. Jobs, members, credits, queues and prefix hits decide whether P takes an attempt (a choice here) and when it
 *    may post (at any time here): more behaviour. The simulator checks them. A request that fails is one that is not tried again.
 *  - D does not crash: its memory goes with it. What is on its way to a P that crashes goes too: the next process is another peer.
 */

#ifndef NP
#define NP 1 /* prefillers; each attempt has a writer on each */
#endif
#ifndef NSEQ
#define NSEQ 2 /* attempts, 1 to 3 */
#endif
#ifndef NEPOCH
#define NEPOCH 2 /* links to each P, one after the other */
#endif
#ifndef UNITS
#define UNITS 2 /* writes that a writer owes */
#endif
#define NREQ 2
#define NPAGE 2 /* pages, and as many immediates */

#define W(s, p) ((s) * NP + (p)) /* the writer of attempt s at prefiller p */
#define E(e, p) ((e) * NP + (p)) /* the link of epoch e to prefiller p */

/*
 * The states of each machine by the names that they have in Go, without the letter before them, and what moves it:
 *
 * prefiller events: dispatch cancel begin progress preempt completed transfer-error quiet fail query low-water link-ended crash
 * writer events: accept reject answer count link-ended fenced unfenced
 * attempt events: fetch cancel writer-lost writers-complete writers-final stuck release
 */
mtype:prefiller = { p_none, p_queued, p_running, p_pausing, p_draining, p_stopping, p_tomb };
mtype:writer = { w_none, w_asked, w_accepted, w_settling, w_fencing, w_stuck, w_complete, w_ended };
mtype:attempt = { a_waiting, a_asked, a_active, a_ready, a_stopping, a_quarantined, a_released, a_done };
mtype:request = { r_open, r_done, r_cancelled };
mtype:link = { l_down, l_hello, l_up };
mtype:why = { y_none, y_cancel, y_fail, y_reject }; /* why P stopped an attempt: which answer its tombstone gives */

/* D. What belongs to an attempt and is never set back (page, immediate, epoch) is also what its messages and writes carry. */
mtype:attempt ast[NSEQ] = a_waiting;
mtype:writer wst[NSEQ * NP] = w_none;
mtype:link dl[NP] = l_down;
mtype:request rout[NREQ] = r_open;
bool busy[NREQ]; /* the request has an attempt that is asked, active or stopping */
byte next;       /* seq of the next attempt */
byte areq[NSEQ], apage[NSEQ], aimm[NSEQ];
byte aep[NSEQ * NP];  /* epoch of the writer's link */
byte dep[NP];         /* newest epoch */
byte from[NSEQ * NP]; /* immediates counted */
byte owes[NSEQ * NP]; /* while settling: how many P said it posted */
byte pown[NPAGE];     /* attempt + 1 that leases the page, 0: free */
bool hreq[NPAGE], hwr[NPAGE]; /* the page's holders: the request, the writers */
byte iown[NPAGE];     /* attempt + 1 that has the immediate */
bool fenced[(NEPOCH + 1) * NP];

/* P. */
mtype:prefiller pst[NSEQ * NP] = p_none;
mtype:why pwhy[NSEQ * NP] = y_none;
byte unit[NSEQ * NP];   /* next unit to post */
byte out[NSEQ * NP];    /* posted and not completed */
byte posted[NSEQ * NP]; /* completed without an error */
bool bad[NSEQ * NP];    /* one completed with an error */
byte pep[NP];   /* epoch of the link, 0: none */
byte pmax[NP];  /* highest epoch that this process saw */
byte plow[NP];  /* lowWater heard on the link */
bool fresh[NP]; /* the process was started after D's last new epoch */

/* The network. */
byte fly[NSEQ * NP]; /* writes that may still land */
bool Hello[(NEPOCH + 1) * NP], HelloAck[NP]; /* HelloAck: of D's newest epoch */
bool Dispatch[NSEQ * NP], Cancel[NSEQ * NP];
bool Accept[NSEQ * NP], Reject[NSEQ * NP], Answer[NSEQ * NP];
byte said_posted[NSEQ * NP]; bool said_bad[NSEQ * NP]; /* in Answer */

bool said[NSEQ * NP]; /* P has sent CancelAck, Failed or Reject: for assertions */
#ifdef MUT_EPOCH
byte wep[NSEQ * NP]; /* whose descriptors P uses: the attempt's own, where epochs are checked */
#define USES(s, p) wep[W(s, p)]
#else
#define USES(s, p) aep[W(s, p)]
#endif

hidden byte i, j; /* of loops inside d_step */

#define live(s) (ast[s] == a_asked || ast[s] == a_active || ast[s] == a_stopping || ast[s] == a_quarantined)
#define hoping(s) (ast[s] == a_asked || ast[s] == a_active)
#define asked(w) (wst[w] == w_asked || wst[w] == w_accepted)
#define owing(w) (asked(w) || wst[w] == w_settling)
#define taken(w) (wst[w] == w_accepted || wst[w] == w_complete)
#define complete(w) (wst[w] == w_complete)
#define final(w) (complete(w) || wst[w] == w_ended)
#define stuck(w) (wst[w] == w_stuck)
#define fencing(w) (wst[w] == w_fencing)
#define unproven(w) (fencing(w) || stuck(w))
#define current(s, p) (dl[p] == l_up && aep[W(s, p)] == dep[p])
#define serving(w) (pst[w] == p_queued || pst[w] == p_running || pst[w] == p_pausing || pst[w] == p_draining)
#ifdef MUT_BYE
#define forgotten(w) (pst[w] == p_none || pst[w] == p_tomb)
#else
#define forgotten(w) (pst[w] == p_none)
#endif

/* What P drops: messages of another epoch, and of attempts that it may have forgotten. */
#ifdef MUT_EPOCH
#define known(s, p) (pep[p] != 0)
#else
#define known(s, p) (pep[p] != 0 && pep[p] == aep[W(s, p)])
#endif
#ifdef MUT_LOWWATER
#define over(s, p) false
#else
#define over(s, p) (s < plow[p])
#endif
#define unheard(s, p) (!known(s, p) || (pst[W(s, p)] == p_none && over(s, p)))

/* Over the writers of an attempt, the attempts at a prefiller, and those of a link. */
#if NP == 1
#define EACH(what, s) (what(W(s, 0)))
#define ANY(what, s) (what(W(s, 0)))
#define LINKED (dl[0] == l_up)
#else
#define EACH(what, s) (what(W(s, 0)) && what(W(s, 1)))
#define ANY(what, s) (what(W(s, 0)) || what(W(s, 1)))
#define LINKED (dl[0] == l_up && dl[1] == l_up)
#endif
#define OF(what, s, p, e) (aep[W(s, p)] == e && what(W(s, p)))
#if NSEQ == 1
#define ANYAT(what, p) (what(W(0, p)))
#define EACHAT(what, p) (what(W(0, p)))
#define ANYOF(what, p, e) (OF(what, 0, p, e))
#elif NSEQ == 2
#define ANYAT(what, p) (what(W(0, p)) || what(W(1, p)))
#define EACHAT(what, p) (what(W(0, p)) && what(W(1, p)))
#define ANYOF(what, p, e) (OF(what, 0, p, e) || OF(what, 1, p, e))
#else
#define ANYAT(what, p) (what(W(0, p)) || what(W(1, p)) || what(W(2, p)))
#define EACHAT(what, p) (what(W(0, p)) && what(W(1, p)) && what(W(2, p)))
#define ANYOF(what, p, e) (OF(what, 0, p, e) || OF(what, 1, p, e) || OF(what, 2, p, e))
#endif

#ifdef LIVE /* peers stay alive, and few messages are lost */
#define LOSSES 2
byte losses;
#define received(m) m = false
#else
#define received(m) skip
#endif

/* ---- D ---- */

inline drop_request(pg) {
	hreq[pg] = false;
#ifdef MUT_HOLDER
	hwr[pg] = false;
#endif
	if :: !hwr[pg] -> pown[pg] = 0 :: else fi
}

inline drop_writers(pg) {
	hwr[pg] = false;
	if :: !hreq[pg] -> pown[pg] = 0 :: else fi
}

inline become(w, state) {
	wst[w] = state;
	Accept[w] = false;
	if :: !asked(w) -> Reject[w] = false; Answer[w] = false; said_posted[w] = 0; said_bad[w] = false :: else fi
}

/* The request's hold ends with its hope: it has its outcome, or its next attempt will have other pages. */
inline stop(s) {
	ast[s] = a_stopping;
	drop_request(apage[s]);
	for (j : 0 .. NP - 1) {
		Cancel[W(s, j)] = (asked(W(s, j)) && current(s, j))
	}
	j = 0
}

inline writer_lost(s) {
	if :: hoping(s) -> stop(s) :: else fi
}

/* The writers are done with the attempt's page and immediate. */
inline quiet(s) {
	for (j : 0 .. NP - 1) {
		/* I11: after a write error nothing is reused before the fence, unless every write has been counted. */
		assert(!bad[W(s, j)] || fenced[E(aep[W(s, j)], j)] || from[W(s, j)] == UNITS);
		from[W(s, j)] = 0; owes[W(s, j)] = 0
	}
	j = 0;
	iown[aimm[s]] = 0;
	drop_writers(apage[s])
}

/* From now on a look-up of prefixes finds the page. */
inline publish(s) {
	for (j : 0 .. NP - 1) {
		assert(from[W(s, j)] == UNITS) /* I5: whole pages only */
	}
	j = 0
}

inline outcome(r, o) {
	assert(rout[r] == r_open); /* I3: told once */
	rout[r] = o
}

/* What D concludes from its writers, in the step that changed one of them. */
inline conclude(s) {
	if
	:: ast[s] == a_asked && EACH(taken, s) -> ast[s] = a_active;
#ifdef MUT_PUBLISH
		publish(s)
#endif
	:: else
	fi;
	if
#ifdef MUT_READY
	:: (hoping(s) || ast[s] == a_stopping) && EACH(complete, s) ->
#else
	:: hoping(s) && EACH(complete, s) ->
#endif
		ast[s] = a_ready; outcome(areq[s], r_done); busy[areq[s]] = false; publish(s); quiet(s)
	:: ast[s] == a_stopping && EACH(final, s) -> ast[s] = a_released; busy[areq[s]] = false; quiet(s)
	:: ast[s] == a_quarantined && EACH(final, s) -> ast[s] = a_released; quiet(s)
	:: ast[s] == a_stopping && ANY(stuck, s) -> ast[s] = a_quarantined; busy[areq[s]] = false
	:: else
	fi
}

inline verdict(s, w) {
	if
	:: from[w] == UNITS -> become(w, w_complete)
	:: else -> become(w, w_ended); writer_lost(s)
	fi;
	conclude(s)
}

/* The link ended. No verdict yet: the last immediates may still come. */
inline link_ended(p) {
	dl[p] = l_down; HelloAck[p] = false;
	for (i : 0 .. NSEQ - 1) {
		if
		:: owing(W(i, p)) && aep[W(i, p)] == dep[p] ->
#ifdef MUT_FENCE
			verdict(i, W(i, p))
#else
			become(W(i, p), w_fencing); owes[W(i, p)] = 0
#endif
		:: else
		fi
	}
	i = 0
}

/* Nothing of the epoch lands any more, and what had landed is counted. */
inline fence_done(e, p) {
	fenced[E(e, p)] = true;
	for (i : 0 .. NSEQ - 1) {
		if :: USES(i, p) == e -> fly[W(i, p)] = 0 :: else fi;
		if
		:: OF(fencing, i, p, e) ->
#ifdef MUT_RECHECK
			assert(from[W(i, p)] < UNITS); /* I6: no writer is lost whose bytes are all here */
			wst[W(i, p)] = w_ended; writer_lost(i); conclude(i)
#else
			verdict(i, W(i, p))
#endif
		:: OF(stuck, i, p, e) -> wst[W(i, p)] = w_ended; conclude(i)
		:: else
		fi
	}
	i = 0
}

/* The fence has no proof: a writer of the peer may be in mid-copy. */
inline fence_failed(e, p) {
	for (i : 0 .. NSEQ - 1) {
		if
		:: OF(fencing, i, p, e) ->
#ifdef MUT_STUCK
			wst[W(i, p)] = w_ended;
#else
			wst[W(i, p)] = w_stuck;
#endif
			writer_lost(i); conclude(i)
		:: else
		fi
	}
	i = 0
}

#define room(s) (s == next && LINKED && (pown[0] == 0 || pown[1] == 0) && (iown[0] == 0 || iown[1] == 0))

#define idle(r) (rout[r] == r_open && !busy[r])

inline lease(s, r) {
	areq[s] = r; busy[r] = true; next++; ast[s] = a_asked;
	apage[s] = (pown[0] == 0 -> 0 : 1);
	aimm[s] = (iown[0] == 0 -> 0 : 1);
	pown[apage[s]] = s + 1; hreq[apage[s]] = true; hwr[apage[s]] = true;
	iown[aimm[s]] = s + 1;
	for (i : 0 .. NP - 1) {
		aep[W(s, i)] = dep[i]; wst[W(s, i)] = w_asked;
		Dispatch[W(s, i)] = true
	}
	i = 0
}

proctype Request(byte s) { /* what the user does, who may wait with everything for ever */
	do
	:: d_step { room(s) && idle(0) -> lease(s, 0) } /* the first try, or another */
	:: d_step { room(s) && !idle(0) && idle(1) -> lease(s, 1) }
	:: d_step { hoping(s) -> outcome(areq[s], r_cancelled); stop(s); conclude(s) }
	:: d_step { ast[s] == a_ready -> ast[s] = a_done; drop_request(apage[s]) }
	od
}

proctype Writer(byte s, p) { /* its counts, and the messages that come */
	do
	:: d_step { asked(W(s, p)) && from[W(s, p)] == UNITS -> become(W(s, p), w_complete); conclude(s) }
	:: d_step { wst[W(s, p)] == w_settling && from[W(s, p)] == owes[W(s, p)] -> owes[W(s, p)] = 0; verdict(s, W(s, p)) }
	:: d_step { Accept[W(s, p)] && current(s, p) && wst[W(s, p)] == w_asked -> become(W(s, p), w_accepted); conclude(s) }
	:: d_step { Reject[W(s, p)] && current(s, p) && wst[W(s, p)] == w_asked -> become(W(s, p), w_ended); writer_lost(s); conclude(s) }
#ifndef MUT_EXACT
	:: d_step { Answer[W(s, p)] && said_bad[W(s, p)] && current(s, p) && asked(W(s, p)) -> link_ended(p) }
	:: d_step { Answer[W(s, p)] && !said_bad[W(s, p)] && current(s, p) && asked(W(s, p)) ->
#else
	:: d_step { Answer[W(s, p)] && current(s, p) && asked(W(s, p)) ->
#endif
#ifdef MUT_SETTLE
		verdict(s, W(s, p)) }
#else
		owes[W(s, p)] = said_posted[W(s, p)];
		become(W(s, p), w_settling);
		if :: owes[W(s, p)] < UNITS -> writer_lost(s) :: else fi }
#endif
	od
}

#ifdef LIVE
proctype Timer(byte s, p) { /* what is not answered is sent again */
	do
	:: d_step { hoping(s) && wst[W(s, p)] == w_asked -> Dispatch[W(s, p)] = true }
#ifndef MUT_REPEAT
	:: d_step { ast[s] == a_stopping && asked(W(s, p)) && current(s, p) -> Cancel[W(s, p)] = true }
#endif
	od
}

#define lost(m) losses < LOSSES && m[W(s, p)] -> m[W(s, p)] = false; losses++

proctype Loss(byte s, p) {
	do
	:: d_step { lost(Dispatch) }
	:: d_step { lost(Cancel) }
	:: d_step { lost(Accept) }
	:: d_step { lost(Reject) }
	:: d_step { lost(Answer); said_posted[W(s, p)] = 0; said_bad[W(s, p)] = false }
	od
}

/* I9, and that what is cancelled ends. */
ltl answered { [] ((ast[0] == a_stopping && asked(W(0, 0))) -> <> !asked(W(0, 0))) }
ltl ends { [] (ast[0] == a_stopping -> <> (ast[0] == a_released)) }
#endif

proctype Link(byte p) {
	do
	:: d_step { dl[p] == l_down && dep[p] < NEPOCH && (fresh[p] || !ANYAT(unproven, p)) ->
		dep[p]++; dl[p] = l_hello; fresh[p] = false }
	:: d_step { dl[p] == l_hello && !Hello[E(dep[p], p)] && pmax[p] < dep[p] -> Hello[E(dep[p], p)] = true }
	:: d_step { dl[p] == l_hello && HelloAck[p] -> HelloAck[p] = false; dl[p] = l_up }
	od
}

proctype Fence(byte p, e) {
	do
	:: d_step { ANYOF(unproven, p, e) -> fence_done(e, p) }
#ifndef LIVE
	:: d_step { ANYOF(fencing, p, e) -> fence_failed(e, p) }
#endif
	od
}

#ifndef LIVE
proctype Down(byte p) { /* D's end of the link: a peer that is down or whose time is over, its Bye, and D's own */
	do
	:: d_step { dl[p] != l_down -> link_ended(p) }
	od
}
#endif

/* ---- P ---- */

inline forget(w) {
	pst[w] = p_none; pwhy[w] = y_none; unit[w] = 0; out[w] = 0; posted[w] = 0; bad[w] = false
}

inline answer(s, p, w) {
	if
	:: current(s, p) && asked(w) ->
		assert(!Answer[w] || (said_posted[w] == posted[w] && said_bad[w] == bad[w])); /* always the same answer */
		Answer[w] = true; said_posted[w] = posted[w]; said_bad[w] = bad[w]
	:: else
	fi
}

/* What follows when nothing is outstanding. */
inline settled(s, p, w) {
	if
	:: out[w] == 0 && pst[w] == p_stopping ->
		pst[w] = p_tomb; unit[w] = 0; said[w] = true; answer(s, p, w)
	:: out[w] == 0 && pst[w] == p_draining -> pst[w] = p_tomb; unit[w] = 0
	:: out[w] == 0 && pst[w] == p_pausing -> pst[w] = p_queued;
#ifdef MUT_NEXT
		unit[w] = 0
#endif
	:: else
	fi
}

inline halt(w, why) { pst[w] = p_stopping; pwhy[w] = why }

/* P's end of a link: nothing more is posted, nothing is said, tombstones go. What completes later changes nothing here. */
inline unlink(p) {
	pep[p] = 0; plow[p] = 0;
	for (i : 0 .. NSEQ - 1) {
		forget(W(i, p))
	}
	i = 0
}

proctype Serve(byte s, p) { /* messages about an attempt */
	do
	:: d_step { Dispatch[W(s, p)] && !unheard(s, p) && pst[W(s, p)] == p_none -> received(Dispatch[W(s, p)]); /* taken */
		pst[W(s, p)] = p_queued;
#ifdef MUT_EPOCH
		wep[W(s, p)] = pep[p];
#endif
		Accept[W(s, p)] = (current(s, p) && wst[W(s, p)] == w_asked) }
	:: d_step { Dispatch[W(s, p)] && !unheard(s, p) && pst[W(s, p)] == p_none -> received(Dispatch[W(s, p)]); /* refused */
#ifndef MUT_TOMB_REJECT
		pst[W(s, p)] = p_tomb; pwhy[W(s, p)] = y_reject;
#endif
		said[W(s, p)] = true;
		Reject[W(s, p)] = (current(s, p) && wst[W(s, p)] == w_asked) }
	:: d_step { Dispatch[W(s, p)] && !unheard(s, p) && pst[W(s, p)] != p_none -> received(Dispatch[W(s, p)]); /* again */
		if
		:: serving(W(s, p)) || (pst[W(s, p)] == p_tomb && pwhy[W(s, p)] == y_none) ->
			Accept[W(s, p)] = (current(s, p) && wst[W(s, p)] == w_asked)
		:: pst[W(s, p)] == p_tomb && pwhy[W(s, p)] == y_reject ->
			Reject[W(s, p)] = (current(s, p) && wst[W(s, p)] == w_asked)
		:: pst[W(s, p)] == p_tomb && (pwhy[W(s, p)] == y_cancel || pwhy[W(s, p)] == y_fail) ->
			answer(s, p, W(s, p))
		:: else
		fi }
	:: d_step { Cancel[W(s, p)] && !unheard(s, p) -> received(Cancel[W(s, p)]);
		if
		:: pst[W(s, p)] == p_none ->
#ifndef MUT_TOMB_CANCEL
			pst[W(s, p)] = p_tomb; pwhy[W(s, p)] = y_cancel;
#endif
			said[W(s, p)] = true; answer(s, p, W(s, p))
		:: serving(W(s, p)) -> halt(W(s, p), y_cancel); settled(s, p, W(s, p))
		:: pst[W(s, p)] == p_stopping && pwhy[W(s, p)] == y_fail -> pwhy[W(s, p)] = y_cancel
		:: pst[W(s, p)] == p_tomb -> said[W(s, p)] = true; answer(s, p, W(s, p))
		:: else
		fi }
#ifdef LIVE
	:: d_step { unheard(s, p) && (Dispatch[W(s, p)] || Cancel[W(s, p)]) -> Dispatch[W(s, p)] = false; Cancel[W(s, p)] = false }
#endif
	od
}

#ifdef MUT_GATE
#define open(w) (unit[w] < UNITS && (pst[w] == p_running || pst[w] == p_stopping || pst[w] == p_tomb))
#else
#define open(w) (pst[w] == p_running)
#endif

proctype Job(byte s, p) { /* the inference engine behind P, deadlines, Query and Beat */
	do
	:: d_step { pst[W(s, p)] == p_queued -> pst[W(s, p)] = p_running }
	:: d_step { open(W(s, p)) -> /* post */
		assert(!said[W(s, p)]); /* I7, I8 */
		unit[W(s, p)]++; out[W(s, p)]++;
		if :: !fenced[E(USES(s, p), p)] -> fly[W(s, p)]++ :: else fi; /* stale descriptors after the fence: refused */
		if :: pst[W(s, p)] == p_running && unit[W(s, p)] == UNITS -> pst[W(s, p)] = p_draining :: else fi }
	:: d_step { pst[W(s, p)] == p_running -> pst[W(s, p)] = p_pausing; settled(s, p, W(s, p)) } /* preempted */
	:: d_step { serving(W(s, p)) -> halt(W(s, p), y_fail); settled(s, p, W(s, p)) }
	:: d_step { pst[W(s, p)] == p_tomb && !Answer[W(s, p)] && current(s, p) && asked(W(s, p)) -> answer(s, p, W(s, p)) } /* State */
	:: d_step { dl[p] == l_up && pep[p] == dep[p] && plow[p] == s && s < next && !(live(s) && aep[W(s, p)] == dep[p]) ->
		plow[p]++; /* Beat */
		if :: pst[W(s, p)] == p_tomb || pst[W(s, p)] == p_none -> forget(W(s, p)) :: else fi }
	:: d_step { pst[W(s, p)] == p_tomb && s < plow[p] -> forget(W(s, p)) }
	od
}

proctype Wire(byte s, p) { /* completions at P, landings at D */
	do
	:: d_step { out[W(s, p)] > 0 -> out[W(s, p)]--; if :: !bad[W(s, p)] -> posted[W(s, p)]++ :: else fi; settled(s, p, W(s, p)) }
	:: d_step { out[W(s, p)] > 0 -> out[W(s, p)]--; bad[W(s, p)] = true; posted[W(s, p)] = 0;
		if :: serving(W(s, p)) -> halt(W(s, p), y_fail) :: else fi;
		settled(s, p, W(s, p)) }
	:: d_step { fly[W(s, p)] > 0 -> fly[W(s, p)]--;
		assert(pown[apage[s]] == s + 1 && hwr[apage[s]]); /* I1 */
		assert(iown[aimm[s]] == s + 1);                   /* I6: a value counts for one attempt */
		assert(from[W(s, p)] < UNITS);                    /* I6 */
		assert(wst[W(s, p)] != w_settling || from[W(s, p)] < owes[W(s, p)]);
		from[W(s, p)]++ }
	od
}

inline hello(p, e) {
	if
#ifdef MUT_HELLO
	:: e >= pmax[p] && e != pep[p] ->
#else
	:: e > pmax[p] ->
#endif
		pmax[p] = e; unlink(p); pep[p] = e;
		if :: dl[p] == l_hello && dep[p] == e -> HelloAck[p] = true :: else fi
	:: else
	fi;
#ifndef MUT_HELLO
	Hello[E(e, p)] = false
#endif
}

/* Another process takes its place, to which nothing of the old one's comes. Its writes may still land. */
inline crash(p) {
	unlink(p); pmax[p] = 0; fresh[p] = true;
	for (i : 1 .. NEPOCH) { Hello[E(i, p)] = false }
	for (i : 0 .. NSEQ - 1) { forget(W(i, p)); Dispatch[W(i, p)] = false; Cancel[W(i, p)] = false; said[W(i, p)] = false }
	i = 0
}

proctype Peer(byte p) {
	do
	:: d_step { Hello[E(1, p)] -> hello(p, 1) }
	:: d_step { Hello[E(NEPOCH, p)] -> hello(p, NEPOCH) } /* 1 or 2 */
#ifndef LIVE
	:: d_step { pep[p] != 0 -> unlink(p) } /* D seems down, or said Bye */
	:: d_step { pep[p] != 0 && EACHAT(forgotten, p) -> /* Bye: none live here, and D reported lowWater = next */
		for (i : 0 .. NSEQ - 1) {
			assert(aep[W(i, p)] != pep[p] || !owing(W(i, p)) || (wst[W(i, p)] == w_asked && from[W(i, p)] == 0))
		}
		unlink(p) }
	:: d_step { pmax[p] != 0 -> crash(p) }
#endif
	od
}

#ifdef COVER
#define seen(what, state) :: atomic { what[0] == state -> i = 0 }

proctype Seen() { /* changes nothing: the checker tells which of these it never found */
	do
	seen(pst, p_queued) seen(pst, p_running) seen(pst, p_pausing) seen(pst, p_draining) seen(pst, p_stopping) seen(pst, p_tomb)
	seen(wst, w_asked) seen(wst, w_accepted) seen(wst, w_settling) seen(wst, w_fencing) seen(wst, w_stuck) seen(wst, w_complete)
	seen(wst, w_ended) seen(ast, a_waiting) seen(ast, a_asked) seen(ast, a_active) seen(ast, a_ready) seen(ast, a_stopping)
	seen(ast, a_quarantined) seen(ast, a_released) seen(ast, a_done)
	od
}
#endif

init {
	atomic {
		byte a, b;
		for (a : 0 .. NSEQ - 1) {
			run Request(a);
			for (b : 0 .. NP - 1) { run Writer(a, b); run Serve(a, b); run Job(a, b); run Wire(a, b) }
		}
		for (b : 0 .. NP - 1) {
			run Link(b); run Peer(b);
#ifdef LIVE
			for (a : 0 .. NSEQ - 1) { run Timer(a, b); run Loss(a, b) }
#else
			run Down(b);
#endif
			for (a : 1 .. NEPOCH) { run Fence(b, a) }
		}
		a = 0; b = 0;
#ifdef COVER
		run Seen()
#endif
	}
#ifndef COVER
	/* I4: where nothing can happen any more, everything is free. */
	timeout -> assert(pown[0] == 0 && pown[1] == 0 && iown[0] == 0 && iown[1] == 0)
#endif
}
