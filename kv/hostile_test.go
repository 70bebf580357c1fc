package kv_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// TestHostileDecoder sends a prefiller what no decoder would. It costs the sender its link, with one word why, and nobody else anything.
func TestHostileDecoder(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 256})
		dst := newSide(t, "d", network, layout.Spec{Model: small, Pages: 128})
		e := newLLM(t, src, kv.PrefillerConfig{})
		d := newDecoder(t, dst, kv.DecoderConfig{})
		fetch(t, d, dst, kv.FetchRequest{ID: "before", Prompt: prompt("before", 50), From: from(src.eng)})
		for name, do := range map[string]func(p *decoding){
			"garbage": func(p *decoding) { p.bytes(p.to, []byte("GET / HTTP/1.1\r\nHost: prefiller.example.net\r\n\r\n")) },
			"cut": func(p *decoding) {
				b := proto.Encode(p.head, p.dispatch("r", 20, time.Minute))
				p.bytes(p.to, b[:len(b)-9])
			},
			"a prefiller's message": func(p *decoding) { p.say(p.to, p.head, &proto.CancelAck{Seq: 1}) },
			"a number too high":     func(p *decoding) { m := p.dispatch("r", 20, time.Minute); m.Seq = 1 << 40; p.say(p.to, p.head, m) },
			"credit that it has not": func(p *decoding) {
				m := p.dispatch("r", 20, time.Minute)
				m.Cost = 1 << 40
				p.say(p.to, p.head, m)
			},
		} {
			p := newPuppet(t, network)
			foe := p.decodeFrom(e, puppetMemory(t, p))
			do(foe)
			if bye, _ := hear[*proto.Bye](p); bye.Text == "" {
				t.Errorf("%s: a goodbye without a reason", name)
			}
			fetch(t, d, dst, kv.FetchRequest{ID: name, Prompt: prompt(name, 50), From: from(src.eng)})
		}
		for name, change := range map[string]func(*proto.Dispatch){
			"a plan of its own":      func(m *proto.Dispatch) { m.Plan++ },
			"fewer writes":           func(m *proto.Dispatch) { m.Expected-- },
			"a page that it has not": func(m *proto.Dispatch) { m.Groups[0].Pages[0].Physical = 60 },
			"pages left out":         func(m *proto.Dispatch) { m.Groups[0].Pages[0].Length-- },
			"a tail slot":            func(m *proto.Dispatch) { m.Tail, m.TailSlot = true, 5 },
			"too long a prompt":      func(m *proto.Dispatch) { m.Prompt.Tokens = 1 << 20 },
		} {
			p := newPuppet(t, network)
			foe := p.decodeFrom(e, puppetMemory(t, p))
			m := foe.dispatch("r", 20, time.Minute)
			change(m)
			p.say(foe.to, foe.head, m)
			if no, _ := hear[*proto.Reject](p); no.Seq != m.Seq || no.Text == "" {
				t.Errorf("%s: %+v", name, no)
			}
		}
		idle(t, d, dst, e)
		if s := e.p.Stats(); s.Protocol != 5 {
			t.Errorf("%d protocol errors, want 5", s.Protocol)
		}
	})
}

