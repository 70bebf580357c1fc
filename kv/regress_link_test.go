package kv_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// vllm#48633, second half: one slow handshake blocked all others.
func TestReg05SlowHelloIsolated(t *testing.T) {
	dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	good := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
	newLLM(t, good, kv.PrefillerConfig{})
	frozen := startChild(t, childSpec{Network: "shm"})
	frozen.signal(syscall.SIGSTOP) // so that Connect does not come back
	mute := newPuppet(t, "shm")    // and one that does not answer Hello
	order := make(chan string, 100)
	d := newDecoder(t, dst, kv.DecoderConfig{Observer: func(n proto.Note) {
		if n.Kind == proto.NoteLinkDown {
			order <- "slow link failed"
		}
	}})
	ask := func(key string, from ...proto.Source) *kv.Pending {
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 20), From: from})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	slow := []*kv.Pending{ask("frozen", frozen.source()), ask("mute", from(mute.eng)...)}
	fetch(t, d, dst, kv.FetchRequest{ID: "good", Prompt: prompt("good", 20), From: from(good.eng)})
	order <- "good is ready"
	if first := <-order; first != "good is ready" {
		t.Errorf("%s first: the good prefiller waited for the slow ones", first)
	}
	for _, p := range slow {
		p.Cancel("test")
		if _, err := p.Wait(limit(t)); !errors.Is(err, proto.ErrCancelled) {
			t.Error(err)
		}
	}
	frozen.signal(syscall.SIGCONT)
}

// vllm#41269: pages of the prefill side were stranded for 480 s when the decode side did not come. It holds nothing before somebody has
// dispatched.
func TestReg10NoDispatchNoHold(t *testing.T) {
	src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
	e := newLLM(t, src, kv.PrefillerConfig{JoinWait: 50 * time.Millisecond})
	j, err := e.p.Expect("r", prompt("r", 100))
	if err != nil {
		t.Fatal(err)
	}
	if c := src.pools[0].Counts(); c.Free != 64 {
		t.Errorf("pages %+v while nobody has dispatched", c)
	}
	select {
	case <-j.Done():
	case <-time.After(hang):
		t.Fatal("the job waits for ever")
	}
	if c := src.pools[0].Counts(); c.Free != 64 || e.p.Stats().Jobs+e.p.Stats().Waiting != 0 {
		t.Errorf("pages %+v, %+v after the wait", c, e.p.Stats())
	}
}

// vllm#36958, #42839: pages leaked, and requests hung, because the two sides made different ids of one request. There is one, and it is
// compared whole.
func TestReg11OneRequestID(t *testing.T) {
	src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
	dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) { e.unknown = true })
	d := newDecoder(t, dst, kv.DecoderConfig{})
	long := strings.Repeat("x", proto.MaxRequestID-1)
	ids := []string{"cmpl-1", "cmpl-1-0", "cmpl-10", "Cmpl-1", "cmpl-1 ", "/v1/cmpl-1", long + "a", long + "b"}
	var all []*kv.Pending
	for _, id := range ids {
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: id, Prompt: proto.Prompt{Tokens: 20}, From: from(src.eng)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
	}
	eventually(t, func() error {
		if n := e.p.Stats().Waiting; n != len(ids) {
			return fmt.Errorf("%d jobs wait for their prompts, want %d", n, len(ids))
		}
		return nil
	})
	for i, id := range ids {
		if _, err := e.p.Expect(id, prompt("content of "+id, 20)); err != nil {
			t.Fatal(err)
		}
		res, err := all[i].Wait(limit(t))
		if err != nil {
			t.Fatal(err)
		}
		if n, first := dst.wrong(contentOf(prompt("content of "+id, 20)), res.Spans, res.Pages); n != 0 {
			t.Errorf("request %q: %s", id, first)
		}
		res.Release()
		for _, p := range all[i+1:] {
			select {
			case <-p.Done():
				t.Fatalf("another request than %q has ended", id)
			default:
			}
		}
	}
	idle(t, d, dst, e)
}

