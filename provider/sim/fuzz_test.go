package sim_test

import (
	"errors"
	"testing"

	"github.com/hawser-project/hawser/internal/cpu"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
)

// FuzzConnect: an address that nobody offered is ErrInvalid, or refused in the end; it never becomes a connection.
func FuzzConnect(f *testing.F) {
	f.Add([]byte("sim1 and 16 bytes.."), true)
	f.Add([]byte("sim1"), false)
	f.Add([]byte{}, true)
	f.Fuzz(func(t *testing.T, addr []byte, active bool) {
		bell, err := cpu.NewParker()
		if err != nil {
			t.Fatal(err)
		}
		defer bell.Close()
		fabric := sim.New(sim.Config{Manual: true})
		p := fabric.Provider("host")
		devs, err := p.Devices(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		d, err := p.Open(t.Context(), devs[0], provider.Config{Bell: bell})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		h, own, err := d.Offer()
		if err != nil {
			t.Fatal(err)
		}
		if string(own) == string(addr) {
			return
		}
		if err := d.Connect(h, addr, active); err != nil {
			if !errors.Is(err, provider.ErrInvalid) {
				t.Fatal(err)
			}
			return
		}
		var cs [8]provider.Completion
		for more := true; more; {
			more = fabric.Step() // the last thing that happens is the end of the attempt's time
			n, err := d.Poll(cs[:])
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cs[:n] {
				if c.Kind != provider.KindPeerDown || c.Status != provider.StatusRefused {
					t.Fatalf("%v, %v", c.Kind, c.Status)
				}
				return
			}
		}
		t.Fatal("the connection is neither up nor refused")
	})
}
