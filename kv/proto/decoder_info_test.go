package proto

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestErrorsSayWho: texts for people.
func TestErrorsSayWho(t *testing.T) {
	k := newDesk(t, func(c *DecoderConfig) { c.Tries = 1 }, "a")
	h := k.hosts["a"]
	r := k.fetch("81f2", 3, nil, "a")
	h.write(h.lastSeq(), 5)
	h.mute[KindQuery] = true
	k.pass(10 * time.Second)
	for _, want := range []string{"request 81f2", "attempt 1", "stalled", "a owes 7 of 12 immediates"} {
		if !strings.Contains(fmt.Sprint(k.ended[r]), want) {
			t.Errorf("%q is not in %q", want, k.ended[r])
		}
	}
	var e *AttemptError
	if !errors.As(k.ended[r], &e) || len(e.Owes) != 1 || e.Owes[0].Landed != 5 || e.Pages != 3 {
		t.Errorf("%+v", e)
	}
}

func TestLiveListsEverything(t *testing.T) {
	k := newDesk(t, nil, "a")
	k.fetch("r1", 3, nil, "a")
	k.fetch("r2", deskPages, nil, "a")
	k.pass(time.Second)
	k.hosts["a"].write(1, 5) // too few for the machine to be told
	var rows []AttemptInfo
	k.d.Live(func(i AttemptInfo) { rows = append(rows, i) })
	if len(rows) != 2 || rows[0].Request != "r2" || rows[0].Waits != "pages" || rows[1].State != "active" || rows[1].Writers[0].Expected != 12 || rows[1].Writers[0].Landed != 5 || rows[1].Age != time.Second {
		t.Errorf("%+v", rows)
	}
}

// TestUnexpectedIsCounted: what means nothing changes nothing, and can be seen.
func TestUnexpectedIsCounted(t *testing.T) {
	k := newDesk(t, nil, "a")
	h := k.hosts["a"]
	r := k.fetch("r1", 1, nil, "a")
	h.send(&Reject{Seq: h.lastSeq(), Code: CodeBusy}) // it has accepted
	k.run()
	var got []string
	k.d.Unexpected(func(state, event string, n uint64) { got = append(got, fmt.Sprint(state, " ", event, " ", n)) })
	if k.d.Stats().Unexpected != 1 || !slices.Equal(got, []string{"writer accepted reject 1"}) {
		t.Errorf("%+v, %v", k.d.Stats(), got)
	}
	h.finish(h.lastSeq())
	k.d.Release(k.now, r)
	k.idle()
}

// TestSameEventsSameMessages: nothing depends on the order of a map.
func TestSameEventsSameMessages(t *testing.T) {
	var first []string
	for run := range 5 {
		k := newDesk(t, nil, "a", "b", "c")
		log := &logOut{DecoderOut: k}
		k.d.out = log
		for i := range 30 {
			k.fetch(fmt.Sprint(i), 1+i%3, func(f *Fetch) { f.Tail = i%4 == 0 }, string("abc"[i%3]), "a", "b")
		}
		k.hosts["a"].die()
		k.pass(3 * time.Second)
		k.d.Close(k.now)
		k.pass(3 * time.Second)
		if run == 0 {
			first = log.said
		}
		if !slices.Equal(log.said, first) {
			t.Fatalf("run %d says something else than the first one", run)
		}
	}
	if len(first) < 100 {
		t.Errorf("only %d effects", len(first))
	}
}

type logOut struct {
	DecoderOut
	said []string
}

func (o *logOut) Send(p Peer, data []byte) {
	o.said = append(o.said, fmt.Sprintf("%d %x", p, data))
	o.DecoderOut.Send(p, data)
}

func (o *logOut) Ended(r Request, err error) {
	o.said = append(o.said, fmt.Sprint("ended ", r, err))
	o.DecoderOut.Ended(r, err)
}

func (o *logOut) Note(n Note) {
	o.said = append(o.said, fmt.Sprintf("%d %d %s %s", n.Kind, n.Seq, n.From, n.To))
}