// TestForgedDescriptors: a decoder offers memory that is not its own, too short, or not memory at all.
func TestForgedDescriptors(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 256})
		e := newLLM(t, src, kv.PrefillerConfig{})
		victim := newSide(t, "victim", network, layout.Spec{Model: small, Pages: 64})
		stolen, err := victim.regions[0].Descriptor(victim.regions[0].All(), hawser.RightWrite).MarshalBinary()
		if err != nil {
			t.Fatal(err)
		}
		for name, change := range map[string]func(p *puppet, m *side, h *proto.Hello){
			"another's": func(_ *puppet, _ *side, h *proto.Hello) { h.Descriptors[0] = stolen },
			"too short": func(p *puppet, m *side, h *proto.Hello) {
				r := m.regions[0]
				h.Descriptors[0], err = r.Descriptor(r.Slice(0, r.Len()/2), hawser.RightWrite).MarshalBinary()
				if err != nil {
					t.Fatal(err)
				}
			},
			"garbage":  func(_ *puppet, _ *side, h *proto.Hello) { h.Descriptors[0] = []byte("memory") },
			"none":     func(_ *puppet, _ *side, h *proto.Hello) { h.Descriptors = nil },
			"no shape": func(_ *puppet, _ *side, h *proto.Hello) { h.Topology = []byte{1, 2, 3} },
		} {
			p := newPuppet(t, network)
			m := puppetMemory(t, p)
			to, err := p.eng.Connect(limit(t), src.eng.Addr())
			if err != nil {
				t.Fatal(err)
			}
			h := p.helloOf(m)
			change(p, m, h)
			p.say(to, proto.Head{Epoch: 1, LowWater: 1, Next: 1}, h)
			no, _ := hear[*proto.HelloReject](p)
			if no.Text == "" {
				t.Errorf("%s: refused without a reason", name)
			}
			if name == "another's" && (!strings.Contains(no.Text, victim.eng.ID().String()) || !strings.Contains(no.Text, "sender")) {
				t.Errorf("%s: %q does not say whose it is", name, no.Text)
			}
		}
		if s := e.p.Stats(); s.Links != 0 || s.Writes != 0 {
			t.Errorf("%+v after forged hellos", s)
		}
	})
}

// hostilePrefiller is a decoder with a request at a puppet.
type hostilePrefiller struct {
	*puppet
	d        *kv.Decoder
	dst      *side
	pending  *kv.Pending
	to       *hawser.Peer
	head     proto.Head
	dispatch *proto.Dispatch
	memory   *hawser.Remote
	src      *hawser.Region
}

func newHostilePrefiller(t *testing.T, network string, cfg kv.DecoderConfig, others ...proto.Source) *hostilePrefiller {
	t.Helper()
	h := &hostilePrefiller{puppet: newPuppet(t, network), dst: newSide(t, "d", network, layout.Spec{Model: small, Pages: 64})}
	h.d = newDecoder(t, h.dst, cfg)
	var err error
	h.pending, err = h.d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 100), From: append(from(h.eng), others...)})
	if err != nil {
		t.Fatal(err)
	}
	var hello *proto.Hello
	h.to, h.head, hello = h.prefillFor((&layout.Topology{Members: []layout.Geometry{h.dst.g}}).AppendBinary(nil))
	h.dispatch, _ = hear[*proto.Dispatch](h.puppet)
	var desc hawser.Descriptor
	if err := desc.UnmarshalBinary(hello.Descriptors[0]); err != nil {
		t.Fatal(err)
	}
	if h.memory, err = h.eng.Import(limit(t), desc); err != nil {
		t.Fatal(err)
	}
	if h.src, err = h.eng.Alloc(4096, hawser.MemOptions{}); err != nil {
		t.Fatal(err)
	}
	return h
}

// write writes n times 64 bytes to the first page of the dispatch, each with the immediate.
func (h *hostilePrefiller) write(n int) error {
	var last *hawser.Transfer
	for range n {
		tr, err := h.eng.Write(hawser.Write{
			Src: h.src.Slice(0, 64), Dst: h.page(), Imm: hawser.Imm(h.dispatch.Imm), Parts: 1,
		})
		if err != nil {
			return err
		}
		last = tr
	}
	return last.Wait(limit(h.t))
}

// page is the beginning of the first page that the puppet is asked to write.
func (h *hostilePrefiller) page() hawser.RemoteSlice {
	return h.memory.Slice(uint64(h.dispatch.Groups[0].Pages[0].Physical)*512, 64)
}

