package versus

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Alltoall is the rows of an MoE layer, which peers exchange as package moe does: which expert they are for, by the file of a routing; and
// how long they are, in bytes.
type Alltoall struct {
	Ranks    int    `json:"ranks"`
	Routing  string `json:"routing"`
	Dispatch int    `json:"dispatch"`
	Combine  int    `json:"combine"`
}

// alltoall is the scenario of an [Exchanger], which no [Case] has.
const alltoall Scenario = "alltoall"

// Exchanger is the driver of a peer that exchanges the rows of one routing again and again; between two calls its processes are stopped.
// Owned by one goroutine.
type Exchanger struct {
	Name, Version, Settings string
	process                 *process
}

// Exchanged is what a run came to: times of each step in microseconds, each the longest of all ranks.
type Exchanged struct {
	Whole, Forth, Back []float64
	CPU                float64 // seconds, of all processes
}

// Exchangers are the names of the peers that can be an [Exchanger].
func Exchangers() []string { return []string{"mpi", "gloo"} }

// NewExchanger installs and starts a peer, over shm or tcp. Errors are those of the peer: it cannot be installed, or does not run here.
// python has torch, for gloo.
func NewExchanger(ctx context.Context, env *Env, name, path, python string, w Alltoall) (x *Exchanger, err error) {
	x = &Exchanger{Name: name}
	defer func() {
		if err != nil {
			x.Close()
			x, err = nil, fmt.Errorf("versus: %s: %w", name, err)
		}
	}()
	var cmd command
	switch name {
	case "mpi":
		cmd, err = mpiAlltoall(ctx, env, path, w.Ranks)
	case "gloo":
		cmd = command{Args: []string{python, filepath.Join(env.dir, "src", "alltoall.py")}, Env: []string{"GLOO_SOCKET_IFNAME=lo", "TMPDIR=" + env.tmp()}}
	default:
		err = errors.New("there is no such peer")
	}
	if err != nil {
		return x, err
	}
	if x.process, err = start(name, cmd); err != nil {
		return x, err
	}
	a, err := x.process.ask(ctx, request{Op: opOpen, Opening: &Opening{Scenario: alltoall, Transport: path, Seed: 1, Alltoall: &w}}, openLimit)
	if err != nil {
		return x, err
	}
	x.Version, x.Settings = a.Version, a.Settings
	x.process.pause()
	return x, nil
}

// mpiAlltoall is how to start c/alltoall.c. Ranks that are more than the processors yield while they wait.
func mpiAlltoall(ctx context.Context, env *Env, path string, ranks int) (command, error) {
	all, _ := Choose([]string{"openmpi"})
	p := all[0]
	p.Name, p.C = "alltoall", "alltoall.c"
	if err := env.install(ctx, p); err != nil {
		return command{}, err
	}
	k := Case{Path: path}
	network := mpiNetwork(k)
	if ranks > runtime.NumCPU() {
		network = append(network, "--mca", "mpi_yield_when_idle", "1")
	}
	n := strconv.Itoa(ranks)
	args := []string{filepath.Join(env.venv(), "bin", "mpirun"), "-n", n, "--host", "localhost:" + n, "--stdin", "none", "--bind-to", "none"}
	return command{
		Args: append(append(args, network...), env.bin(p.Name)),
		Env:  append(p.Env(env, k), "HAWSER_MPI="+strings.Join(network, " "), "TMPDIR="+env.tmp()),
	}, nil
}

// Run exchanges the rows so many times, after some that do not count.
func (x *Exchanger) Run(ctx context.Context, warm, steps int) (Exchanged, error) {
	a, err := x.ask(ctx, request{Op: opRun, Warm: warm, Steps: steps})
	if err == nil && (len(a.Whole) != steps || len(a.Forth) != steps || len(a.Back) != steps) {
		err = fmt.Errorf("versus: %s: run: %d steps were timed, want %d", x.Name, len(a.Whole), steps)
	}
	return Exchanged{Whole: a.Whole, Forth: a.Forth, Back: a.Back, CPU: a.CPU}, err
}

// Verify compares every byte that the last Run was to write, and overwrites them.
func (x *Exchanger) Verify(ctx context.Context) error {
	a, err := x.ask(ctx, request{Op: opVerify})
	if err == nil && a.Corrupt > 0 {
		err = fmt.Errorf("versus: %s: %w: %d bytes of the receivers' memory are wrong", x.Name, errCorrupt, a.Corrupt)
	}
	return err
}

func (x *Exchanger) ask(ctx context.Context, q request) (reply, error) {
	x.process.resume()
	defer x.process.pause()
	a, err := x.process.ask(ctx, q, runLimit)
	if err != nil {
		err = fmt.Errorf("versus: %s: %w", x.Name, err)
	}
	return a, err
}

// Close ends the driver. The Exchanger cannot be used afterwards.
func (x *Exchanger) Close() {
	if x.process != nil {
		x.process.end(false)
		x.process = nil
	}
}
