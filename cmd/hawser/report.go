package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/kv/simllm"
)

// replayReport is the report of the decoders and what only its starter knows.
type replayReport struct {
	simllm.Report

	Path       string                `json:"path"`     // network that the engine chose
	Provider   string                `json:"provider"` // asked for; empty: the best that works
	Rails      string                `json:"rails"`    // prefill side, decode side; the own ones of kv decode
	Scale      float64               `json:"scale"`
	Prefillers int                   `json:"prefillers,omitempty"`
	Decoders   int                   `json:"decoders,omitempty"`
	Prefill    *simllm.PrefillReport `json:"prefill,omitempty"` // of all prefillers that were not killed
	Faults     []injected            `json:"faults,omitempty"`
	PeerDeath  float64               `json:"peer_death_ms"` // of the kill, else of the stop: until the last decoder knew

	RSSMB     float64       `json:"rss_mb"`        // the largest process, 10^6 bytes
	CPUPerGiB float64       `json:"cpu_s_per_gib"` // of all processes, content and checks included
	Machine   bench.Machine `json:"machine"`
	Revision  string        `json:"revision"`
	Command   []string      `json:"command"`
}

// injected is a fault that was asked for.
type injected struct {
	Kind    string  `json:"kind"`
	Process string  `json:"process"`
	At      float64 `json:"at_s"`       // after the begin of the arrivals
	Noticed float64 `json:"noticed_ms"` // until the last decoder knew
}

// Kinds of injected.
const (
	killFault = "kill-prefiller"
	stopFault = "stop-prefiller"
	joinFault = "join"
)

func newReport(r decoded, f *kvFlags, rails string) *replayReport {
	return &replayReport{
		Report: r.Report(), Path: r.Path, Provider: string(f.Provider), Rails: rails, Scale: f.Scale,
		Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args,
	}
}

// addPrefill adds what one prefiller reported.
func (r *replayReport) addPrefill(p *simllm.PrefillReport) {
	r.LeakedPages += p.LeakedPages
	if r.Prefill == nil {
		sum := *p
		r.Prefill = &sum
		return
	}
	s := r.Prefill
	if layers := s.Layers + p.Layers; layers > 0 {
		s.FillBound = (s.FillBound*float64(s.Layers) + p.FillBound*float64(p.Layers)) / float64(layers)
	}
	s.Attempts += p.Attempts
	s.Done += p.Done
	s.Stopped += p.Stopped
	s.Bytes += p.Bytes
	s.LeakedPages += p.LeakedPages
	s.Tokens += p.Tokens
	s.Cached += p.Cached
	s.Preempted += p.Preempted
	s.Passes += p.Passes
	s.Layers += p.Layers
}

// verdict says what is wrong with a replay, nil when nothing is. Requests may fail only when a fault was injected.
func (r *replayReport) verdict() error {
	var faults []string
	wrong := func(bad bool, format string, args ...any) {
		if bad {
			faults = append(faults, fmt.Sprintf(format, args...))
		}
	}
	wrong(r.CorruptBytes > 0, "%d corrupt bytes", r.CorruptBytes)
	wrong(r.LeakedPages > 0, "%d leaked pages", r.LeakedPages)
	wrong(r.QuarantinedPages > 0, "%d pages still quarantined", r.QuarantinedPages)
	wrong(r.Failed > 0 && len(r.Faults) == 0, "%d of %d requests failed (%s): --log FILE says why", r.Failed, r.Requests, causes(r.Causes))
	wrong(r.Requests == 0, "no request arrived before --duration was over")
	if r.Verify != string(simllm.VerifyOff) {
		missing := r.Requests - r.VerifiedRequests - r.Failed - r.Cancelled
		wrong(missing != 0, "%d requests are neither verified, failed nor cancelled", missing)
	}
	if len(faults) == 0 {
		return nil
	}
	var errs []error
	for _, f := range faults {
		errs = append(errs, errors.New(f))
	}
	return fmt.Errorf("replay: %w", errors.Join(errs...))
}

func causes(m map[string]int) string {
	text := ""
	for _, cause := range slices.Sorted(maps.Keys(m)) {
		if text != "" {
			text += ", "
		}
		text += fmt.Sprintf("%d: %s", m[cause], cause)
	}
	return text
}

// printReport prints the report as a table of two columns.
func printReport(u *ui, title string, r *replayReport) {
	row := func(name, format string, args ...any) []string { return []string{name, fmt.Sprintf(format, args...)} }
	rows := [][]string{
		row("geometry, pool", "%s, %s", r.Geometry, size(r.PoolBytes)),
		row("network, rails", "%s, %s", r.Path, r.Rails),
	}
	if r.Prefillers > 0 {
		rows = append(rows, row("processes", "%d prefillers, %d decoders", r.Prefillers, r.Decoders))
	}
	rows = append(rows, row("requests", "%d: %d verified, %d failed, %d cancelled; %d tried more than once", r.Requests, r.VerifiedRequests, r.Failed, r.Cancelled, r.Retried))
	for _, cause := range slices.Sorted(maps.Keys(r.Causes)) {
		rows = append(rows, row("  failed", "%d: %s", r.Causes[cause], cause))
	}
	rows = append(rows,
		row("corrupt bytes", "%d (verify: %s)", r.CorruptBytes, r.Verify),
		row("pages leaked, quarantined", "%d, %d", r.LeakedPages, r.QuarantinedPages),
		row("moved", "%.2f GB in %.1f s, %.3f GB/s; %.0f%% of the tokens were here before", float64(r.Bytes)/1e9, r.Wall, r.GBPerS, 100*r.ReusedShare),
	)
	if r.Done > 0 {
		rows = append(rows, row("time to first token", "p50 %.1f ms, p99 %.1f ms", r.TTFTp50, r.TTFTp99))
	}
	if r.ExposedP50 > 0 { // known on one host only
		rows = append(rows,
			row("  of it, p50", "queue %.1f ms, compute %.1f ms, exposed transfer %.2f ms", r.TTFTQueueP50, r.TTFTComputeP50, r.TTFTExposedP50),
			row("last layer to ready", "p50 %.0f us, p99 %.0f us; then to the caller p50 %.0f us", r.ExposedP50, r.ExposedP99, r.NotifyP50))
	}
	if r.Cancelled > 0 {
		rows = append(rows, row("cancel to pages free", "p50 %.2f ms, p99 %.2f ms", r.CancelP50, r.CancelP99))
	}
	for _, f := range r.Faults {
		if f.Kind == joinFault {
			rows = append(rows, row(f.Kind, "%s at %.1f s", f.Process, f.At))
			continue
		}
		rows = append(rows, row(f.Kind, "%s at %.1f s; all decoders knew after %.1f ms", f.Process, f.At, f.Noticed))
	}
	if p := r.Prefill; p != nil && p.Tokens+p.Cached > 0 {
		rows = append(rows, row("prefill", "%d tokens computed, %.0f%% found in the cache, %d jobs preempted", p.Tokens, 100*float64(p.Cached)/float64(p.Tokens+p.Cached), p.Preempted))
		if p.FillBound > fillBoundShown {
			rows = append(rows, row("fill-bound", "%.0f%% of the layers: making their content took longer than their compute time", p.FillBound*100))
		}
	}
	if r.RSSMB > 0 {
		rows = append(rows, row("largest process, CPU", "%.0f MB, %.2f CPU s/GiB", r.RSSMB, r.CPUPerGiB))
	}
	u.table(title, []string{"", ""}, rows)
}

// fillBoundShown is the share of layers from which it matters that content was slow.
const fillBoundShown = 0.01
