package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/provider"
)

// hostFlags say where one side of a transfer is and who may talk to it.
type hostFlags struct {
	Rails     int      `default:"1" help:"Rails to open on each device (default: ${default})."`
	Device    []string `placeholder:"NAME" help:"Devices of --provider to open: of those that hawser topo lists, or any IP address of this host (default: the first)."`
	Listen    string   `default:"127.0.0.1:0" placeholder:"HOST:PORT" help:"Where peers connect that cannot use the unix sockets of this host (default: ${default})."`
	Advertise []string `placeholder:"HOST:PORT" help:"Where such peers are told to connect (default: where this process listens)."`
	KeyFile   string   `name:"cluster-key-file" placeholder:"FILE" help:"File with a secret that both sides share. It is needed to listen on an address that other hosts reach."`
}

// otherHosts is the part of the help that is about two hosts.
const otherHosts = `
Without flags the two sides find each other on one host, as one user. On two hosts, A with address 10.0.0.1 and B with 10.0.0.2:

  A and B: a file with the same secret, made once by: head -c 32 /dev/urandom | base64 >key
  A: hawser kv prefill --provider tcp --device 10.0.0.1 --listen 10.0.0.1:7400 --cluster-key-file key
  B: hawser kv decode --provider tcp --device 10.0.0.2 --from 10.0.0.1:7400 --cluster-key-file key

B must reach every TCP port of A, not only that of --listen: each rail has its own. The two sides take the same --geometry and --scale. What
travels is not encrypted.`

// maxKeyFile is far above any sensible secret, bytes.
const maxKeyFile = 4096

// options turns the flags into those of an engine, but for its log.
func (h *hostFlags) options(ctx context.Context, name string, want network) (o hawser.Options, err error) {
	o = hawser.Options{Name: name, Listen: h.Listen, Advertise: h.Advertise, Require: string(want)}
	if o.ClusterKey, err = h.key(); err != nil {
		return o, err
	}
	if len(o.ClusterKey) == 0 && !loopback(h.Listen) {
		return o, usage("--listen %s: other hosts reach it: give --cluster-key-file, the same on both sides", h.Listen)
	}
	devices := h.Device
	switch {
	case len(devices) > 0 && want == "":
		return o, usage("--device needs --provider")
	case len(devices) == 0 && want == "" && h.Rails == 1:
		return o, nil
	case len(devices) == 0:
		devices = []string{""} // the first
	}
	if n := h.Rails * len(devices); h.Rails < 1 || n > maxRails {
		return o, usage("--rails: %d on each of %d devices, want 1 .. %d in all", h.Rails, len(devices), maxRails)
	}
	p, err := want.open(ctx)
	if err != nil {
		return o, err
	}
	o.Providers = []provider.Provider{p}
	for range h.Rails {
		for _, d := range devices {
			o.Rails = append(o.Rails, hawser.Rail{Provider: p.Name(), Device: d})
		}
	}
	return o, nil
}

// key reads the secret, nil without a file.
func (h *hostFlags) key() ([]byte, error) {
	if h.KeyFile == "" {
		return nil, nil
	}
	key, err := os.ReadFile(h.KeyFile)
	if err != nil {
		return nil, usage("--cluster-key-file: %w", err)
	}
	if key = bytes.TrimSpace(key); len(key) == 0 || len(key) > maxKeyFile { // an editor may have added the end of the line
		return nil, usage("--cluster-key-file: %s has %d bytes, want 1 .. %d", h.KeyFile, len(key), maxKeyFile)
	}
	return key, nil
}

// loopback reports whether only this host reaches an address. What is no address is left to the engine.
func loopback(listen string) bool {
	host, _, err := net.SplitHostPort(listen)
	ip := net.ParseIP(host)
	return err != nil || host == "localhost" || ip != nil && ip.IsLoopback()
}

// node is the engine of a process, and what is written of it.
type node struct {
	name string
	eng  *hawser.Engine
	log  *slog.Logger // nil without --log
	file *os.File     // of log
	rec  *recorder    // nil without --trace-out
}

// open opens the engine of one side.
func open(ctx context.Context, role string, f *kvFlags, s *serverFlags, h *hostFlags) (*node, error) {
	n := &node{name: cmp.Or(s.Name, fmt.Sprintf("%s-%d", role, os.Getpid()))}
	o, err := h.options(ctx, n.name, f.Provider)
	if err != nil {
		return nil, err
	}
	if f.Log != "" {
		if n.file, err = openLog(f.Log); err != nil {
			return nil, err
		}
		n.log = slog.New(slog.NewTextHandler(n.file, nil)).With("process", n.name)
		o.Log = n.log
	}
	if n.eng, err = hawser.Open(ctx, o); err != nil {
		if errors.Is(err, hawser.ErrInvalid) {
			err = &usageError{err}
		}
		return nil, errors.Join(err, n.closeLog())
	}
	if n.rec, err = newRecorder(s.TraceOut, n.name); err != nil {
		return nil, errors.Join(err, n.close(ctx))
	}
	return n, nil
}

func openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, usage("--log: %w", err)
	}
	return f, nil
}

// closeTimeout bounds the drain of an engine at the end.
const closeTimeout = 5 * time.Second

// close closes the engine, then the trace and the log. The context of the command may have ended: that is why the engine closes.
func (n *node) close(ctx context.Context) error {
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	return errors.Join(n.eng.Close(closing), n.rec.close(), n.closeLog())
}

func (n *node) closeLog() error {
	if n.file == nil {
		return nil
	}
	return n.file.Close()
}
