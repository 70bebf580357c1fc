package trace

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// Config of Generate. The zero value makes an hour of a conversation service, about 12,000 requests.
type Config struct {
	Seed     uint64
	Span     time.Duration // arrivals end after it; DefaultSpan when 0
	Requests int           // at most this many; no limit when 0
}

// DefaultSpan is as long as the trace that the generator imitates.
const DefaultSpan = 3537 * time.Second

// The generator imitates a published trace of a conversation service. A fresh conversation starts with a prompt; each later
// turn repeats the prompt before, longer by a growth, after a gap. These constants and the quantile tables below are fitted to it.
const (
	freshPerSecond = 2.15 // Poisson
	nextTurn       = 0.39 // probability that a request is followed by another turn
	longestPrompt  = 126195
	arrivalStep    = 3 * time.Second // arrivals are floored to it: bursts
)

// quantiles is a distribution: value at each quantile, log-linear in between.
type quantiles []struct{ q, value float64 }

var (
	freshPrompt = quantiles{{0, 890}, {.10, 905}, {.25, 1400}, {.50, 6000}, {.75, 13056}, {.90, 25561}, {.99, 89869}, {1, 126195}}
	turnGrowth  = quantiles{{0, 1}, {.10, 63}, {.25, 260}, {.50, 471}, {.75, 831}, {.90, 3000}, {.99, 14000}, {1, 30000}}
	turnGap     = quantiles{{0, 3}, {.01, 12}, {.10, 39}, {.25, 66}, {.50, 123}, {.75, 267}, {.90, 474}, {.99, 1458}, {1, 3000}} // s
	output      = quantiles{{0, 1}, {.01, 3}, {.10, 24}, {.25, 156}, {.50, 350}, {.75, 472}, {.90, 597}, {.99, 1120}, {1, 2000}}
)

func (q quantiles) draw(r *rand.Rand) float64 {
	u := r.Float64()
	i := 1
	for u > q[i].q {
		i++
	}
	a, b := q[i-1], q[i]
	return math.Exp(math.Log(a.value) + (u-a.q)/(b.q-a.q)*math.Log(b.value/a.value))
}

// turn is one request to come: the heap below orders them by time, so that the hash ids grow with it.
type turn struct {
	at     time.Duration
	input  int
	parent []uint64 // the hashes of the turn before
	order  int      // of creation: breaks ties, so that a seed gives one trace
}

type turns []turn

func (t turns) Len() int { return len(t) }
func (t turns) Less(i, j int) bool {
	return t[i].at < t[j].at || t[i].at == t[j].at && t[i].order < t[j].order
}
func (t turns) Swap(i, j int) { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)   { *t = append(*t, x.(turn)) }
func (t *turns) Pop() any {
	last := (*t)[len(*t)-1]
	*t = (*t)[:len(*t)-1]
	return last
}

// Generate makes a trace in order of arrival. It is a pure function of its Config, and a smaller Requests gives a prefix.
func Generate(c Config) []Request {
	if c.Span == 0 {
		c.Span = DefaultSpan
	}
	r := rand.New(rand.NewPCG(c.Seed, 0x6861777365720001)) // the second word only separates this use of the seed from others
	var (
		all    []Request
		queue  turns
		fresh  time.Duration // arrival of the next fresh conversation
		order  int
		nextID = uint64(1) // 0 is the block that all prompts begin with
	)
	later := func(at time.Duration, input int, parent []uint64) {
		order++
		heap.Push(&queue, turn{at, input, parent, order})
	}
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	fresh = seconds(r.ExpFloat64() / freshPerSecond)
	for c.Requests == 0 || len(all) < c.Requests {
		for fresh < c.Span && (len(queue) == 0 || fresh <= queue[0].at) {
			later(fresh, int(freshPrompt.draw(r)), nil)
			fresh += seconds(r.ExpFloat64() / freshPerSecond)
		}
		if len(queue) == 0 {
			break
		}
		t := heap.Pop(&queue).(turn)
		if t.at >= c.Span {
			break
		}
		req := Request{
			Arrival: t.at.Truncate(arrivalStep),
			Input:   t.input,
			Output:  int(output.draw(r)),
			Hashes:  slices.Grow(slices.Clone(t.parent), blocks(t.input)),
		}
		for len(req.Hashes) < blocks(t.input) {
			id := nextID
			if len(req.Hashes) == 0 {
				id = 0
			} else {
				nextID++
			}
			req.Hashes = append(req.Hashes, id)
		}
		all = append(all, req)
		if r.Float64() < nextTurn {
			gap, grown := seconds(turnGap.draw(r)), t.input+int(math.Round(turnGrowth.draw(r)))
			if grown <= longestPrompt {
				later(t.at+gap, grown, req.Hashes[:t.input/BlockTokens])
			}
		}
	}
	return all
}
