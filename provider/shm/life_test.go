package shm

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/provider"
)

// countMappings counts this process's mappings of memfds.
func countMappings(t testing.TB) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(maps, []byte("memfd:"))
}

func TestOpenRefusesWhatItCannotServe(t *testing.T) {
	s := newSide(t)
	good, err := device()
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(dev *provider.Device, cfg *provider.Config){
		"another provider's device": func(dev *provider.Device, _ *provider.Config) { dev.Provider = "tcp" },
		"another device":            func(dev *provider.Device, _ *provider.Config) { dev.Name = "shm1" },
		"another fabric":            func(dev *provider.Device, _ *provider.Config) { dev.Fabric += "0" },
		"no bell":                   func(_ *provider.Device, cfg *provider.Config) { cfg.Bell = nil },
		"fewer than no peers":       func(_ *provider.Device, cfg *provider.Config) { cfg.MaxPeers = -1 },
		"too many peers":            func(_ *provider.Device, cfg *provider.Config) { cfg.MaxPeers = maxPeersLimit + 1 },
	} {
		before := countFDs(t)
		dev, cfg := good, provider.Config{Bell: s.bell}
		change(&dev, &cfg)
		if _, err := New().Open(t.Context(), dev, cfg); !errors.Is(err, provider.ErrInvalid) {
			t.Errorf("%s: Open returned %v, want ErrInvalid", name, err)
		}
		if after := countFDs(t); after != before {
			t.Errorf("%s: %d descriptors are open, %d were before", name, after, before)
		}
	}
}

func TestManyConnectionsLeaveNothing(t *testing.T) {
	const peers, rounds = 100, 3
	a, b := newSide(t), newSide(t)
	_, src := a.memory(4096)
	_, dst := b.memory(4096)
	fds, maps := countFDs(t), countMappings(t)
	for round := range rounds {
		var pas, pbs []provider.Peer
		var addrs []provider.Addr
		for range peers {
			pa, addrA, errA := a.d.Offer()
			pb, addrB, errB := b.d.Offer()
			if err := errors.Join(errA, errB, b.d.Connect(pb, addrA, false)); err != nil {
				t.Fatal(err)
			}
			pas, pbs, addrs = append(pas, pa), append(pbs, pb), append(addrs, addrB)
		}
		for i, addr := range addrs { // all at once
			if err := a.d.Connect(pas[i], addr, true); err != nil {
				t.Fatal(err)
			}
		}
		for range peers {
			a.wait(provider.KindPeerUp, b)
			b.wait(provider.KindPeerUp, a)
		}
		for i := range peers {
			key, err := b.d.Grant(dst, pbs[i], 0, 4096)
			if err != nil {
				t.Fatal(err)
			}
			wr := provider.WR{Op: provider.OpWriteImm, Peer: pas[i], Imm: uint32(i), LocalKey: src.ID, RemoteKey: key.ID, Len: 8}
			if _, err := a.d.Post([]provider.WR{wr}); err != nil {
				t.Fatal(err)
			}
			if c := a.wait(provider.KindWrite); c.Status != provider.StatusOK {
				t.Fatalf("round %d: write %d ended with %v", round, i, c.Status)
			}
			if c := b.wait(provider.KindImm, a); c.Imm != uint32(i) || c.Peer != pbs[i] {
				t.Fatalf("round %d: immediate %+v, want %d of peer %#x", round, c, i, pbs[i])
			}
		}
		for i := range peers {
			end := []func(provider.Peer) error{a.d.Disconnect, a.d.Fence}[i%2]
			if err := end(pas[i]); err != nil {
				t.Fatal(err)
			}
			b.wait(provider.KindPeerDown, a)
			a.wait(provider.KindPeerDown, b)
			if err := b.d.Disconnect(pbs[i]); err != nil {
				t.Fatal(err)
			}
		}
		a.got, b.got = nil, nil
		if f, m := countFDs(t), countMappings(t); f != fds || m != maps {
			t.Fatalf("round %d: %d descriptors and %d mappings are left, there were %d and %d", round, f, m, fds, maps)
		}
	}
}

// resident is the memory in KiB that a process's mappings of memfds of one name hold, and their number.
func resident(t *testing.T, name string) (kib, mappings int) {
	t.Helper()
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(string(smaps)) {
		if strings.Contains(line, "memfd:") {
			inside = strings.Contains(line, name)
		}
		var n int
		if _, err := fmt.Sscanf(line, "Rss: %d kB", &n); err == nil && inside {
			kib, mappings, inside = kib+n, mappings+1, false
		}
	}
	return kib, mappings
}

