package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-project/hawser/kv/pool"
	"github.com/hawser-project/hawser/kv/proto"
	"github.com/hawser-project/hawser/kv/simllm"
)

// metricWriter writes metrics in Prometheus's text format. Lines of one metric must follow each other; help is given with the first.
type metricWriter struct{ b bytes.Buffer }

const metricPrefix = "hawser_kv_"

func (m *metricWriter) gauge(name, help string, v float64, labels ...string) {
	m.head(name, help, "gauge")
	m.line(name, v, labels...)
}

func (m *metricWriter) counter(name, help string, v float64, labels ...string) {
	m.head(name, help, "counter")
	m.line(name, v, labels...)
}

func (m *metricWriter) pages(c pool.Counts) {
	m.gauge("pages", "Pages of the pool, by state.", float64(c.Free), "state", "free")
	m.gauge("pages", "", float64(c.Leased), "state", "leased")
	m.gauge("pages", "", float64(c.Pinned), "state", "pinned")
	m.gauge("pages", "", float64(c.Cached), "state", "cached")
	m.gauge("pages", "", float64(c.Quarantined), "state", "quarantined")
}

// maxPeers is how many values the label "peer" may have; the last one, "other", is all that are too many.
const maxPeers = 256

// peers writes what there is of each link.
func (m *metricWriter) peers(links func(func(name string, i proto.LinkInfo))) {
	var names []string
	all := map[string]proto.LinkInfo{}
	links(func(name string, i proto.LinkInfo) {
		x, known := all[name]
		if !known && len(names) >= maxPeers-1 {
			name = "other"
			x, known = all[name]
		}
		if !known {
			names = append(names, name)
		}
		x.Attempts, x.Granted, x.Used, x.Outstanding = x.Attempts+i.Attempts, x.Granted+i.Granted, x.Used+i.Used, x.Outstanding+i.Outstanding
		all[name] = x
	})
	for _, g := range []struct {
		name, help string
		value      func(proto.LinkInfo) float64
	}{
		{"credits", "Source pages that the decoder may still ask for.", func(i proto.LinkInfo) float64 { return float64(i.Granted - i.Used) }},
		{"peer_attempts", "Live attempts of a link.", func(i proto.LinkInfo) float64 { return float64(i.Attempts) }},
		{"peer_outstanding", "Writes to a decoder that are posted and not completed.", func(i proto.LinkInfo) float64 { return float64(i.Outstanding) }},
	} {
		for k, name := range names {
			help := g.help
			if k > 0 {
				help = ""
			}
			m.gauge(g.name, help, g.value(all[name]), "peer", name)
		}
	}
}

// histogram writes buckets of seconds.
func (m *metricWriter) histogram(name string, h *simllm.Histogram) {
	m.head(name, h.Help, "histogram")
	sum := uint64(0)
	for i, n := range h.Counts {
		sum += n
		le := "+Inf"
		if i < len(simllm.HistogramBounds) {
			le = strconv.FormatFloat(simllm.HistogramBounds[i].Seconds(), 'g', -1, 64)
		}
		m.line(name+"_bucket", float64(sum), "le", le)
	}
	m.line(name+"_sum", h.Sum.Seconds())
	m.line(name+"_count", float64(sum))
}

func (m *metricWriter) head(name, help, kind string) {
	if help != "" {
		fmt.Fprintf(&m.b, "# HELP %s%s %s\n# TYPE %[1]s%[2]s %[4]s\n", metricPrefix, name, help, kind)
	}
}

func (m *metricWriter) line(name string, v float64, labels ...string) {
	m.b.WriteString(metricPrefix + name)
	for i := 0; i+1 < len(labels); i += 2 {
		sep := ","
		if i == 0 {
			sep = "{"
		}
		fmt.Fprintf(&m.b, "%s%s=%q", sep, labels[i], labels[i+1])
	}
	if len(labels) > 0 {
		m.b.WriteByte('}')
	}
	fmt.Fprintf(&m.b, " %s\n", strconv.FormatFloat(v, 'g', -1, 64))
}

// serveMetrics answers at an address until the returned function is called.
func serveMetrics(addr string, t target) (down func() error, err error) {
	if strings.HasPrefix(addr, ":") {
		addr = "127.0.0.1" + addr
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, usage("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) {
		var m metricWriter
		t.metrics(&m)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(m.b.Bytes()) // the other side is gone otherwise
	})
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			_ = s.Close()
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("--metrics: %w", err)
		}
		return nil
	}, nil
}
