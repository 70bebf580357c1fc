package hawser_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/proc"
	"github.com/hawser-project/hawser/internal/wire"
)

// aim is what an attacker knows of the engine that it attacks.
type aim struct {
	control string            // address of the control listener
	desc    hawser.Descriptor // of memory that it may write to
	rounds  *atomic.Uint64    // attempts so far
}

// attacks are what a hostile client can do over TCP. Each goes on until the context ends.
var attacks = map[string]func(context.Context, *aim){
	"silence":                    silence,
	"hang up":                    hangUp,
	"random bytes":               randomBytes,
	"slow loris":                 slowLoris,
	"huge frames":                hugeFrames,
	"half handshakes":            halfHandshakes,
	"random bytes for data":      randomData,
	"questions without end":      questions,
	"forged writes":              forgedWrites,
	"writes beyond the grant":    writesBeyond,
	"broken frames":              brokenFrames,
	"writes without reading":     writesUnread,
	"messages without receivers": messages,
	"immediates without end":     immediates,
	"10,000 connections":         crowd,
	"notices without end":        notices,
}

// again calls f until the context ends: an attempt, which the engine may end.
func again(ctx context.Context, t *aim, f func(rng *mathrand.Rand) error) {
	var seed [32]byte
	_, _ = rand.Read(seed[:])
	rng := mathrand.New(mathrand.NewChaCha8(seed))
	for ctx.Err() == nil {
		_ = f(rng) // that it ends with an error is what the engine is for
		t.rounds.Add(1)
	}
}

// silence keeps as many connections as it can, and says nothing.
func silence(ctx context.Context, t *aim) {
	const most = 500
	var conns []net.Conn
	again(ctx, t, func(*mathrand.Rand) error {
		if len(conns) == most {
			_ = conns[0].Close()
			conns = conns[1:]
		}
		conn, err := intrude(ctx, t.control)
		if err == nil {
			conns = append(conns, conn)
		}
		return err
	})
	for _, conn := range conns {
		_ = conn.Close()
	}
}

// hangUp connects and leaves, politely or not.
func hangUp(ctx context.Context, t *aim) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		conn, err := intrude(ctx, t.control)
		if err != nil {
			return err
		}
		switch rng.IntN(3) {
		case 0:
			_ = conn.(*net.TCPConn).SetLinger(0) // a reset
		case 1:
			_ = conn.(*net.TCPConn).CloseWrite()
			_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			_, _ = io.Copy(io.Discard, conn)
		}
		return conn.Close()
	})
}

func randomBytes(ctx context.Context, t *aim) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		conn, err := intrude(ctx, t.control)
		if err != nil {
			return err
		}
		defer conn.Close()
		return noise(rng, conn, 1+rng.IntN(10_000))
	})
}

// noise says n random bytes and waits until the other side has had enough.
func noise(rng *mathrand.Rand, conn net.Conn, n int) error {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	_ = conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := conn.Write(b); err != nil {
		return err
	}
	_, err := io.Copy(io.Discard, conn)
	return err
}

// slowLoris says one byte after the other of a good hello, on many connections.
func slowLoris(ctx context.Context, t *aim) {
	hello := wire.AppendFrame(nil, wire.TypeHello, 0, &wire.Hello{Magic: wire.Magic, Min: 1, Max: 1, ID: wire.ID{1}})
	var all sync.WaitGroup
	defer all.Wait()
	for range 200 {
		all.Go(func() {
			again(ctx, t, func(*mathrand.Rand) error {
				conn, err := intrude(ctx, t.control)
				if err != nil {
					return err
				}
				defer conn.Close()
				for i := range hello {
					if _, err := conn.Write(hello[i : i+1]); err != nil {
						return err
					}
					select {
					case <-time.After(50 * time.Millisecond): // what makes it slow
					case <-ctx.Done():
						return nil
					}
				}
				return nil
			})
		})
	}
}

