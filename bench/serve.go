package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/mem"
)

// receiver is the receiving process. Owned by Serve.
type receiver struct {
	parent *proc.Parent
	config Config
	order  order
	eng    *hawser.Engine
	close  func() error   // of eng, nil before it is open
	pool   *hawser.Region // of ours
	word   *hawser.Region // what answers are written from
	answer *hawser.Remote // where they go
	rw     stream
	yard   *mem.Span // pool of the yardstick, nil when it needs none
	count  uint64    // immediates expected so far
}

// Serve is the receiving process of Run: it calls proc.Attach, does what the sender asks, and returns when the sender is gone.
func Serve(ctx context.Context) error {
	parent, ctx := proc.Attach(ctx)
	r := &receiver{parent: parent}
	err := r.serve(ctx)
	if errors.Is(err, proc.ErrParentGone) { // it has ended the run
		err = nil
	}
	if r.close != nil {
		err = errors.Join(err, r.close())
	}
	if err != nil {
		parent.Fail(err)
	}
	return err
}

// serve answers the parent until it is gone, or something fails.
func (r *receiver) serve(ctx context.Context) error {
	for {
		m, err := r.parent.Next(ctx)
		if err != nil {
			return err
		}
		if err := r.answerTo(ctx, m); err != nil {
			return err
		}
	}
}

func (r *receiver) answerTo(ctx context.Context, m proc.Message) error {
	if (m.Kind == msgOpen) == (r.eng != nil) {
		return fmt.Errorf("bench: request %q out of order", m.Kind)
	}
	switch m.Kind {
	case msgOpen:
		var q openRequest
		if err := m.Decode(&q); err != nil {
			return err
		}
		return r.open(ctx, q)
	case msgWork:
		var q workRequest
		if err := m.Decode(&q); err != nil {
			return err
		}
		return r.work(ctx, q)
	case msgVerify:
		var moved uint64
		if err := m.Decode(&moved); err != nil {
			return err
		}
		return r.parent.Send(msgResult, r.order.corrupt(r.pool.Bytes(), r.config.Size, r.config.Seed, moved))
	}
	return fmt.Errorf("bench: unknown request %q", m.Kind)
}

func (r *receiver) open(ctx context.Context, q openRequest) error {
	c, err := q.Config.withDefaults()
	if err != nil {
		return err
	}
	r.config, r.order = c, newOrder(c.slots(), c.Seed)
	eng, closeEngine, err := open(ctx, c, "receiver")
	if err != nil {
		return err
	}
	r.eng, r.close = eng, closeEngine
	if r.pool, err = eng.Alloc(c.Pool, hawser.MemOptions{}); err != nil {
		return err
	}
	if r.word, err = eng.Alloc(immSize, hawser.MemOptions{}); err != nil {
		return err
	}
	if r.answer, err = importText(ctx, eng, q.Descriptor); err != nil {
		return err
	}
	text, err := export(r.pool)
	if err != nil {
		return err
	}
	a := openAnswer{Descriptor: text}
	if c.Provider != "tcp" {
		if r.rw, err = childPipes(); err != nil {
			return err
		}
		return r.parent.Send(msgReady, a)
	}
	if r.yard, err = mem.New(c.Pool, mem.Shared); err != nil { // of the same kind as the engine's memory
		return err
	}
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	a.Stream = l.Addr().String()
	if err := r.parent.Send(msgReady, a); err != nil {
		return err
	}
	if err := l.SetDeadline(time.Now().Add(closeTimeout)); err != nil {
		return err
	}
	conn, err := l.AcceptTCP()
	if err != nil {
		return err
	}
	r.rw = conn
	return tune(conn)
}

func (r *receiver) work(ctx context.Context, q workRequest) error {
	stop := context.AfterFunc(ctx, func() { hangUp(r.rw) }) // reads of the stream do not know of contexts
	defer stop()
	if err := r.parent.Send(msgGo, nil); err != nil {
		return err
	}
	before := cpuTime()
	if err := r.do(ctx, q); err != nil {
		return err
	}
	return r.parent.Send(msgDone, workDone{CPU: cpuTime() - before})
}

func (r *receiver) do(ctx context.Context, q workRequest) error {
	c := r.config
	switch q.Work {
	case workOurs:
		r.count += uint64(q.Count)
		if err := r.eng.Counter(immData).Wait(ctx, r.count); err != nil {
			return err
		}
		t, err := r.eng.Signal(hawser.Signal{To: r.answer.Peer(), Imm: immAnswer})
		if err != nil {
			return err
		}
		return t.Wait(ctx)
	case workPong:
		return r.pong(ctx, q.Count)
	case workYard:
		c.Bytes = uint64(q.Count) * c.Size
		return receiveBlocks(r.rw, r.yard.Bytes(), r.order, q.First, c)
	case workEcho:
		return echo(r.rw, message(c), q.Count)
	case workDrain:
		return drain(r.rw, message(c), q.Count)
	default:
		return fmt.Errorf("bench: unknown work %q", q.Work)
	}
}

// pong answers n writes, each with a write.
func (r *receiver) pong(ctx context.Context, n int) error {
	p := newPinger(r.eng, r.word.Slice(0, immSize), r.answer.Slice(0, immSize), immAnswer, immData, r.count)
	for range n {
		if err := p.await(ctx); err != nil {
			return err
		}
		if err := p.write(ctx); err != nil {
			return err
		}
	}
	r.count += uint64(n)
	return p.drain(ctx)
}

// message is the size of the yardstick's small messages.
func message(c Config) int {
	if c.Provider == "tcp" {
		return socketMessage
	}
	return pipeMessage
}

// Descriptors of the pipes in the receiving process: proc.Spec.Files start at 3.
const (
	pipeIn  = 3
	pipeOut = 4
)

// pipes is a stream over two pipes.
type pipes struct{ in, out *os.File }

func (p pipes) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p pipes) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p pipes) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }

func childPipes() (stream, error) {
	for _, fd := range []int{pipeIn, pipeOut} {
		if err := unix.SetNonblock(fd, true); err != nil { // so that the runtime polls them
			return nil, fmt.Errorf("bench: pipe of the yardstick: %w", err)
		}
	}
	return pipes{os.NewFile(pipeIn, "pipe"), os.NewFile(pipeOut, "pipe")}, nil
}

// hangUp ends all reads and writes of a stream.
func hangUp(s stream) {
	if c, ok := s.(interface{ Close() error }); ok {
		_ = c.Close()
	}
}

// tune gives the yardstick's socket the congestion control that the provider gives its own on loopback: bbr, where it is the
// default, paces even there.
func tune(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("bench: yardstick: %w", err)
	}
	var serr error
	err = raw.Control(func(fd uintptr) {
		for _, name := range []string{"cubic", "reno"} { // reno is in every kernel
			if serr = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); serr == nil {
				return
			}
		}
	})
	if err := errors.Join(err, serr); err != nil {
		return fmt.Errorf("bench: yardstick: congestion control: %w", err)
	}
	return c.SetNoDelay(true)
}