func TestIdlePairIsSmall(t *testing.T) {
	const bound = 16 // KiB a side
	a, b := newPair(t)
	for range 1000 {
		a.poll()
		b.poll()
	}
	if kib, sides := resident(t, "hawser-pair"); sides != 2 || kib == 0 || kib > 2*bound {
		t.Errorf("the %d pair pages of an idle connection hold %d KiB, want at most %d a side", sides, kib, bound)
	}
}

func TestGrantsQueueUntilThePeerReads(t *testing.T) {
	a, b := newPair(t)
	_, src := a.memory(4096)
	span, _ := b.memory(4096)
	var keys []provider.Key
	var granted []provider.Key
	for {
		k, err := b.d.Register(provider.Memory{Bytes: span.Bytes(), FD: span.FD()}, provider.AccessRemoteWrite)
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, k)
		g, err := b.d.Grant(k, b.peer, 0, 4096)
		if errors.Is(err, provider.ErrBusy) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		granted = append(granted, g)
		if len(granted) > 10_000 {
			t.Fatal("10,000 grants were accepted that nobody has read")
		}
	}
	if len(granted) < 2*datagramBatch {
		t.Fatalf("only %d grants were accepted", len(granted))
	}
	// The writer has read none of them: it must look for its key behind all the others.
	last := granted[len(granted)-1]
	a.post(provider.WR{Op: provider.OpWrite, LocalKey: src.ID, RemoteKey: last.ID, RemoteAddr: last.Base, Len: 8})
	if c := a.wait(provider.KindWrite); c.Status != provider.StatusOK {
		t.Fatalf("a write with the last of %d grants ended with %v", len(granted), c.Status)
	}
	if _, err := b.d.Grant(keys[len(keys)-1], b.peer, 0, 4096); err != nil {
		t.Fatalf("grant after the peer has read the others: %v", err)
	}
	if again, err := b.d.Grant(keys[0], b.peer, 100, 10); err != nil || again.ID != granted[0].ID || again.Base != 100 {
		t.Fatalf("granting a part of what was granted returned %+v, %v", again, err)
	}
}

// TestDeregisterUnmapsAtTheWriter: memory is given back although the writer's owner sleeps and never uses the key again.
func TestDeregisterUnmapsAtTheWriter(t *testing.T) {
	a, b := newPair(t)
	before := countMappings(t)
	_, src := a.memory(4096)
	_, dst := b.memory(4096)
	key := b.grant(dst)
	a.post(provider.WR{Op: provider.OpWrite, LocalKey: src.ID, RemoteKey: key.ID, Len: 8})
	a.wait(provider.KindWrite)
	if a.d.Arm() {
		t.Fatal("Arm reports work")
	}
	if err := b.d.Deregister(dst); err != nil {
		t.Fatal(err)
	}
	if !a.bell.Park(hangGuard) {
		t.Fatal("the writer's owner was not woken")
	}
	until(t, "the mapping is gone", func() bool { return countMappings(t) == before+2 }, a) // a's and b's own
}

