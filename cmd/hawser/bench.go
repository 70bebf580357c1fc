package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hawser-project/hawser"
	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/internal/proc"
)

// benchFlags are common to all scenarios.
type benchFlags struct {
	Provider []network `placeholder:"NAME" help:"Networks to measure: ${networks} (default: shm, with --client tcp)."`
	Rounds   int       `default:"7" help:"Samples of each side; the two sides alternate (default: ${default})."`
	Rails    int       `default:"1" help:"Rails on each device of each side (default: ${default})."`
	Depth    int       `placeholder:"N" help:"Operations outstanding at once (default: by size)."`
	Poll     string    `default:"adaptive" enum:"adaptive,busy,event" help:"How the engines look for work: adaptive, busy, event (default: ${default})."`
	Seed     uint64    `default:"1" help:"Seed of the order of the blocks (default: ${default})."`
	Server   bool      `xor:"role" help:"Be the receiving process for clients, as hawser bench serve; what else says what to measure is the client's."`
	Client   []string  `xor:"role" placeholder:"HOST:PORT" help:"Measure to the servers at these addresses, one for each receiving process, instead of starting processes here."`

	benchHostFlags
}

// benchHostFlags say how one side is reached, and who may talk to it.
type benchHostFlags struct {
	Device  []string `placeholder:"NAME" help:"Devices of --provider to open: of those that hawser topo lists, or any IP address of this host (default: the address of --listen or towards --client, else the first)."`
	Listen  string   `default:"127.0.0.1:7411" placeholder:"HOST:PORT" help:"Where a server waits for clients (default: ${default}). Runs listen on other ports of the same host."`
	KeyFile string   `name:"cluster-key-file" placeholder:"FILE" help:"File with a secret that both sides share. It is needed to listen on an address that other hosts reach."`
	MaxPool size     `default:"4GiB" help:"Largest --pool that a server grants to clients (default: ${default})."`
	Log     string   `placeholder:"FILE" help:"Append what the engines of this host log to FILE."`
}

// blockFlags are for the scenarios that move blocks.
type blockFlags struct {
	Size    []size `placeholder:"SIZE" help:"Block sizes, such as 64KiB (default: a sweep)."`
	Cold    bool   `xor:"cache" help:"Spread the blocks over 1 GiB on each side, much more than the caches hold."`
	Hot     bool   `xor:"cache" help:"Use the same few blocks again and again (default)."`
	Foreign string `placeholder:"SIDES" enum:",dst,both" default:"" help:"Use memory that the engines have not made: dst (of receivers), both."`
	Pool    size   `placeholder:"SIZE" help:"Memory that the blocks are spread over, on each side (default: 1 GiB cold, 4 MiB hot, or one block)."`
	Bytes   size   `placeholder:"SIZE" help:"Bytes moved per sample (default: 256 MiB, or 131072 blocks when that is less)."`
}

// pingFlags are for the scenarios with a latency and a rate.
type pingFlags struct {
	Pings int `default:"5000" help:"Round trips per sample of the latency (default: ${default})."`
	Ops   int `placeholder:"N" help:"Operations per sample of the rate (default: 200000 immediates, 20000 messages)."`
}

type (
	benchWriteCmd struct {
		benchFlags
		blockFlags
	}
	benchPagesCmd struct {
		benchFlags
		blockFlags
		Batch int `placeholder:"N" help:"Pages of one operation (default: by size)."`
	}
	benchScatterCmd struct {
		benchFlags
		blockFlags
		Targets []int `default:"1,4,16,64" placeholder:"N" help:"Targets of one operation (default: ${default})."`
		Peers   int   `placeholder:"N" help:"Receiving processes; the targets take turns among them (default: 1, or the number of --client). With one all targets are its."`
	}
	benchImmCmd struct {
		benchFlags
		pingFlags
	}
	benchMessageCmd struct {
		benchFlags
		pingFlags
		Size []size `placeholder:"SIZE" help:"Message sizes, up to 64KiB (default: a sweep)."`
	}
	benchBarrierCmd struct {
		benchFlags
		Processes []int `placeholder:"N" help:"Members of the group, with this process (default: 2,3,4, or this one and every --client)."`
		Pings     int   `name:"barriers" default:"5000" help:"Barriers per sample (default: ${default})."`
	}

	benchServeCmd struct{ benchHostFlags }

	// benchPeerCmd is the receiving process.
	benchPeerCmd struct{}
)