// hugeFrames announces as much as a header can say, or as much as is allowed, and sends it slowly or not.
func hugeFrames(ctx context.Context, t *aim) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if rng.IntN(2) == 0 {
			if err := x.up(ctx, t.control); err != nil {
				return err
			}
		} else if err := x.hello(ctx, t.control); err != nil {
			return err
		}
		length := []uint32{1<<32 - 1, wire.MaxPayload + 1, wire.MaxPayload}[rng.IntN(3)]
		h := wire.AppendFrame(nil, wire.TypeResolve, 1, nil)
		h[0], h[1], h[2], h[3] = byte(length), byte(length>>8), byte(length>>16), byte(length>>24)
		if _, err := x.control.Write(h); err != nil {
			return err
		}
		return noise(rng, x.control, 10_000)
	})
}

// halfHandshakes go on to some step and stay there for a while.
func halfHandshakes(ctx context.Context, t *aim) {
	var all sync.WaitGroup
	defer all.Wait()
	for range 40 {
		all.Go(func() {
			again(ctx, t, func(rng *mathrand.Rand) error {
				x := newIntruder()
				defer x.leave()
				var err error
				switch rng.IntN(3) {
				case 0:
					err = x.hello(ctx, t.control)
				case 1:
					err = x.offered(ctx, t.control)
				default:
					err = x.up(ctx, t.control)
				}
				select {
				case <-time.After(time.Duration(rng.IntN(300)) * time.Millisecond):
				case <-ctx.Done():
				}
				return err
			})
		})
	}
}

// randomData says random things to the data listener while it expects somebody, also behind a good greeting.
func randomData(ctx context.Context, t *aim) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if err := x.offered(ctx, t.control); err != nil {
			return err
		}
		for i := range 30 {
			conn, err := intrude(ctx, x.theirs.at.String())
			if err != nil {
				return err
			}
			if i == 29 {
				_, _ = conn.Write(x.theirs.greeting(x.id))
			}
			_ = noise(rng, conn, 1+rng.IntN(1000)) // it may be over before all is said
			_ = conn.Close()
			t.rounds.Add(1)
		}
		return nil
	})
}

// questions asks without reading the answers.
func questions(ctx context.Context, t *aim) {
	raw, err := t.desc.MarshalBinary()
	if err != nil {
		return
	}
	var q wire.Resolve
	if wire.Parse(raw, &q.Descriptor) != nil {
		return
	}
	frame := wire.AppendFrame(nil, wire.TypeResolve, 1, &q)
	again(ctx, t, func(*mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if err := x.up(ctx, t.control); err != nil {
			return err
		}
		for ctx.Err() == nil {
			if _, err := x.control.Write(frame); err != nil {
				return err
			}
			t.rounds.Add(1)
		}
		return nil
	})
}

// flood opens a session, with the key of the grant, and sends what next makes until it is thrown out.
func flood(ctx context.Context, t *aim, next func(rng *mathrand.Rand, key uint64, b []byte) []byte) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if err := x.up(ctx, t.control); err != nil {
			return err
		}
		if err := x.resolve(t.desc); err != nil {
			return err
		}
		go func() { // what it is told is of no interest, but must not stop the flood
			_, _ = io.Copy(io.Discard, x.data)
		}()
		return pour(ctx, t, x, rng, next)
	})
}

func pour(ctx context.Context, t *aim, x *intruder, rng *mathrand.Rand, next func(rng *mathrand.Rand, key uint64, b []byte) []byte) error {
	for b := []byte(nil); ctx.Err() == nil; t.rounds.Add(1) {
		b = next(rng, x.key, b[:0])
		if _, err := x.data.Write(b); err != nil {
			return err
		}
	}
	return nil
}

