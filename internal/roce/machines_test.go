//go:build vm

package roce

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// The second VM runs the same binary and no test: it owns the memory that the first one writes to, and answers lines over TCP.
//
//	desc             prints a descriptor
//	check SEED SENT  looks at a round, prints "good" or what is wrong
//	die              loses its power
const helperPort = "7399"

// cable is a device and the other VM's address on its link.
type cable struct{ dev, addr string }

func cables() []cable {
	var all []cable
	for _, word := range strings.Fields(os.Getenv("HAWSER_VM_LINKS")) {
		dev, addr, _ := strings.Cut(word, "=")
		all = append(all, cable{dev, addr})
	}
	return all
}

// overCables uses all devices that reach the other VM.
func overCables(side int) network {
	n := network{name: "verbs"}
	for _, c := range cables() {
		n.dev[side] = append(n.dev[side], c.dev+"/1")
	}
	return n
}

// own is the address of this VM on the first link.
func own(rank int) string { return fmt.Sprintf("10.78.0.%d", rank+1) }

func machineOptions(rank int) hawser.Options {
	o := options(rank, overCables(rank))
	o.Listen, o.ClusterKey, o.Name = own(rank)+":0", []byte("two machines"), fmt.Sprintf("machine %d", rank)
	return o
}

// other is the second VM's part.
func other() int {
	if err := serveOther(); err != nil {
		fmt.Fprintln(os.Stderr, "second machine:", err)
		return 1
	}
	return 0
}

func serveOther() error {
	ctx := context.Background()
	e, err := hawser.Open(ctx, machineOptions(1))
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	d := &duo{b: e}
	if d.dst, err = e.Alloc(pages*page, hawser.MemOptions{}); err != nil {
		return err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(own(1), helperPort))
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := l.Accept()
	if err != nil {
		return err
	}
	defer c.Close()
	for lines := bufio.NewScanner(c); lines.Scan(); {
		verb, args, _ := strings.Cut(lines.Text(), " ")
		answer := ""
		switch verb {
		case "desc":
			text, err := d.dst.Descriptor(d.dst.All(), hawser.RightWrite).MarshalText()
			if err != nil {
				return err
			}
			answer = string(text)
		case "check":
			var seed uint64
			if _, err := fmt.Sscan(args, &seed, &d.sent); err != nil {
				return err
			}
			answer = "good"
			if err := d.look(ctx, seed); err != nil {
				answer = err.Error()
			}
		case "die":
			if err := syscall.Kill(1, syscall.SIGUSR1); err != nil {
				return err
			}
			time.Sleep(hang) // this machine has less
		}
		if _, err := fmt.Fprintln(c, answer); err != nil {
			return err
		}
	}
	return nil
}

// helper is the connection to the second VM.
type helper struct {
	t   *testing.T
	c   net.Conn
	out *bufio.Scanner
}

func (h *helper) ask(format string, args ...any) string {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.c, format+"\n", args...); err != nil {
		h.t.Fatal(err)
	}
	h.c.SetReadDeadline(time.Now().Add(hang))
	if !h.out.Scan() {
		h.t.Fatalf("no answer to %s: %v", format, h.out.Err())
	}
	return h.out.Text()
}

// Two machines transfer over all links between them, with a link down and up again meanwhile. Then one loses its power in the middle of a
// transfer: the other one notices, ends what is outstanding, fences, and keeps nothing.
func TestTwoMachinesAndOneThatDies(t *testing.T) {
	links := cables()
	if len(links) < 2 {
		t.Fatal("these VMs have fewer than two links")
	}
	before := resources(t)
	h := &helper{t: t}
	eventually(t, "second machine", func() bool {
		c, err := net.Dial("tcp", net.JoinHostPort(links[0].addr, helperPort))
		if err == nil {
			h.c, h.out = c, bufio.NewScanner(c)
		}
		return err == nil
	})
	t.Cleanup(func() { h.c.Close() })
	h.out.Buffer(nil, 1<<20)

	e, err := hawser.Open(testContext(t), machineOptions(0))
	if err != nil {
		t.Fatal(err)
	}
	downs := make(chan hawser.PeerEvent, 16)
	e.OnPeer(func(ev hawser.PeerEvent) {
		if ev.Kind == hawser.PeerDown {
			downs <- ev
		}
	})
	d := &duo{a: e, src: alloc(t, e)}
	var desc hawser.Descriptor
	if err := desc.UnmarshalText([]byte(h.ask("desc"))); err != nil {
		t.Fatal(err)
	}
	if d.rem, err = e.Import(testContext(t), desc); err != nil {
		t.Fatal(err)
	}
	d.peer = d.rem.Peer()
	round := func(seed uint64) {
		t.Helper()
		d.write(t, seed)
		if got := h.ask("check %d %d", seed, d.sent); got != "good" {
			t.Fatal(got)
		}
	}
	for seed := range uint64(3) {
		round(seed)
	}
	for i, l := range e.Stats().Peers[0].PerLink {
		if l.Provider != "verbs" || l.TxBytes == 0 {
			t.Errorf("link %d over %s carried %d bytes", i, l.Provider, l.TxBytes)
		}
	}
	// The second link: the first one carries the lines of this test.
	run(t, "ip", "link", "set", "eth1", "down")
	for seed := range uint64(3) {
		round(10 + seed)
	}
	run(t, "ip", "link", "set", "eth1", "up")
	eventually(t, "second link", func() bool { return e.Stats().Peers[0].PerLink[1].Ready })
	round(20)

	d.lastWords(t, h, downs)
	closing, cancel := context.WithTimeout(context.Background(), hang)
	defer cancel()
	if err := e.Close(closing); err != nil {
		t.Error(err)
	}
	eventually(t, "no queue pair is left", func() bool { return resources(t) == before })
}

// lastWords cuts the other machine's power in the middle of transfers and sees how that ends here.
func (d *duo) lastWords(t *testing.T, h *helper, downs <-chan hawser.PeerEvent) {
	t.Helper()
	var all []*hawser.Transfer
	for range 64 {
		tr, err := d.a.Write(hawser.Write{Src: d.src.All(), Dst: d.rem.All(), Imm: hawser.Imm(immData), Parts: 4})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, tr)
	}
	if err := all[0].Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(h.c, "die")
	began := time.Now()
	failed := 0
	for i, tr := range all {
		err := tr.Wait(testContext(t))
		if err != nil && !errors.Is(err, hawser.ErrPeerDown) && !errors.Is(err, hawser.ErrUnfenced) {
			t.Errorf("write %d: %v", i, err)
		}
		if err != nil {
			failed++
		}
	}
	if failed == 0 {
		t.Error("all writes to a machine without power ended well")
	}
	select {
	case ev := <-downs:
		t.Logf("noticed after %.1f s (peers have %v): %v; %d of %d writes failed", time.Since(began).Seconds(), peerTime, ev.Cause, failed, len(all))
	case <-time.After(hang):
		t.Fatal("the end of the other machine was not noticed")
	}
	if err := d.a.Fence(testContext(t), d.peer); err != nil {
		t.Errorf("fence: %v", err)
	}
}
