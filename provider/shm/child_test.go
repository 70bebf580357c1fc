package shm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/mem"
	"github.com/hawser-project/hawser/provider"
)

// roleEnv makes this program the second process of a test: its value is the role.
const roleEnv = "HAWSER_SHM_TEST_ROLE"

const (
	roleServe   = "serve"   // polls, and answers each immediate answerImm
	roleSleep   = "sleep"   // the same, but sleeps when there is nothing
	roleFreeze  = "freeze"  // writes once, and stops itself in the middle of the copy
	roleForeign = "foreign" // serves with memory that has no memfd
	roleHide    = "hide"    // serves, and forbids others to look into it
	roleLend    = "lend"    // posts lendWrites writes, and stops itself
)

func TestMain(m *testing.M) {
	role := os.Getenv(roleEnv)
	if role == "" {
		os.Exit(m.Run())
	}
	p, ctx := proc.Attach(context.Background())
	if err := playRole(ctx, p, role); err != nil && !errors.Is(err, proc.ErrParentGone) {
		p.Fail(err)
		os.Exit(1)
	}
}

// hail is what the two processes tell each other to connect.
type hail struct {
	Addr provider.Addr
	Key  provider.Key
	Size int
}

// child is a process that runs playRole, connected to side s.
type child struct {
	*proc.Child
	key provider.Key // of its memory, for s
}

// startChild starts a process and connects it to s, whose memory k it may write to. size is that of its own memory.
func startChild(t testing.TB, s *side, role string, k provider.Key, size int) *child {
	t.Helper()
	c, err := proc.Start(proc.Spec{Name: role, Env: []string{roleEnv + "=" + role}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Signal(unix.SIGCONT) // it may have ended
		_ = c.Stop(0)              // killed, which is an error
	})
	p, addr, err := s.d.Offer()
	if err != nil {
		t.Fatal(err)
	}
	s.peer = p
	if err := c.Send("connect", hail{Addr: addr, Size: size}); err != nil {
		t.Fatal(err)
	}
	if err := s.d.Connect(p, hear(t, c).Addr, true); err != nil {
		t.Fatal(err)
	}
	s.wait(provider.KindPeerUp)
	if err := c.Send("key", hail{Key: s.grant(k)}); err != nil {
		t.Fatal(err)
	}
	return &child{c, hear(t, c).Key}
}

func hear(t testing.TB, c *proc.Child) (h hail) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangGuard)
	defer cancel()
	m, err := c.Next(ctx)
	if err == nil {
		err = m.Decode(&h)
	}
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// playRole is the second process.
func playRole(ctx context.Context, p *proc.Parent, role string) error {
	next := func() (h hail, err error) {
		m, err := p.Next(ctx)
		if err == nil {
			err = m.Decode(&h)
		}
		return h, err
	}
	if role == roleHide {
		if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
			return err
		}
	}
	bell, err := cpu.NewParker()
	if err != nil {
		return err
	}
	dev, err := device()
	if err != nil {
		return err
	}
	d, err := open(dev, provider.Config{Bell: bell})
	if err != nil {
		return err
	}
	parent, err := next()
	if err != nil {
		return err
	}
	memory := mem.Shared
	if role == roleForeign {
		memory = mem.Private
	}
	span, err := mem.New(uint64(parent.Size), memory)
	if err != nil {
		return err
	}
	k, err := d.Register(provider.Memory{Bytes: span.Bytes(), FD: span.FD()}, provider.AccessRemoteWrite)
	if err != nil {
		return err
	}
	peer, addr, err := d.Offer()
	if err != nil {
		return err
	}
	if err := errors.Join(d.Connect(peer, parent.Addr, false), p.Send("addr", hail{Addr: addr})); err != nil {
		return err
	}
	var cs [64]provider.Completion
	for up := false; !up; {
		n, err := d.Poll(cs[:])
		if err != nil {
			return err
		}
		up = n > 0 && cs[0].Kind == provider.KindPeerUp
	}
	granted, err := d.Grant(k, peer, 0, uint64(parent.Size))
	if err != nil {
		return err
	}
	theirs, err := next()
	if err == nil {
		err = p.Send("key", hail{Key: granted})
	}
	if err != nil {
		return err
	}
	if role == roleFreeze {
		return freeze(d, peer, k, theirs.Key, parent.Size)
	}
	if role == roleLend {
		return lend(d, peer, k, theirs.Key, parent.Size)
	}
	var sleep *cpu.Parker
	if role == roleSleep {
		sleep = bell
	}
	return serve(d, peer, sleep, func() bool { return ctx.Err() == nil })
}