// forgedWrites use keys that were never given.
func forgedWrites(ctx context.Context, t *aim) {
	flood(ctx, t, func(rng *mathrand.Rand, key uint64, b []byte) []byte {
		for range 100 {
			f := rawFrame{kind: byte(rawWrite + rng.IntN(2)), length: 8, key: rng.Uint64(), addr: rng.Uint64N(1 << 20)}
			switch rng.IntN(4) {
			case 0:
				f.key = key ^ 1<<rng.IntN(64)
			case 1:
				f.key = uint64(rng.IntN(8)) | uint64(rng.IntN(8))<<32 // of a registration, if it were local
			}
			b = append(f.append(b), evil[:8]...)
		}
		return b
	})
}

// writesBeyond has the right key and wants a little more than it opens, and sometimes just what it opens.
func writesBeyond(ctx context.Context, t *aim) {
	size := t.desc.Len()
	flood(ctx, t, func(rng *mathrand.Rand, key uint64, b []byte) []byte {
		for range 50 {
			f := rawFrame{kind: rawWrite, length: uint32(1 + rng.IntN(200)), key: key}
			switch rng.IntN(6) {
			case 0:
				f.addr = size - uint64(f.length) + 1
			case 1:
				f.addr = size + uint64(rng.IntN(1<<20))
			case 2:
				f.addr = -uint64(1 + rng.IntN(200))
			case 3:
				f.length, f.addr = uint32(size)+1, 0
			case 4:
				f.addr = rng.Uint64()
			default:
				f.addr = rng.Uint64N(size - 200)
			}
			b = append(f.append(b), evil[:f.length]...)
		}
		return b
	})
}

// brokenFrames breaks one rule of the protocol after the other.
func brokenFrames(ctx context.Context, t *aim) {
	flood(ctx, t, func(rng *mathrand.Rand, key uint64, b []byte) []byte {
		return []rawFrame{
			{kind: byte(6 + rng.IntN(200))},
			{kind: rawWrite, flags: 2},
			{kind: rawWrite, length: 1<<32 - 1, key: key},
			{kind: rawWrite, length: 1<<24 + 1, key: key},
			{kind: rawWrite, imm: 1, key: key},
			{kind: rawMessage, length: 1 << 20},
			{kind: rawAck, ack: 1},
			{kind: rawAck, imm: 1},
			{kind: rawAck, length: 10},
		}[rng.IntN(9)].append(b)
	})
}

// writesUnread writes where it may and never reads that it has done so.
func writesUnread(ctx context.Context, t *aim) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if err := x.up(ctx, t.control); err != nil {
			return err
		}
		if err := x.resolve(t.desc); err != nil {
			return err
		}
		return pour(ctx, t, x, rng, func(_ *mathrand.Rand, key uint64, b []byte) []byte {
			for range 100 {
				b = append(rawFrame{kind: rawWrite, flags: 1, length: 1, key: key}.append(b), evil[0])
			}
			return b
		})
	})
}

// messages sends more than anybody makes room for.
func messages(ctx context.Context, t *aim) {
	flood(ctx, t, func(rng *mathrand.Rand, _ uint64, b []byte) []byte {
		n := rng.IntN(4096)
		return append(rawFrame{kind: rawMessage, length: uint32(n)}.append(b), evil[:n]...)
	})
}

// immediates counts values that nobody has asked for.
func immediates(ctx context.Context, t *aim) {
	var value uint32
	flood(ctx, t, func(_ *mathrand.Rand, _ uint64, b []byte) []byte {
		for range 500 {
			value++
			b = rawFrame{kind: rawWriteImm, imm: value}.append(b)
		}
		return b
	})
}

// notices tells about links that never were, and does not read what it is told.
func notices(ctx context.Context, t *aim) {
	again(ctx, t, func(rng *mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if err := x.up(ctx, t.control); err != nil {
			return err
		}
		for ctx.Err() == nil {
			n := &wire.LinkNotice{Step: wire.LinkStep(1 + rng.IntN(3)), Link: uint16(rng.IntN(3)), Epoch: rng.Uint32N(4), Imms: rng.Uint64()}
			if err := x.say(wire.TypeLink, n); err != nil {
				return err
			}
			t.rounds.Add(1)
		}
		return nil
	})
}

