package moebench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/mem"
)

// gate is a barrier of all ranks in memory that they share: who waits looks, so that all begin at nearly the same time. With a barrier over
// the network the last one begins when the first one is done.
type gate struct {
	span  *mem.Span
	bytes []byte
	n     *atomic.Uint64 // how often ranks have come
	ranks uint64
	yield bool // there are more ranks than processors
}

const (
	gateBytes = 1 << 16 // whole pages anywhere
	gateFD    = 3       // in a rank
	looks     = 1024    // between two looks at the context
)

// newGate makes the memory, and the file that ranks get as their first one, which is the caller's to close.
func newGate() (*mem.Span, *os.File, error) {
	s, err := mem.New(gateBytes, mem.Shared)
	if err != nil {
		return nil, nil, fmt.Errorf("moebench: barrier: %w", err)
	}
	fd, err := unix.FcntlInt(uintptr(s.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("moebench: barrier: %w", err), s.Free())
	}
	return s, os.NewFile(uintptr(fd), "barrier"), nil
}

// openGate is that of a rank.
func openGate(ranks int) (*gate, error) {
	b, err := mem.Map(gateFD, gateBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, fmt.Errorf("moebench: barrier: %w", err)
	}
	s, err := mem.Foreign(b, true)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("moebench: barrier: %w", err), mem.Unmap(b))
	}
	return &gate{span: s, bytes: b, n: s.Word(0), ranks: uint64(ranks), yield: ranks > runtime.NumCPU()}, nil
}

// pass returns when all ranks have called it as often as this one.
func (g *gate) pass(ctx context.Context) error {
	goal := (g.n.Add(1) + g.ranks - 1) / g.ranks * g.ranks
	for i := 1; g.n.Load() < goal; i++ {
		if i%looks == 0 && ctx.Err() != nil {
			return fmt.Errorf("barrier: %w", context.Cause(ctx))
		}
		runtime.Gosched() // to the engine's worker
		if g.yield {
			cpu.Yield()
		}
	}
	return nil
}

func (g *gate) close() error { return errors.Join(g.span.Free(), mem.Unmap(g.bytes)) }
