package weights

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
	"github.com/hawser-project/hawser/provider/sim"
	"github.com/hawser-project/hawser/weights/stage"
)

// grants are what each publisher has imported: the serial of the descriptors, and the regions made of them.
func (w *world) grants() (serials []uint64, regions []*hawser.Remote) {
	for _, p := range w.pubs {
		for _, x := range w.recs {
			p.mu.Lock()
			if f := p.remotes[x.eng.ID()]; f != nil {
				serials, regions = append(serials, f.serial), append(regions, f.regions...)
			}
			p.mu.Unlock()
		}
	}
	return serials, regions
}

// TestGrantCount: one push after the other uses what was granted and imported for the first one. After an abort everything is granted anew, once.
func TestGrantCount(t *testing.T) {
	if race && testing.Short() {
		t.Skip("it moves much: minutes under the race detector")
	}
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{}, change{})
		w.mustPush(1)
		serials, regions := w.grants()
		if len(serials) != len(w.pubs)*len(w.recs) || len(regions) != len(serials) {
			t.Fatalf("%d grants of %d regions, want one of each publisher for each receiver", len(serials), len(regions))
		}
		same := func(v Version) {
			t.Helper()
			w.mustPush(v)
			s, r := w.grants()
			for i := range serials {
				if s[i] != serials[i] || r[i] != regions[i] {
					t.Errorf("v%d: grant %d is another one: serial %d, was %d", v, i, s[i], serials[i])
				}
			}
		}
		for v := Version(2); v <= 5; v++ {
			same(v)
		}
		s := w.pushSlowly(6)
		s.release(0)
		s.verified(1)
		s.cancel()
		s.wg.Wait()
		if !errors.Is(s.err, ErrAborted) {
			t.Fatal(s.err)
		}
		w.settled()
		w.idle()
		w.mustPush(7)
		old := serials
		serials, regions = w.grants()
		for i := range serials {
			if serials[i] <= old[i] {
				t.Errorf("grant %d has serial %d after an abort, had %d before", i, serials[i], old[i])
			}
		}
		same(8)
	})
}

// TestStalledTrainer: a trainer that does not get ready in time is named, the push ends, and nothing of it is under way any more.
func TestStalledTrainer(t *testing.T) {
	onNetworks(t, func(t *testing.T, open network) {
		w := newWorld(t, open, toy{}, change{shadow: true, controller: func(o *ControllerOptions) { o.Limits.Push = time.Second }})
		w.mustPush(1)
		s := w.pushSlowly(2)
		for i, g := range s.gates {
			for k := range s.stages() {
				if i != 2 || k != s.stages()-1 {
					g <- k
				}
			}
		}
		eventually(t, func() error { // and status says so while it lasts
			for _, m := range w.c.Status().Members {
				if x := m.Waiting; x != nil && x.Have > 0 && x.Have < x.Want && len(x.Missing) == 1 && x.Missing[0].Publisher == 2 {
					return nil
				}
			}
			return errors.New("no receiver waits for publisher 2")
		})
		s.wg.Wait()
		last := w.pubs[2].Stages()[s.stages()-1]
		if !errors.Is(s.err, ErrAborted) || !strings.Contains(s.err.Error(), "stage "+last+": ") || !strings.Contains(s.err.Error(), "missing: publisher 2 (") {
			t.Errorf("update ends with %v", s.err)
		}
		t.Log(s.err)
		for i, err := range s.errs {
			if !errors.Is(err, ErrAborted) {
				t.Errorf("publisher %d: push ends with %v", i, err)
			}
			if n := w.pubs[i].eng.Stats().Inflight; n != 0 {
				t.Errorf("publisher %d: %d operations are in flight", i, n)
			}
		}
		w.settled()
		w.check(1)
	})
}

// TestRailLoss: a card of a trainer dies in the middle of a push, and then one of a receiver: what was under way goes over the others, and every byte is right, whether
// connections keep the order or not.
func TestRailLoss(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		t.Run(fmt.Sprint("ordered=", ordered), func(t *testing.T) {
			f := sim.New(sim.Config{Seed: 1, NICs: 2, NIC: sim.NIC{Ordered: ordered}})
			open := func(t testing.TB, name string) *hawser.Engine {
				return openEngine(t, hawser.Options{
					Name: name, Providers: []provider.Provider{f.Provider(name)}, Rails: []hawser.Rail{{Provider: "sim", Device: hawser.AllDevices}},
				})
			}
			w := newWorld(t, open, toy{rows: 512, cols: 512}, change{receiver: func(o *ReceiverOptions) { o.Verify = stage.All }, publisher: func(o *PublisherOptions) { o.Verify = stage.All }})
			w.mustPush(1)
			for i, card := range []string{"trainer-1/nic0", "rank-0/nic1"} {
				s := w.pushSlowly(Version(2 + i))
				s.release(0, 1)
				s.verified(1)
				f.Fail(card) // writes of stage 1 may be under way
				s.rest(2)
				s.wg.Wait()
				if err := errors.Join(append(s.errs, s.err)...); err != nil {
					t.Fatalf("without %s: %v", card, err)
				}
				w.check(s.v)
				eng := []*hawser.Engine{w.pubs[1].eng, w.recs[0].eng}[i]
				if !slices.ContainsFunc(eng.Stats().Rails, func(r hawser.RailStats) bool { return r.Dead && r.Losses > 0 }) {
					t.Errorf("no rail of %s has lost a connection", strings.Split(card, "/")[0])
				}
				t.Logf("without %s: %d repairs", card, s.report.Repairs)
			}
		})
	}
}
