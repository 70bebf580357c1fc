package hawser_test

import (
	"testing"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/internal/imm"
	"github.com/hawser-project/hawser/internal/wire"
)

// Who breaks a rule pays for it when it comes again, and so does who begins sessions.
func TestOffencesAreCharged(t *testing.T) {
	for name, offend := range map[string]func(*puppet){
		"none":            nil,
		"unknown message": func(x *puppet) { x.send(999, 0, nil) },
		"broken message":  func(x *puppet) { x.send(wire.TypeResolve, 0, nil) },
		"link that never was": func(x *puppet) {
			x.send(wire.TypeLink, 0, &wire.LinkNotice{Step: wire.LinkReport, Link: 7})
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, e := simPuppet(t, nil)
			used := e.CountNewcomers()
			x.up(e)
			want := float64(hawser.SessionCost)
			if offend != nil {
				offend(x)
				want += hawser.OffenceCost
			} else {
				x.send(wire.TypeBye, 0, &wire.Bye{})
			}
			x.closed()
			eventually(t, "the charge", func() bool { return used() >= want }) // it may come after the end of the connection
			if n := used(); n > want+2 {
				t.Errorf("charged %v, want %v, and a little for the connection", n, want)
			}
		})
	}
}

func TestImmediatesThatNobodyAskedForAreCharged(t *testing.T) {
	w := newWorld(t, "sim")
	a, b := w.engine(t, 0, 1), w.engine(t, 1, 1)
	p, err := a.Connect(testContext(t), b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	used := b.CountNewcomers()
	q := a.NewQueue(1024)
	for i := uint32(0); ; {
		var ends [1024]hawser.Done
		for range 1024 {
			if i <= imm.MaxUnasked && q.Signal(hawser.Signal{To: p, Imm: i}, 0) == nil {
				i++
			}
		}
		if q.Poll(ends[:]) == 0 && i > imm.MaxUnasked {
			break
		}
	}
	eventually(t, "the charge", func() bool { return used() >= hawser.OffenceCost })
}

// Connections of strangers are accepted at the pace of newcomers, those of processes of this host at once.
func TestStrangersWaitAndNeighboursDoNot(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "tcp")
	b := w.engine(t, 1, 1)
	b.StopNewcomers()
	x := newIntruder()
	defer x.leave()
	heard := make(chan error, 1)
	go func() { heard <- x.hello(testContext(t), b.ListenAddrs()[0]) }() // the listener had begun to accept one
	<-heard
	y := newIntruder()
	defer y.leave()
	if err := y.hello(testContext(t), b.ListenAddrs()[0]); err == nil {
		t.Error("a stranger was accepted")
	}
	if _, err := w.engine(t, 0, 1).Connect(testContext(t), b.Addr()); err != nil {
		t.Error(err)
	}
}
