package main

import (
	"errors"
	"fmt"
	"io"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights"
)

// weightsCmds are the commands of hawser weights.
type weightsCmds struct {
	Inspect weightsInspectCmd `cmd:"" help:"Say what a checkpoint, a layout or a plan has in it, and what is wrong with it."`
	Layout  struct {
		Gen weightsLayoutCmd `cmd:"" help:"Write the layout of a model on a mesh of ranks."`
	} `cmd:"" help:"Layouts: which tensor lies where on which rank."`
	Checkpoint struct {
		Gen weightsCheckpointCmd `cmd:"" help:"Write a checkpoint of made-up values, to try a push with."`
	} `cmd:"" help:"Checkpoints."`
	Plan     weightsPlanCmd     `cmd:"" help:"Say which rank writes what where, and what it costs, or why there is no plan."`
	Simulate weightsSimulateCmd `cmd:"" help:"Play a push between hundreds of ranks on a simulated network."`
	Serve    weightsServeCmd    `cmd:"" help:"Be a receiver, a publisher or the controller of pushes, until interrupted."`
	Push     weightsPushCmd     `cmd:"" help:"Push a version from the publishers that have joined, or from a checkpoint."`
	Verify   weightsVerifyCmd   `cmd:"" help:"Compare what receivers serve, with each other and with a checkpoint."`
	Status   weightsStatusCmd   `cmd:"" help:"List the members of a controller: state, version, epoch."`
	Rollback weightsRollbackCmd `cmd:"" help:"Serve an older version again, or decide an epoch that is in doubt."`
	Bench    weightsBenchCmd    `cmd:"" help:"Measure pushes between processes of this machine, beside a copy, files and Gloo."`
}

// weightsSchema is in every JSON result of hawser weights.
const weightsSchema = "hawser-weights/1"

// weightsHead is the begin of every JSON result of hawser weights.
type weightsHead struct {
	Schema  string `json:"schema"`
	Command string `json:"command"`
}

func weightsResult(command string) weightsHead { return weightsHead{weightsSchema, command} }

// quietFlag is part of every command of hawser weights.
type quietFlag struct {
	Quiet bool `help:"Print errors only: neither tables nor progress. The exit status and --json say the result."`
}

// hush silences what is for people.
func (f quietFlag) hush(u *ui) {
	if f.Quiet {
		u.out = io.Discard
		u.status.hushed = true
	}
}

// Exit codes of hawser weights, besides those of every command.
const (
	exitCoverage = 3 // a layout, or a pair of them, that makes no sense
	exitAborted  = 4
	exitDigest   = 5
	exitInDoubt  = 6
)

// weightsCode is the exit code of an error of packages reshard and weights; 0 for others.
func weightsCode(err error) int {
	switch {
	case errors.Is(err, weights.ErrInDoubt):
		return exitInDoubt
	case errors.Is(err, weights.ErrDigest):
		return exitDigest
	case errors.Is(err, reshard.ErrLayout), errors.Is(err, reshard.ErrCoverage), errors.Is(err, reshard.ErrLimit):
		return exitCoverage
	case errors.Is(err, weights.ErrAborted), errors.Is(err, weights.ErrNoReplica):
		return exitAborted
	case errors.Is(err, reshard.ErrFormat):
		return exitUsage
	}
	return 0
}

// bytesText is a number of bytes for people: GB are 10^9, as NICs count.
func bytesText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	}
	return fmt.Sprintf("%d B", n)
}