// crowdSize is how many connections a crowd has at a time, half of them to the data listener.
const crowdSize = 10_000

// crowd connects very often, and keeps all connections.
func crowd(ctx context.Context, t *aim) {
	again(ctx, t, func(*mathrand.Rand) error {
		x := newIntruder()
		defer x.leave()
		if err := x.offered(ctx, t.control); err != nil {
			return err
		}
		addrs := []string{t.control, x.theirs.at.String()}
		var conns []net.Conn
		defer func() {
			for _, conn := range conns {
				_ = conn.Close()
			}
		}()
		for i := 0; i < crowdSize && ctx.Err() == nil; i++ {
			conn, err := net.DialTimeout("tcp", addrs[i%2], 100*time.Millisecond) // the queue of a listener may be full
			if err == nil {
				conns = append(conns, conn)
				t.rounds.Add(1)
			}
		}
		return nil
	})
}

// evil is what attackers write: no byte of it may be seen where they may not write.
var evil = func() (b [2 * siegePart]byte) {
	for i := range b {
		b[i] = 0xee
	}
	return b
}()

func newIntruder() *intruder {
	x := &intruder{}
	_, _ = rand.Read(x.id[:])
	return x
}

// attack is what an attacker process is told to do, and what it tells about it.
type attack struct {
	Name    string
	Control string
	Desc    []byte // binary
}

type damage struct {
	Rounds uint64
	CPU    time.Duration // of the attacker
}

// attacker is a process that attacks between the messages "begin" and "end", or burns processor time: "burn".
func attacker() error {
	p, ctx := proc.Attach(context.Background())
	var end func() damage
	for {
		m, err := p.Next(ctx)
		if errors.Is(err, proc.ErrParentGone) {
			return nil
		}
		if err != nil {
			return err
		}
		switch m.Kind {
		case "begin":
			var a attack
			if err := json.Unmarshal(m.Data, &a); err != nil {
				return err
			}
			if end, err = begin(ctx, a); err == nil {
				err = p.Send("begun", nil)
			}
		case "end":
			err = p.Send("ended", end())
		case "burn":
			var b burning
			if err = m.Decode(&b); err == nil {
				before := cpuTime()
				burn(b)
				err = p.Send("ended", damage{CPU: cpuTime() - before})
			}
		}
		if err != nil {
			return err
		}
	}
}

func begin(ctx context.Context, a attack) (end func() damage, err error) {
	f := attacks[a.Name]
	if f == nil {
		return nil, fmt.Errorf("no attack %q", a.Name)
	}
	t := &aim{control: a.Control, rounds: new(atomic.Uint64)}
	if err := t.desc.UnmarshalBinary(a.Desc); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	before := cpuTime()
	var wg sync.WaitGroup
	wg.Go(func() { f(ctx, t) })
	return func() damage {
		d := damage{Rounds: t.rounds.Load(), CPU: cpuTime() - before}
		cancel()
		wg.Wait()
		return d
	}, nil
}

// burning is processor time to use up within a time.
type burning struct{ CPU, Within time.Duration }

// burnSlice is how evenly a burner burns.
const burnSlice = time.Millisecond

// burn uses up processor time, evenly.
func burn(b burning) {
	threads := 1 + int(b.CPU/b.Within)
	var all sync.WaitGroup
	for range threads {
		all.Go(func() {
			busy := time.Duration(float64(burnSlice) * float64(b.CPU) / float64(b.Within) / float64(threads))
			for start := time.Now(); time.Since(start) < b.Within; {
				for slice := time.Now(); time.Since(slice) < busy; {
				}
				time.Sleep(burnSlice - busy)
			}
		})
	}
	all.Wait()
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for other arguments only
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
