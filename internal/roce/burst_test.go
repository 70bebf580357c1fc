//go:build vm

package roce

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
)

// However late a receiver is, no card ever finds it without a receive request: the sender stops before, at what it was granted.
func TestStoppedReceiverIsNeverWithoutReceiveRequests(t *testing.T) {
	const (
		burst = 10_000
		small = 512 // bytes of a page: the burst is one of immediates
	)
	p := pairs(t, 1)[0]
	e := open(t, options(0, overVerbs(p)))
	r, desc := startReceiver(t, p.dev[1]+"/1")
	rem, err := e.Import(testContext(t), desc)
	if err != nil {
		t.Fatal(err)
	}
	src := alloc(t, e)
	w := hawser.WritePages{
		PageLen: small, Imm: hawser.Imm(immData),
		Src: hawser.Pages{Region: src, Stride: small}, Dst: hawser.RemotePages{Remote: rem, Stride: small},
	}
	const places = pages * page / small
	for i := range burst {
		w.Src.Indices = append(w.Src.Indices, uint32(i%places))
		w.Dst.Indices = append(w.Dst.Indices, uint32(i%places))
	}
	before := notReady(t, p.dev[:]...)
	began := time.Now()
	r.signal(t, syscall.SIGSTOP)
	tr, err := e.WritePages(w)
	if err != nil {
		r.signal(t, syscall.SIGCONT)
		t.Fatal(err)
	}
	time.Sleep(time.Second) // how long the receiver is stopped
	select {
	case <-tr.Done():
		t.Error("a burst ended while its receiver was stopped: it is no test of what happens then")
	default:
	}
	r.signal(t, syscall.SIGCONT)
	if err := tr.Wait(testContext(t)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(r.in, "await %d\n", burst)
	if got := r.line(t); got != fmt.Sprint(burst) {
		t.Errorf("the receiver counted %s, want %d", got, burst)
	}
	if n := notReady(t, p.dev[:]...) - before; n != 0 {
		t.Errorf("cards met a receiver without receive requests %d times", n)
	}
	t.Logf("%d immediates in %.1f s, 1 s of which the receiver was stopped", burst, time.Since(began).Seconds())
}
