//go:build soak

package soak

import (
	"fmt"
	"slices"
	"time"
)

// quiet ends a round: everything works again; whatever was under way ends, and nothing may be wrong or left behind.
func (c *cluster) quiet() {
	_ = c.step(orderPause) && c.step(orderSettle) && c.step(orderConnect) && c.barrier() && c.post() && c.held()
}

// barrier lets all members go through a barrier.
func (c *cluster) barrier() bool {
	c.rounds++
	_, ok := c.all(order{What: orderBarrier, Round: c.rounds})
	return ok
}

func (c *cluster) step(what string) bool {
	_, ok := c.all(order{What: what})
	return ok
}

// post compares which messages were sent without error with those that were received.
func (c *cluster) post() bool {
	type pair struct{ from, to string }
	sent, received := map[pair]map[uint64]bool{}, map[pair]map[uint64]bool{}
	add := func(m map[pair]map[uint64]bool, k pair, numbers []uint64) {
		if m[k] == nil {
			m[k] = map[uint64]bool{}
		}
		for _, n := range numbers {
			m[k][n] = true
		}
	}
	for end := time.Now().Add(hang); ; time.Sleep(5 * time.Millisecond) {
		replies, ok := c.all(order{What: orderMail})
		if !ok {
			return false
		}
		var here []string
		for _, r := range replies {
			here = append(here, r.Mail.ID)
			for to, numbers := range r.Mail.Sent {
				add(sent, pair{r.Mail.ID, to}, numbers)
			}
			for from, numbers := range r.Mail.Received {
				add(received, pair{from, r.Mail.ID}, numbers)
			}
		}
		lost := ""
		for k, numbers := range sent {
			if !slices.Contains(here, k.from) || !slices.Contains(here, k.to) {
				continue
			}
			for n := range numbers {
				if !received[k][n] {
					lost = fmt.Sprintf("message %d from %s to %s was sent without error, but did not arrive", n, k.from, k.to)
				}
			}
		}
		if lost == "" {
			return true
		}
		if time.Now().After(end) {
			c.wrong("%s", lost)
			return false
		}
	}
}

// held compares what the processes hold with what a process in the same place held at first.
func (c *cluster) held() bool {
	for end := time.Now().Add(hang / 4); ; time.Sleep(20 * time.Millisecond) {
		replies, ok := c.all(order{What: orderMeasure})
		if !ok {
			return false
		}
		over := ""
		for i, s := range c.seats {
			u := replies[i].Usage
			if s.fresh == nil {
				s.fresh = u
			}
			if more := u.more(*s.fresh); more != "" {
				over += fmt.Sprintf("%s holds %s; ", s.p.name, more)
			}
		}
		if over == "" {
			return true
		}
		if time.Now().After(end) {
			c.wrong("in a quiet time, as at the beginning, %s", over)
			return false
		}
	}
}
