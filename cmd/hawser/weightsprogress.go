package main

import (
	"context"
	"fmt"
	"time"

	"github.com/hawser-project/hawser/weights"
)

// progressPause is how often the controller is asked.
const progressPause = 100 * time.Millisecond

// progress shows how far the push is until it is over: a line that is overwritten on a terminal; elsewhere one for each phase, and every five seconds.
func (p *pushing) progress(ctx context.Context, u *ui, over <-chan struct{}) {
	var bar pushBar
	for tick := time.NewTicker(progressPause); ; {
		defer tick.Stop()
		select {
		case <-over:
			u.status.clear()
			return
		case <-tick.C:
		}
		s, err := p.client.Status(ctx)
		if err != nil {
			continue
		}
		now := time.Now()
		phase, text := bar.text(s, now)
		u.status.step(phase, "push v%d %v: %s", p.cmd.Version, now.Sub(p.began).Round(100*time.Millisecond), text)
	}
}

// pushBar remembers what a speed needs.
type pushBar struct {
	epoch uint64
	from  time.Time // of the first bytes of the epoch
	first int64
}

// text says how far it is, and what phase that is.
func (b *pushBar) text(s *weights.Cluster, now time.Time) (phase, text string) {
	have, of := int64(0), int64(0)
	var slowest *weights.MemberStatus
	for i := range s.Members {
		m := &s.Members[i]
		have, of = have+m.Arrived.Bytes, of+m.Arrived.Of
		if m.Waiting != nil && (slowest == nil || left(m) > left(slowest)) {
			slowest = m
		}
	}
	if s.Epoch == 0 || of == 0 {
		return membersPhase(s), membersText(s)
	}
	if b.epoch != s.Epoch {
		b.epoch, b.from, b.first = s.Epoch, now, have
	}
	text = fmt.Sprintf("epoch %d, %s of %s", s.Epoch, bytesText(have), bytesText(of))
	if spent := now.Sub(b.from).Seconds(); spent > 0 && have > b.first {
		speed := float64(have-b.first) / spent
		text += fmt.Sprintf(", %.2f GB/s, %v to go", speed/1e9, time.Duration(float64(of-have)/speed*1e9).Round(100*time.Millisecond))
	}
	if slowest == nil {
		return "verifying", text + ", all has come"
	}
	return "writing", text + fmt.Sprintf("; receiver %d waits for %s", slowest.Rank, waitingText(slowest.Waiting))
}

func left(m *weights.MemberStatus) int64 { return m.Arrived.Of - m.Arrived.Bytes }

// waitingText names a stage and who owes most of it.
func waitingText(w *weights.Waiting) string {
	text := w.Stage
	for i, m := range w.Missing {
		if i == 3 {
			return fmt.Sprintf("%s and %d more", text, len(w.Missing)-i+w.More)
		}
		text += fmt.Sprintf(", publisher %d (%d)", m.Publisher, m.Want-m.Have)
		if m.Down {
			text += ", which is down"
		}
	}
	return text
}

// membersPhase tells states of all members apart.
func membersPhase(s *weights.Cluster) (phase string) {
	for _, m := range s.Members {
		phase = max(phase, m.State)
	}
	return phase
}

// membersText counts members by their state.
func membersText(s *weights.Cluster) string {
	type key struct{ role, state string }
	count := map[key]int{}
	var order []key
	for _, m := range s.Members {
		k := key{m.Role, m.State}
		if count[k] == 0 {
			order = append(order, k)
		}
		count[k]++
	}
	text := fmt.Sprintf("epoch %d", s.Epoch)
	for _, k := range order {
		text += fmt.Sprintf(", %d %s %s", count[k], plural(k.role, count[k]), k.state)
	}
	if s.Waits != "" {
		text += "; waits: " + s.Waits
	}
	return text
}

func plural(word string, n int) string {
	if n == 1 {
		return word
	}
	return word + "s"
}
