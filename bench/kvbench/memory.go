package kvbench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/kv/layout"
	"github.com/hawser-project/hawser/kv/proto"
)

// shape is how one side holds a model, as the child is told.
type shape struct {
	Model      layout.Model
	TP         int // the model's when 0
	Ranks      int // that this process holds; all when 0
	PageTokens int // the model's when 0
	Pages      int // of every view
}

// memory is the KV memory of one process.
type memory struct {
	g       layout.Geometry
	regions []*hawser.Region
}

// build lays it out; sizes are those of the regions.
func (s *shape) build() (g layout.Geometry, sizes []int64, err error) {
	return layout.Build(layout.Spec{Model: s.Model, TP: s.TP, Ranks: s.Ranks, PageTokens: s.PageTokens, Pages: s.Pages})
}

func newMemory(eng *hawser.Engine, s shape) (*memory, error) {
	g, sizes, err := s.build()
	if err != nil {
		return nil, err
	}
	m := &memory{g: g}
	for _, n := range sizes {
		r, err := eng.Alloc(uint64(n), hawser.MemOptions{})
		if err != nil {
			return nil, fmt.Errorf("KV memory of %d bytes: %w", n, err)
		}
		m.regions = append(m.regions, r)
	}
	return m, nil
}

// scattered are page numbers in an order by chance, always the same.
func scattered(pages int) []uint32 {
	list := make([]uint32, pages)
	for i := range list {
		list[i] = uint32(i)
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(pages, func(i, k int) { list[i], list[k] = list[k], list[i] })
	return list
}

// rows calls f for the head of every step-th token, [0, tokens), in every view.
func (m *memory) rows(pages []uint32, tokens, step int, f func(row []byte, layer, plane, head, token int)) {
	for r := range m.g.Ranks {
		k := &m.g.Ranks[r]
		for l, planes := range k.Views {
			g := m.g.Groups[m.g.GroupOf(k.LayerFirst+l)]
			for plane, v := range planes {
				memory := m.regions[v.Region].Bytes()
				for token := 0; token < tokens; token += step {
					for h := range k.Heads {
						at := v.Base + int64(pages[token/g.PageTokens])*v.Page + int64(h)*v.Head + int64(token%g.PageTokens)*v.Token
						f(memory[at:at+g.HeadBytes()], k.LayerFirst+l, plane, k.HeadFirst+h, token)
					}
				}
			}
		}
	}
}

// word is the content of one word, which only this place of the cache has.
func word(layer, plane, head, token, i int) uint64 {
	x := uint64(layer)<<52 ^ uint64(plane)<<48 ^ uint64(head)<<40 ^ uint64(token)<<12 ^ uint64(i)
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	return (x ^ x>>27) * 0x94d049bb133111eb
}

func (m *memory) fill(pages []uint32, tokens int) {
	m.rows(pages, tokens, 1, func(row []byte, layer, plane, head, token int) {
		for i := 0; i < len(row); i += 8 {
			binary.LittleEndian.PutUint64(row[i:], word(layer, plane, head, token, i))
		}
	})
}

// sparse is the distance of the tokens that are looked at in every round; in the first all are.
const sparse = 16

// clear overwrites what check looks at.
func (m *memory) clear(pages []uint32, tokens, step int) {
	m.rows(pages, tokens, step, func(row []byte, _, _, _, _ int) {
		if step == 1 {
			clear(row)
			return
		}
		binary.LittleEndian.PutUint64(row[len(row)-8:], 0)
	})
}

// check compares what has come with what was filled in.
func (m *memory) check(pages []uint32, tokens, step int) error {
	wrong, first := 0, ""
	m.rows(pages, tokens, step, func(row []byte, layer, plane, head, token int) {
		i := 0
		if step > 1 {
			i = len(row) - 8
		}
		for ; i < len(row); i += 8 {
			if binary.LittleEndian.Uint64(row[i:]) != word(layer, plane, head, token, i) {
				if wrong++; wrong == 1 {
					first = fmt.Sprintf("layer %d, plane %d, head %d, token %d, byte %d", layer, plane, head, token, i)
				}
			}
		}
	})
	if wrong > 0 {
		return fmt.Errorf("%w: %d words, first of %s", proto.ErrCorrupt, wrong, first)
	}
	return nil
}

// origin is one moment on both clocks.
var origin, originNano = time.Now(), func() int64 {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // it cannot fail with this clock
	return t.Nano()
}()

// clock is a time that the processes of a host share, in nanoseconds.
func clock() int64 { return originNano + int64(time.Since(origin)) }

// onClock is a time of this process on that clock.
func onClock(t time.Time) int64 { return originNano + int64(t.Sub(origin)) }

// cpuTime is the user and system time of this process in seconds.
func cpuTime() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