// answerImm is the immediate that serve answers with an immediate.
const answerImm = 1

// parkTime bounds a sleep, so that serve looks at going now and then.
const parkTime = 100 * time.Millisecond

// serve polls d while going, or until the peer is down. It spins, or sleeps on sleep when there is one.
func serve(d *domain, peer provider.Peer, sleep *cpu.Parker, going func() bool) error {
	var cs [64]provider.Completion
	answer := []provider.WR{{Op: provider.OpWriteImm, Peer: peer, Imm: answerImm}}
	for going() {
		n, err := d.Poll(cs[:])
		if err != nil {
			return err
		}
		if n == 0 && sleep != nil && !d.Arm() {
			sleep.Park(parkTime)
		}
		for i := range cs[:n] {
			switch {
			case cs[i].Kind == provider.KindPeerDown:
				return nil
			case cs[i].Kind == provider.KindImm && cs[i].Imm == answerImm:
				if n, err := d.Post(answer); n != 1 || err != nil {
					return fmt.Errorf("post accepted %d answers: %w", n, err)
				}
			}
		}
	}
	return nil
}

// lentWrites is how many writes lend posts.
const lentWrites = 8

// lend posts writes of size bytes in all, stops this process, and expects all of them done when it goes on.
func lend(d *domain, peer provider.Peer, from, to provider.Key, size int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	src := d.regions[regionIndex(from.ID)].bytes
	for i := range src {
		src[i] = 0xff
	}
	n := size / lentWrites
	for i := range lentWrites {
		wr := provider.WR{
			Op: provider.OpWriteImm, Peer: peer, Imm: uint32(i), LocalKey: from.ID, LocalAddr: uint64(i * n),
			RemoteKey: to.ID, RemoteAddr: to.Base + uint64(i*n), Len: uint64(n),
		}
		if _, err := d.Post([]provider.WR{wr}); err != nil {
			return err
		}
	}
	if p := d.peer(peer); p.lend.jobs != lentWrites {
		return fmt.Errorf("%d writes are lent, want %d", p.lend.jobs, lentWrites)
	}
	if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
		return err
	}
	var cs [64]provider.Completion
	done, err := d.Poll(cs[:])
	if err != nil {
		return err
	}
	for _, c := range cs[:done] {
		if c.Kind != provider.KindWrite || c.Status != provider.StatusOK {
			return fmt.Errorf("a write that was fetched while this process was stopped ended with %v", c.Status)
		}
	}
	if done != lentWrites {
		return fmt.Errorf("%d writes are done, want %d", done, lentWrites)
	}
	return nil
}

// freeze writes size bytes and stops this process in the middle.
func freeze(d *domain, peer provider.Peer, from, to provider.Key, size int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	d.midCopy = func() {
		// To this thread: it does not return from the call before it has stopped. Another thread could stop a little later.
		if err := unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGSTOP); err != nil {
			panic(err)
		}
	}
	src := d.regions[regionIndex(from.ID)].bytes
	for i := range src {
		src[i] = 0xff
	}
	wr := provider.WR{Op: provider.OpWriteImm, Peer: peer, LocalKey: from.ID, RemoteKey: to.ID, RemoteAddr: to.Base, Len: uint64(size)}
	if _, err := d.Post([]provider.WR{wr}); err != nil {
		return err
	}
	var cs [64]provider.Completion
	for deadline := time.Now().Add(hangGuard); time.Now().Before(deadline); {
		n, err := d.Poll(cs[:])
		if err != nil {
			return err
		}
		for _, c := range cs[:n] {
			if c.Kind == provider.KindWrite && c.Status != provider.StatusFlushed {
				return fmt.Errorf("the write that was fenced ended with %v, want flushed", c.Status)
			}
			if c.Kind == provider.KindPeerDown {
				return nil
			}
		}
	}
	return errors.New("no KindPeerDown")
}