// ends checks how the request ends, and that everything is free.
func (h *hostilePrefiller) ends(t *testing.T, want error) {
	t.Helper()
	_, err := h.pending.Wait(limit(t))
	if want != nil && !errors.Is(err, want) || err == nil {
		t.Errorf("ended with %v, want %v", err, want)
	}
	var attempt *proto.AttemptError
	if !errors.As(err, &attempt) || attempt.Request != "r" || len(attempt.Owes) != 1 {
		t.Errorf("%v does not say which attempt, and who owes what", err)
	}
	quiet(t, h.pending)
	allFree(t, "decoder", h.dst.pools)
}

// TestHostilePrefiller: whatever a prefiller does, the request ends, and nothing of it can land when its pages are free.
func TestHostilePrefiller(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *hostilePrefiller) error
		want error
	}{
		"writes too much": {func(h *hostilePrefiller) error {
			if err := h.write(int(h.dispatch.Expected) + 1); err != nil && !errors.Is(err, hawser.ErrPeerDown) { // fenced at the last one
				return err
			}
			return nil
		}, nil},
		"says that it wrote more": {func(h *hostilePrefiller) error {
			h.say(h.to, h.head, &proto.Failed{CancelAck: proto.CancelAck{Seq: h.dispatch.Seq, Posted: h.dispatch.Expected + 1, Exact: true}})
			return nil
		}, proto.ErrProtocol},
		"says that it wrote what it did not": {func(h *hostilePrefiller) error {
			h.say(h.to, h.head, &proto.Failed{CancelAck: proto.CancelAck{Seq: h.dispatch.Seq, Posted: h.dispatch.Expected - 1, Exact: true}, Code: proto.CodeEngine})
			return nil
		}, nil},
		"refuses what it has written": {func(h *hostilePrefiller) error {
			if err := h.write(1); err != nil {
				return err
			}
			h.say(h.to, h.head, &proto.Reject{Seq: h.dispatch.Seq, Code: proto.CodeBusy})
			return nil
		}, proto.ErrProtocol},
		"garbage": {func(h *hostilePrefiller) error { h.bytes(h.to, []byte("garbage")); return nil }, nil},
		"a decoder's message": {func(h *hostilePrefiller) error {
			h.say(h.to, h.head, &proto.Cancel{Seq: h.dispatch.Seq})
			return nil
		}, nil},
		"is silent": {func(*hostilePrefiller) error { return nil }, proto.ErrStalled},
		"accepts and is silent": {func(h *hostilePrefiller) error {
			h.say(h.to, h.head, &proto.Accept{Seq: h.dispatch.Seq})
			return nil
		}, proto.ErrStalled},
		"leaves": {func(h *hostilePrefiller) error { h.say(h.to, h.head, &proto.Bye{Text: "test"}); return nil }, hawser.ErrPeerDown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onNetworks(t, func(t *testing.T, network string) {
				cfg := kv.DecoderConfig{Tries: 1}
				if errors.Is(c.want, proto.ErrStalled) {
					cfg.Stall = 300 * time.Millisecond // the others must be found out before it
				}
				h := newHostilePrefiller(t, network, cfg)
				if err := c.do(h); err != nil {
					t.Fatal(err)
				}
				if name == "writes too much" {
					// It may be ready before the last one is counted, and that is no lie: then nothing may land any more.
					if res, err := h.pending.Wait(limit(t)); err == nil {
						res.Release()
						return
					}
				}
				h.ends(t, c.want)
				if s := h.d.Stats(); s.Fences > 0 && h.write(1) == nil {
					t.Error("a write after the fence has worked")
				}
			})
		})
	}
}

