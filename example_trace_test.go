package hawser_test

import (
	"context"
	"fmt"
	"log"

	"github.com/hawser-project/hawser"
)

// What happened and how long it took can be asked at any time. Trace tells it as it happens.
func ExampleTrace() {
	ctx := context.Background()
	ended := make(chan hawser.TraceOp, 1)
	a, err := hawser.Open(ctx, hawser.Options{Trace: &hawser.Trace{Ended: func(op hawser.TraceOp) { ended <- op }}})
	if err != nil {
		log.Fatal(err)
	}
	b, err := hawser.Open(ctx, hawser.Options{Name: "b"})
	if err != nil {
		log.Fatal(err)
	}
	p, err := a.Connect(ctx, b.Addr())
	if err != nil {
		log.Fatal(err)
	}
	tr, err := a.Signal(hawser.Signal{To: p, Imm: 7})
	if err != nil {
		log.Fatal(err)
	}
	if err := tr.Wait(ctx); err != nil {
		log.Fatal(err)
	}
	op := <-ended
	fmt.Println("traced:", op.Op, "to", op.Peer.Name(), "in less than a second:", op.Took.Seconds() < 1)

	st := a.Stats()
	for _, ps := range st.Peers {
		fmt.Printf("%s over %s: %d immediates sent, degraded: %q\n", ps.Name, ps.Path, ps.TxImms, ps.Degraded)
	}
	fmt.Println("followed with the clock:", st.Latency.Wire.Count, "of", st.Ops.Ended)

	flight, err := a.Flight()
	if err != nil {
		log.Fatal(err)
	}
	for _, ev := range flight {
		fmt.Println("recorded:", ev.Kind)
	}
	if err := a.Close(ctx); err != nil {
		log.Fatal(err)
	}
	if err := b.Close(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// traced: signal to b in less than a second: true
	// b over shm: 1 immediates sent, degraded: ""
	// followed with the clock: 1 of 1
	// recorded: link up
	// recorded: peer up
	// recorded: op
}