// vllm#27083: a handshake with the wrong engine, because both sides said localhost. An address has an identity; so has an instance.
func TestReg12WrongEngineNamed(t *testing.T) {
	dst := newSide(t, "d", "tcp", layout.Spec{Model: small, Pages: 64})
	d := newDecoder(t, dst, kv.DecoderConfig{Tries: 1})
	gone := openEngine(t, hawser.Options{Name: "gone", Require: "tcp"})
	addr, at := gone.Addr(), gone.ListenAddrs()[0]
	if err := gone.Close(limit(t)); err != nil {
		t.Fatal(err)
	}
	other := newSideOn(t, openEngine(t, hawser.Options{Name: "other", Require: "tcp", Listen: at}), layout.Spec{Model: small, Pages: 64})
	newLLM(t, other, kv.PrefillerConfig{Instance: "other"})
	end := func(from ...proto.Source) error {
		t.Helper()
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 20), From: from, Deadline: 5 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		if _, err = p.Wait(limit(t)); err == nil {
			t.Fatal("a wrong engine has served the request")
		}
		return err
	}
	// Another engine answers where the wanted one was.
	if text := end(proto.Source{Writers: []string{addr}}).Error(); !strings.Contains(text, gone.ID().String()) || !strings.Contains(text, other.eng.ID().String()) {
		t.Errorf("%q does not name both engines, %s and %s", text, gone.ID(), other.eng.ID())
	}
	// An engine of another instance among the members of one.
	src, top := membersOf(t, "p", "tcp", layout.Spec{Model: small, TP: 2, Pages: 64}, 2)
	prefillersOf(t, src, top)
	err := end(from(src[0].eng, other.eng)...)
	var mismatch *proto.MismatchError
	if !errors.As(err, &mismatch) || !strings.Contains(err.Error(), `"other"`) || !strings.Contains(err.Error(), `"p"`) {
		t.Errorf("%v does not name both instances", err)
	}
	if err := end(from(src[1].eng, src[0].eng)...); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "member 1") || !strings.Contains(err.Error(), "member 0") {
		t.Errorf("%v does not name both members", err)
	}
	fetch(t, d, dst, kv.FetchRequest{ID: "right", Prompt: prompt("right", 20), From: from(src[0].eng, src[1].eng)})
	allFree(t, "decoder", dst.pools)
}

// strictly starts both sides with the default options, and returns how a request ends.
func strictly(t *testing.T, src, dst layout.Spec) error {
	t.Helper()
	s, m := newSide(t, "p", "shm", src), newSide(t, "d", "shm", dst)
	p, err := kv.NewPrefiller(s.eng, kv.PrefillerConfig{
		Instance: "p", Topology: &layout.Topology{Members: []layout.Geometry{s.g}}, Regions: s.regions, Pages: 64,
	}, &llm{t: t, side: s})
	if err != nil {
		t.Fatal(err)
	}
	d, err := kv.NewDecoder(m.eng, kv.DecoderConfig{
		Instance: "d", Topology: &layout.Topology{Members: []layout.Geometry{m.g}}, Regions: m.regions, Pools: m.pools,
	})
	if err != nil {
		t.Fatal(err)
	}
	q, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 20), From: from(s.eng)})
	if err != nil {
		t.Fatal(err)
	}
	_, end := q.Wait(limit(t))
	if s := p.Stats(); s.Accepted+s.Rejected != 0 || s.Links != 0 {
		t.Errorf("%+v: want no link", s)
	}
	allFree(t, "decoder", m.pools)
	if err := d.Close(limit(t)); err != nil {
		t.Error(err)
	}
	if err := p.Close(limit(t)); err != nil {
		t.Error(err)
	}
	return end
}

// vllm#42895: a healthy server with an accuracy of 3 %, because two layouts do not fit together. Whether they do is found out at Hello.
func TestReg13InfeasibleAtHello(t *testing.T) {
	m := layout.Model{Name: "m", Layers: 2, Groups: []layout.Group{{PageTokens: 16, KVHeads: 4, HeadDim: 64, ElemSize: 2, Planes: 2}}}
	err := strictly(t, layout.Spec{Model: m, TP: 4, Order: layout.NHD, Pages: 8}, layout.Spec{Model: m, TP: 1, Order: layout.NHD, Pages: 8})
	var mismatch *proto.MismatchError
	if !errors.As(err, &mismatch) || mismatch.Code != proto.CodeInfeasible {
		t.Fatalf("%v, want infeasible", err)
	}
	for _, size := range []string{"128", "4096"} { // the write, and the least
		if !strings.Contains(err.Error(), size) {
			t.Errorf("%q does not name %s bytes", err, size)
		}
	}
}

// vllm#19338, #23086: a crash on unequal numbers of pages. Each view has its own.
func TestReg14UnequalPageCounts(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		for _, pages := range [][2]int{{16, 200}, {200, 16}} {
			src := newSide(t, "p", network, layout.Spec{Model: small, Pages: pages[0]})
			dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: pages[1]})
			e := newLLM(t, src, kv.PrefillerConfig{})
			d := newDecoder(t, dst, kv.DecoderConfig{})
			for i := range 30 { // so that all pages are used
				key := fmt.Sprint(i)
				fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 30), From: from(src.eng)})
			}
			_, err := d.Fetch(limit(t), kv.FetchRequest{ID: "long", Prompt: prompt("long", 1000), From: from(src.eng)})
			if !errors.Is(err, hawser.ErrLimit) {
				t.Errorf("a prompt that never fits: %v", err)
			}
			idle(t, d, dst, e)
		}
	})
}

