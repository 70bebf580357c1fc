package kv

import (
	"fmt"
	"time"

	"github.com/hawser-project/hawser"
)

// Job is one request on the prefill side. The Handler gets it with Admit and loses it with Stop.
type Job struct {
	p      *Prefiller
	link   *serveLink
	seq    uint64
	id     string
	tokens int
	imm    uint32
	dst    []uint32 // the decoder's physical page of each logical page

	// guarded by Prefiller.mu
	step     serveStep
	src      []uint32 // our physical page of each logical page; nil until Source
	complete []uint32 // per layer, logical pages that are computed
	code     Code     // why it ended
	text     string
	begun    time.Time
	computed time.Time
	layers   uint32
	late     uint32
}

// ID is the request's.
func (j *Job) ID() string { return j.id }

// Tokens is the length of the prompt.
func (j *Job) Tokens() int { return j.tokens }

// Source says in which pages the engine computes the prompt: pages[i] holds logical page i. It is called once, before the
// first pass with the job begins; pages must not change until Stop. ErrClosed: the job has been stopped.
func (j *Job) Source(pages []uint32) error {
	g := j.p.cfg.Geometry
	if len(pages) != g.Pages(j.tokens) {
		return fmt.Errorf("kv: source of request %s: %w: %d pages, %d tokens need %d", j.id, hawser.ErrInvalid, len(pages), j.tokens, g.Pages(j.tokens))
	}
	for _, i := range pages {
		if int(i) >= j.p.pages {
			return fmt.Errorf("kv: source of request %s: %w: page %d, a view has %d", j.id, hawser.ErrInvalid, i, j.p.pages)
		}
	}
	j.p.mu.Lock()
	defer j.p.mu.Unlock()
	if j.step.state != serveQueued {
		return fmt.Errorf("kv: source of request %s: job: %w", j.id, hawser.ErrClosed)
	}
	j.src = pages
	return nil
}

// Fail ends the job because the engine cannot compute it. The decoder gets the text.
func (j *Job) Fail(err error) {
	j.p.mu.Lock()
	defer j.p.mu.Unlock()
	j.fail(CodeEngine, err.Error())
}

// fail ends the job. Needs Prefiller.mu.
func (j *Job) fail(code Code, text string) {
	if j.code == 0 {
		j.code, j.text = code, text
	}
	j.p.step(j, serveEvent{kind: svFail})
}

// begin is called when a pass with the job begins. Needs Prefiller.mu.
func (j *Job) begin() {
	if j.step.state != serveQueued {
		return // already running, or stopped
	}
	if j.src == nil {
		j.fail(CodeEngine, "a pass began before the source pages were given")
		return
	}
	j.complete = make([]uint32, j.p.cfg.Geometry.Layers)
	j.begun = time.Now()
	j.p.step(j, serveEvent{kind: svStart})
}

// layerReady queues the writes of what is complete now: tokens [0, n) of a layer are computed. Needs Prefiller.mu.
func (j *Job) layerReady(layer, n int, late bool) {
	if !j.step.open() {
		return
	}
	g := j.p.cfg.Geometry
	if layer < 0 || layer >= g.Layers || n < 0 || n > j.tokens {
		j.fail(CodeEngine, fmt.Sprintf("layer %d of %d, token %d of %d", layer, g.Layers, n, j.tokens))
		return
	}
	j.layers++
	if late {
		j.late++
	}
	pages := uint32(n / g.Group.PageTokens)
	if n == j.tokens {
		pages = uint32(len(j.src)) // the last page is sent whole, however many tokens it holds
		j.computed = time.Now()    // of the layers, the last one counts
	}
	first := j.complete[layer]
	if pages <= first {
		return
	}
	j.complete[layer] = pages
	for plane := range g.Group.Planes {
		j.link.work = append(j.link.work, work{j, layer*g.Group.Planes + plane, first, pages})
	}
}