// TestFullListenerIsDialledAgain: the backlog of the other side is full for a while.
func TestFullListenerIsDialledAgain(t *testing.T) {
	s := newSide(t)
	var name [16]byte
	name[0] = byte(os.Getpid())
	copy(name[1:], "full-listener")
	fd, err := unix.Socket(unix.AF_UNIX, socketType, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := errors.Join(unix.Bind(fd, socketName(name)), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	waiting := 0
	for {
		c, err := dial(name)
		if errors.Is(err, errAgain) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(c)
		waiting++
	}
	p, _, err := s.d.Offer()
	if err == nil {
		err = s.d.Connect(p, address{handle: 1, name: name}.encode(), true)
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		s.poll()
	}
	if c, ok := s.find(provider.KindPeerDown); ok {
		t.Fatalf("it gave up: %+v", c)
	}
	until(t, "the hello comes when there is room", func() bool {
		c, _, err := unix.Accept4(fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return false
		}
		defer unix.Close(c)
		pkt, err := recv(c)
		defer pkt.closeFDs()
		return err == nil && pkt.kind == kindHello
	}, s)
	if c := s.wait(provider.KindPeerDown); c.Status != provider.StatusRefused {
		t.Errorf("KindPeerDown has status %v, want refused", c.Status)
	}
}

// TestSleepingWriterIsWokenWhenThereIsRoom: the writer fills the ring and sleeps; what the reader takes wakes it.
func TestSleepingWriterIsWokenWhenThereIsRoom(t *testing.T) {
	const total = 20 * ringEntries
	a, b := newPair(t)
	asleep := make(chan bool, 1)
	result := make(chan error, 1)
	go func() {
		var cs [64]provider.Completion
		wrs := make([]provider.WR, 32)
		for i := range wrs {
			wrs[i] = provider.WR{Op: provider.OpWriteImm, Peer: a.peer}
		}
		posted, done := 0, 0
		for done < total {
			n, err := a.d.Post(wrs[:min(len(wrs), total-posted)])
			posted += n
			m, perr := a.d.Poll(cs[:])
			done += m
			if err = errors.Join(err, perr); err != nil {
				result <- err
				return
			}
			if n+m > 0 || a.d.Arm() {
				continue
			}
			select {
			case asleep <- true:
			default:
			}
			if !a.bell.Park(hangGuard) {
				result <- errors.New("the writer was not woken")
				return
			}
		}
		result <- nil
	}()
	<-asleep
	seen := ringEntries
	p := b.d.peer(b.peer)
	for i := range ringEntries {
		if _, ok, err := p.immIn.Next(); !ok || err != nil {
			t.Fatalf("the writer sleeps with %d entries in the ring (%v), it holds %d", i, err, ringEntries)
		}
	}
	if !p.immIn.Empty() {
		t.Fatalf("the ring holds more than %d entries", ringEntries)
	}
	if !p.immIn.Release() {
		t.Fatal("the writer has not asked to be woken")
	}
	b.d.ring(p)
	for deadline := time.Now().Add(hangGuard); seen < total; {
		b.poll()
		seen += len(b.got)
		b.got = b.got[:0]
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d immediates came", seen, total)
		}
		runtime.Gosched()
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
}

// TestMessagesWaitABitForReceives: the peer has gone; its message is delivered if a receive comes soon, else it is lost.
func TestMessagesWaitABitForReceives(t *testing.T) {
	for _, inTime := range []bool{true, false} {
		a, b := newPair(t)
		text, src := a.memory(64)
		box, key := b.memory(64)
		copy(text.Bytes(), "hello")
		a.post(provider.WR{Op: provider.OpSend, LocalKey: src.ID, Len: 5})
		if err := a.d.Disconnect(a.peer); err != nil {
			t.Fatal(err)
		}
		until(t, "b notices the end", func() bool { return b.d.peer(b.peer).state == stateEnding }, a, b)
		if inTime {
			if n, err := b.d.Post([]provider.WR{{Op: provider.OpRecv, LocalKey: key.ID, Len: 64}}); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if c := b.wait(provider.KindRecv); c.Status != provider.StatusOK || string(box.Bytes()[:c.Len]) != "hello" {
				t.Errorf("the message is %+v", c)
			}
		} else {
			until(t, "b may sleep", func() bool { return !b.d.Arm() }, b)
			if !b.bell.Park(hangGuard) {
				t.Fatal("nothing woke b at the end of the time")
			}
		}
		if c := b.wait(provider.KindPeerDown); c.Status != provider.StatusPeerDown {
			t.Errorf("KindPeerDown has status %v, want peer-down", c.Status)
		}
	}
}

// TestEachSleepIsWoken: the peer rings once a sleep, and a wake may find nothing that the owner can take.
func TestEachSleepIsWoken(t *testing.T) {
	a, b := newPair(t)
	asleep := func() {
		t.Helper()
		if b.d.Arm() {
			t.Fatal("Arm reports work")
		}
	}
	woken := func() {
		t.Helper()
		if !b.bell.Park(provider.ConnectTimeout / 2) { // then the connection's timer wakes
			t.Fatal("the owner was not woken")
		}
	}
	asleep()
	a.post(provider.WR{Op: provider.OpSend}) // for which b has no receive
	woken()
	asleep() // without a Poll in between
	a.post(provider.WR{Op: provider.OpWriteImm})
	woken()
	b.wait(provider.KindImm)
	asleep()
	a.post(provider.WR{Op: provider.OpWriteImm})
	woken()
	b.wait(provider.KindImm)
}