// Run measures single writes.
func (c *benchWriteCmd) Run(ctx context.Context, u *ui) error {
	return c.run(ctx, u, c.blockFlags.sizes(bench.Write, bench.Config{}))
}

// Run measures paged writes.
func (c *benchPagesCmd) Run(ctx context.Context, u *ui) error {
	return c.run(ctx, u, c.blockFlags.sizes(bench.Pages, bench.Config{Batch: c.Batch}))
}

// Run measures scatters.
func (c *benchScatterCmd) Run(ctx context.Context, u *ui) error {
	if c.Peers < 0 {
		return usage("--peers: %d, want 1 or more", c.Peers)
	}
	var all []bench.Config
	for _, n := range c.Targets {
		if n < 1 {
			return usage("--targets: %d, want 1 or more", n)
		}
		all = append(all, c.blockFlags.sizes(bench.Scatter, bench.Config{Batch: n, Peers: c.Peers})...)
	}
	return c.run(ctx, u, all)
}

// Run measures immediates.
func (c *benchImmCmd) Run(ctx context.Context, u *ui) error {
	return c.measure(ctx, u, &c.pingFlags, bench.Imm, nil)
}

// Run measures messages.
func (c *benchMessageCmd) Run(ctx context.Context, u *ui) error {
	return c.measure(ctx, u, &c.pingFlags, bench.Message, c.Size)
}

func (f *benchFlags) measure(ctx context.Context, u *ui, p *pingFlags, kind bench.Kind, sizes []size) error {
	switch {
	case p.Pings < 1:
		return usage("--pings: %d, want 1 or more", p.Pings)
	case p.Ops < 0:
		return usage("--ops: %d, want 1 or more", p.Ops)
	}
	all := (&blockFlags{Size: sizes}).sizes(kind, bench.Config{Pings: p.Pings})
	for i := range all {
		all[i].Bytes = uint64(p.Ops) * all[i].Size
	}
	return f.run(ctx, u, all)
}

// Run measures barriers.
func (c *benchBarrierCmd) Run(ctx context.Context, u *ui) error {
	processes := c.Processes
	switch {
	case c.Pings < 1:
		return usage("--barriers: %d, want 1 or more", c.Pings)
	case len(processes) == 0 && len(c.Client) > 0:
		processes = []int{len(c.Client) + 1}
	case len(processes) == 0:
		processes = []int{2, 3, 4}
	}
	var all []bench.Config
	for _, n := range processes {
		if n < 2 {
			return usage("--processes: %d, want 2 or more", n)
		}
		all = append(all, bench.Config{Kind: bench.Barrier, Pings: c.Pings, Peers: n - 1})
	}
	return c.run(ctx, u, all)
}

// Run serves the measuring process.
func (benchPeerCmd) Run(ctx context.Context) error { return bench.Serve(ctx) }

// Help is about two hosts.
func (benchServeCmd) Help() string {
	return `
A serves, B measures; A has address 10.0.0.1:

  A and B: a file with the same secret, made once by: head -c 32 /dev/urandom | base64 >key
  A: hawser bench serve --listen 10.0.0.1:7411 --cluster-key-file key
  B: hawser bench pages --client 10.0.0.1:7411 --cluster-key-file key

Both are of one release. B must reach every TCP port of A. Clients take turns. What travels is not encrypted.`
}

// Run serves clients until interrupted.
func (c *benchServeCmd) Run(ctx context.Context, u *ui) error { return c.serve(ctx, u) }

func (f *benchHostFlags) host() (h bench.Host, err error) {
	h = bench.Host{Devices: f.Device, Log: f.Log}
	h.ClusterKey, err = (&hostFlags{KeyFile: f.KeyFile}).key()
	return h, err
}