// vllm#50765: unequal layouts killed the decode side, and later handshakes. They are an error with both values, and everything else goes on.
func TestReg15MismatchIsValue(t *testing.T) {
	for name, change := range map[string]func(*layout.Model){
		"layers":       func(m *layout.Model) { m.Layers = 4 },
		"kv heads":     func(m *layout.Model) { m.Groups[0].KVHeads = 8 },
		"head dim":     func(m *layout.Model) { m.Groups[0].HeadDim = 32 },
		"element size": func(m *layout.Model) { m.Groups[0].ElemSize = 1 },
		"planes":       func(m *layout.Model) { m.Groups[0].Planes = 1 },
		"fingerprint":  func(m *layout.Model) { m.Name = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			model := small
			model.Groups = slices.Clone(small.Groups)
			change(&model)
			src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
			dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
			odd := newSide(t, "odd", "shm", layout.Spec{Model: model, Pages: 64})
			newLLM(t, src, kv.PrefillerConfig{})
			newLLM(t, odd, kv.PrefillerConfig{})
			d := newDecoder(t, dst, kv.DecoderConfig{})
			p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 20), From: from(odd.eng)})
			if err != nil {
				t.Fatal(err)
			}
			var mismatch *proto.MismatchError
			if _, err := p.Wait(limit(t)); !errors.As(err, &mismatch) || mismatch.Field != name || mismatch.Here == mismatch.There {
				t.Errorf("%v, want %s with both values", err, name)
			}
			for _, first := range []*hawser.Engine{src.eng, odd.eng} { // with a choice, nothing is lost
				key := first.ID().String()
				fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 20), From: slices.Concat(from(first), from(src.eng))[:2]})
			}
			allFree(t, "decoder", dst.pools)
		})
	}
}

// sglang#12779: a dead prefiller made the decode side unhealthy.
func TestReg17HealthIndependent(t *testing.T) {
	src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
	dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	newLLM(t, src, kv.PrefillerConfig{})
	dead := startChild(t, childSpec{Network: "shm"})
	d := newDecoder(t, dst, kv.DecoderConfig{})
	fetch(t, d, dst, kv.FetchRequest{ID: "before", Prompt: prompt("before", 20), From: []proto.Source{dead.source()}})
	dead.kill()
	for i := range 5 {
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 20), From: []proto.Source{dead.source()}})
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprint(i)
		fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 20), From: from(src.eng)})
		if h := d.Health(); h != (proto.Health{}) || h.Degraded() {
			t.Errorf("health %+v because a peer is dead", h)
		}
		p.Cancel("test")
	}
}

// nixl#795, sglang#10365: a prefiller that was started again could not be used. It is another engine, found by its address, and says Hello
// by itself.
func TestReg19RestartRejoins(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 64})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		spec := childSpec{Network: network}
		for i := range 3 {
			c := startChild(t, spec)
			spec.Listen = c.at
			key := fmt.Sprint(i)
			fetch(t, d, dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 20), From: []proto.Source{{Writers: []string{c.at}}}})
			c.kill()
		}
		allFree(t, "decoder", dst.pools)
	})
}

// vllm#55776: two revisions of a model in a rolling update.
func TestRegMixedRevisions(t *testing.T) {
	dst := newSide(t, "d", "shm", layout.Spec{Model: revision("r1"), Pages: 64})
	d := newDecoder(t, dst, kv.DecoderConfig{})
	ask := func(key string, from ...proto.Source) (kv.Result, error) {
		p, err := d.Fetch(limit(t), kv.FetchRequest{ID: key, Prompt: prompt(key, 20), From: from})
		if err != nil {
			t.Fatal(err)
		}
		res, err := p.Wait(limit(t))
		if err == nil {
			if n, first := dst.wrong(contentOf(prompt(key, 20)), res.Spans, res.Pages); n != 0 {
				t.Error(first)
			}
			res.Release()
		}
		return res, err
	}
	spec := childSpec{Network: "shm", Revision: "r1"}
	old := startChild(t, spec)
	at := proto.Source{Writers: []string{old.at}}
	if _, err := ask("before", at); err != nil {
		t.Fatal(err)
	}
	// The update reaches the prefiller; it comes up at the same address.
	old.kill()
	spec.Listen, spec.Revision = old.at, "r2"
	updated := startChild(t, spec)
	var mismatch *proto.MismatchError
	if _, err := ask("mixed", at); !errors.As(err, &mismatch) || !strings.Contains(err.Error(), "small@r1") || !strings.Contains(err.Error(), "small@r2") {
		t.Errorf("%v does not name both revisions", err)
	}
	// Requests with a choice go where their revision is.
	other := startChild(t, childSpec{Network: "shm", Revision: "r1"})
	if _, err := ask("choice", at, other.source()); err != nil {
		t.Error(err)
	}
	// And the update is rolled back.
	updated.kill()
	spec.Revision = "r1"
	startChild(t, spec)
	if _, err := ask("after", at); err != nil {
		t.Error(err)
	}
	allFree(t, "decoder", dst.pools)
}
