package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/hawser-project/hawser/bench"
	"github.com/hawser-project/hawser/moe/moetest"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// cli is the command line. Every command has a Run method, which gets the context, the user interface and what else it asks for.
type cli struct {
	JSON string `name:"json" placeholder:"FILE|-" help:"Write the result as JSON to FILE; '-' is standard output, and then nothing else is written there."`

	Demo demoCmd `cmd:"" help:"Move KV caches, weights and tokens of MoE layers between processes, and check every byte."`
	KV   struct {
		Replay  replayCmd  `cmd:"" help:"Start prefillers and decoders and replay a trace of requests between them."`
		Prefill prefillCmd `cmd:"" help:"Serve as a prefiller: print an address, then compute and send KV pages until interrupted or drained."`
		Decode  decodeCmd  `cmd:"" help:"Replay a trace against prefillers at their addresses."`
		PS      psCmd      `cmd:"" name:"ps" help:"List the prefillers and decoders of this user and their attempts."`
		Drain   drainCmd   `cmd:"" help:"Let a prefiller or decoder finish what it has, and end."`
		Cancel  cancelCmd  `cmd:"" help:"Cancel a request wherever it runs."`
		Plan    planCmd    `cmd:"" help:"Print which writes move a prompt between two layouts of a KV cache, or why none do."`
	} `cmd:"" name:"kv" help:"Transfer of KV caches between prefillers and decoders."`
	Weights weightsCmds `cmd:"" help:"Pushes of trained weights into the memory of inference engines."`
	MoE     struct {
		Check   moeCheckCmd   `cmd:"" help:"Do steps of MoE layers between processes, and compare every byte with what it must be."`
		Bench   moeBenchCmd   `cmd:"" help:"Measure dispatch and combine between processes, beside others that exchange the same rows; or simulate many ranks."`
		Checker moeCheckerCmd `cmd:"" hidden:""`
		Rank    moeRankCmd    `cmd:"" hidden:""`
	} `cmd:"" name:"moe" help:"Tokens to the experts of MoE layers, and back."`
	Bench struct {
		Imm     benchImmCmd     `cmd:"" help:"Writes of 8 bytes with an immediate: latency and rate."`
		Write   benchWriteCmd   `cmd:"" help:"Single writes with an immediate each."`
		Pages   benchPagesCmd   `cmd:"" help:"Paged writes, one immediate per page."`
		Scatter benchScatterCmd `cmd:"" help:"Writes to many targets in one request, one immediate per target."`
		Barrier benchBarrierCmd `cmd:"" help:"Barriers of a group of processes: latency."`
		Message benchMessageCmd `cmd:"" help:"Messages: latency and rate."`
		KV      benchKVCmd      `cmd:"" name:"kv" help:"Transfer of KV caches between processes: B1 to B8."`
		Peers   benchCrowdCmd   `cmd:"" help:"What connected idle peers cost one engine: memory, descriptors, processor time."`
		Versus  versusCmd       `cmd:"" help:"Hawser and what else moves bytes, interleaved on the same work. It installs the others into a folder that it removes."`
		Compare compareCmd      `cmd:"" help:"Two results, row by row: what changed, and whether it is more than noise."`
		Plot    plotCmd         `cmd:"" help:"Draw results as SVG."`
		Serve   benchServeCmd   `cmd:"" help:"Be the receiving process for clients on other hosts, until interrupted."`
		Receive benchPeerCmd    `cmd:"" hidden:""`
		Prefill benchPrefillCmd `cmd:"" hidden:""`
		Rank    benchRankCmd    `cmd:"" hidden:""`
		Drive   driveCmd        `cmd:"" hidden:""`
		Crowd   crowdCmd        `cmd:"" hidden:""`
	} `cmd:"" help:"Speed between processes on one host or two, against a yardstick in the same run."`
	Doctor  doctorCmd  `cmd:"" help:"Look for what keeps this machine from being fast, or from using a network, and say what to do."`
	Topo    topoCmd    `cmd:"" help:"List the networks that can be used here, and why others cannot."`
	Version versionCmd `cmd:"" help:"Print the version."`
}

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// helpShown carries kong's wish to exit after it has printed help.
type helpShown struct{ code int }

func run(args []string, stdout, stderr *os.File) (code int) {
	defer func() {
		if r := recover(); r != nil {
			h, ok := r.(helpShown)
			if !ok {
				panic(r)
			}
			code = h.code
		}
	}()
	var c cli
	parser, err := kong.New(&c,
		kong.Name("hawser"),
		kong.Description("Moves bytes between the machines of LLM systems, point to point."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: false}),
		kong.Writers(stdout, stderr),
		kong.Vars{"requests": fmt.Sprint(generatedRequests), "networks": bench.NetworkNames(), "routings": moetest.DistNames()},
		kong.Exit(func(code int) { panic(helpShown{code}) }),
	)
	if err != nil {
		return report(stderr, err)
	}
	command, err := parser.Parse(args)
	if err != nil {
		return report(stderr, usage("%w: see hawser --help", err))
	}
	u, err := newUI(c.JSON, stdout, stderr)
	if err != nil {
		return report(stderr, err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// After the first signal the second one has its default effect: it ends a program that does not stop.
	defer context.AfterFunc(ctx, stop)()
	command.BindTo(ctx, (*context.Context)(nil))
	err = command.Run(u)
	return report(stderr, errors.Join(interrupted(ctx, err), u.close()))
}

// interrupted is err, or that the user has ended the command when this is all that err says.
func interrupted(ctx context.Context, err error) error {
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case errors.Is(err, context.Cause(ctx)):
		return errors.New("interrupted")
	}
	return fmt.Errorf("interrupted: %w", err)
}

// usageError is a mistake on the command line that only the command itself could find.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usage(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// report prints an error as one line and returns the exit code.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	var v *verdict
	fmt.Fprintf(w, "hawser: %s\n", strings.ReplaceAll(explain(err), "\n", "; "))
	if errors.As(err, &v) {
		return v.code()
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	if code := weightsCode(err); code != 0 {
		return code
	}
	return exitFailure
}

// explain adds what to do where the error itself cannot know.
func explain(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return err.Error() + ": raise the limit with ulimit -n"
	case errors.Is(err, syscall.ECONNREFUSED):
		return err.Error() + ": nothing listens there: is the other side running?"
	}
	return err.Error()
}