func (f *benchHostFlags) serve(ctx context.Context, u *ui) error {
	h, err := f.host()
	if err != nil {
		return err
	}
	h.Listen = f.Listen
	if len(h.ClusterKey) == 0 && !loopback(f.Listen) {
		return usage("--listen %s: other hosts reach it: give --cluster-key-file, the same on both sides", f.Listen)
	}
	if f.MaxPool < 1 {
		return usage("--max-pool: %v, want 1 B or more", f.MaxPool)
	}
	var lost error
	err = bench.Server{
		Host: h, MaxPool: uint64(f.MaxPool), Tell: u.printf,
		Ready: func(addrs []string) {
			u.printf("serving at %s, one client after the other, until interrupted\n", addrs[0])
			lost = u.line(map[string]any{"addrs": addrs})
		},
	}.Run(ctx)
	if errors.Is(err, hawser.ErrInvalid) {
		return &usageError{err}
	}
	return errors.Join(err, lost)
}

// sizes are a config of every size.
func (b *blockFlags) sizes(kind bench.Kind, c bench.Config) []bench.Config {
	sizes := b.Size
	if len(sizes) == 0 {
		for _, s := range kind.Sizes() {
			sizes = append(sizes, size(s))
		}
	}
	var all []bench.Config
	for _, s := range sizes {
		c.Kind, c.Size, c.Pool, c.Bytes, c.Cold = kind, uint64(s), uint64(b.Pool), uint64(b.Bytes), b.Cold
		c.Foreign = b.Foreign
		all = append(all, c)
	}
	return all
}

// configs completes configs, for every network.
func (f *benchFlags) configs(of []bench.Config) ([]bench.Config, error) {
	// Zeros are refused that package bench would take for a default.
	switch {
	case f.Rounds < 1:
		return nil, usage("--rounds: %d, want 1 or more", f.Rounds)
	case f.Provider != nil && len(f.Provider) == 0:
		return nil, usage("--provider is empty, want names of networks")
	case f.Rails < 1:
		return nil, usage("--rails: %d, want 1 or more", f.Rails)
	}
	networks := f.Provider
	if len(networks) == 0 {
		networks = []network{"shm"}
		if len(f.Client) > 0 {
			networks = []network{"tcp"}
		}
	}
	var all []bench.Config
	for _, p := range networks {
		if p == "" {
			return nil, usage("--provider: an empty name, want names of networks")
		}
		for _, c := range of {
			c.Provider, c.Rounds, c.Rails, c.Depth, c.Poll, c.Seed = string(p), f.Rounds, f.Rails, f.Depth, f.Poll, f.Seed
			switch n := len(f.Client); {
			case n == 0:
			case c.Peers == 0:
				c.Peers = n
			case c.Peers != n:
				return nil, usage("--client: %d servers for %d receiving processes", n, c.Peers)
			}
			if err := c.Check(); err != nil {
				return nil, &usageError{err}
			}
			all = append(all, c)
		}
	}
	return all, nil
}

func (f *benchFlags) run(ctx context.Context, u *ui, of []bench.Config) error {
	if f.Server {
		return f.serve(ctx, u)
	}
	configs, err := f.configs(of)
	if err != nil {
		return err
	}
	for _, c := range configs {
		if _, err := network(c.Provider).open(ctx); err != nil {
			return err
		}
	}
	h, err := f.host()
	if err != nil {
		return err
	}
	site := bench.Site{Spec: proc.Spec{Args: []string{"bench", "receive"}}, Servers: f.Client, Host: h}
	r := bench.Report{
		Schema: bench.Schema, Machine: bench.ThisMachine(), Revision: thisVersion().Revision, Command: os.Args, Began: time.Now().UTC(),
	}
	u.printf("%s, %d cores, linux %s; %d rounds after a warm-up, hawser and the yardstick alternate; median (min .. max)\n",
		r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, f.Rounds)
	var failed error
	for i, c := range configs {
		if len(f.Client) > 0 {
			u.status.show("bench %s over %s: waiting for the server's turn (%d of %d)", c.Kind, c.Provider, i+1, len(configs))
		}
		row, err := site.Run(ctx, c, func(round, rounds int) {
			done := "warming up"
			if round > 0 {
				done = fmt.Sprintf("round %d of %d", round, rounds)
			}
			u.status.show("bench %s: %s (%d of %d)", rowName(c), done, i+1, len(configs))
		})
		if row.Ratio > 0 {
			r.Rows = append(r.Rows, row)
		}
		if err != nil {
			failed = err
			break
		}
	}
	if len(r.Rows) > 0 {
		printRows(u, r.Rows)
		if err := u.result(r); err != nil {
			return err
		}
	}
	return failed
}