// TestFencedWriterHurtsNobody: a prefiller that does not answer Cancel is fenced, and goes on to write. The pages are another's by then.
func TestFencedWriterHurtsNobody(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		good := newSide(t, "p", network, layout.Spec{Model: small, Pages: 64})
		newLLM(t, good, kv.PrefillerConfig{})
		h := newHostilePrefiller(t, network, kv.DecoderConfig{Stall: 2 * time.Second}) // it writes before that
		h.say(h.to, h.head, &proto.Accept{Seq: h.dispatch.Seq})
		if err := h.write(1); err != nil {
			t.Fatal(err)
		}
		stop, stopped := make(chan struct{}), make(chan int)
		go func() {
			n := 0
			for {
				select {
				case <-stop:
					stopped <- n
					return
				default:
				}
				// Without an immediate: whoever counts as if it had written everything is believed.
				tr, err := h.eng.Write(hawser.Write{Src: h.src.Slice(0, 64), Dst: h.page()})
				if err == nil && tr.Wait(limit(h.t)) == nil {
					n++
				}
			}
		}()
		h.pending.Cancel("test")
		quiet(t, h.pending)
		before := h.d.Stats()
		for i := range 20 {
			key := fmt.Sprint(i)
			fetch(t, h.d, h.dst, kv.FetchRequest{ID: key, Prompt: prompt(key, 250), From: from(good.eng)}) // all pages but one
		}
		close(stop)
		t.Logf("%d writes before the fence", <-stopped)
		if before.Fences != 1 || before.LostCancels != 1 {
			t.Errorf("%+v: want a fence because of a cancel without an answer", before)
		}
		allFree(t, "decoder", h.dst.pools)
	})
}

// TestDigestFindsCorruption: what has landed and is changed before the rest comes is not what was sent.
func TestDigestFindsCorruption(t *testing.T) {
	src := newSide(t, "p", "shm", layout.Spec{Model: small, Pages: 64})
	dst := newSide(t, "d", "shm", layout.Spec{Model: small, Pages: 64})
	wait, open := gate()
	e := newLLM(t, src, kv.PrefillerConfig{Verify: true}, func(e *llm) {
		e.wait = func(j *kv.Job, layer int) bool { return layer != 1 || wait(j, layer) }
	})
	defer open()
	d := newDecoder(t, dst, kv.DecoderConfig{Verify: true})
	p, err := d.Fetch(limit(t), kv.FetchRequest{ID: "r", Prompt: prompt("r", 250), From: from(src.eng)})
	if err != nil {
		t.Fatal(err)
	}
	const page = 4 * 4 * 16 * 2
	eventually(t, func() error {
		if n := e.p.Stats().Writes; n != 2*63 {
			return fmt.Errorf("%d writes of the first layer, want 126", n)
		}
		return nil
	})
	memory := dst.regions[0].Bytes()
	for i := range 64 { // one of them is not the request's
		memory[i*page+rand.IntN(page)] ^= 1
	}
	open()
	if _, err := p.Wait(limit(t)); !errors.Is(err, proto.ErrCorrupt) {
		t.Errorf("%v, want corrupt", err)
	}
	quiet(t, p)
	idle(t, d, dst, e)
}

// TestDeadDecoder: source pages come back when the decoder is gone, without a word of it.
func TestDeadDecoder(t *testing.T) {
	onNetworks(t, func(t *testing.T, network string) {
		src := newSide(t, "p", network, layout.Spec{Model: small, Pages: 256})
		stuck := make(chan struct{})
		defer close(stuck)
		e := newLLM(t, src, kv.PrefillerConfig{}, func(e *llm) {
			e.wait = func(j *kv.Job, layer int) bool {
				if layer == 0 {
					return true
				}
				select {
				case <-j.Done():
				case <-stuck:
				}
				return false
			}
		})
		p := newPuppet(t, network)
		d := p.decodeFrom(e, puppetMemory(t, p))
		p.say(d.to, d.head, d.dispatch("r", 100, time.Hour))
		hear[*proto.Accept](p)
		eventually(t, func() error {
			if e.p.Stats().Writes == 0 {
				return errors.New("nothing has been written")
			}
			return nil
		})
		if err := p.eng.Close(limit(t)); err != nil {
			t.Fatal(err)
		}
		allFree(t, "prefiller", src.pools)
		eventually(t, func() error {
			if s := e.p.Stats(); s.Jobs != 0 || s.Links != 0 || s.Attempts != 0 {
				return fmt.Errorf("not idle: %+v", s)
			}
			return nil
		})
	})
}
