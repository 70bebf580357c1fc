package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// The controller is killed between two pushes, and started again with its state: at the address that members were given, or at one that its file names.
func TestWeightsControllerKilled(t *testing.T) {
	startsMany(t)
	for name, fixed := range map[string]bool{"file": false, "port": true} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, "fsdp=2", "tp=2")
			at := fmt.Sprint("127.0.0.1:", freePort(t))
			control := func() {
				c.control(4, "--listen", at)
				if fixed {
					c.flags = []string{"--controller", at}
				}
			}
			control()
			c.join()
			c.mustPush(1)
			c.members["controller"].kill()
			control()
			c.mustPush(2)
			c.verify(2, "--all")
		})
	}
}

// A trainer is killed before a push: where others have all that it had they push without it, else the push says at once what is missing.
func TestWeightsTrainerGone(t *testing.T) {
	startsMany(t)
	for mesh, replicas := range map[string]bool{"fsdp=4": false, "dp_replicate=2,fsdp=2": true} {
		t.Run(mesh, func(t *testing.T) {
			c := newCluster(t, mesh, "tp=2")
			c.start(6)
			c.mustPush(1)
			c.members["trainer-2"].kill()
			r, stderr, code := c.push(2)
			if replicas {
				if code != exitOK || len(r["serving"].([]any)) != 1 {
					t.Errorf("exit code %d, %v: %s", code, r, stderr)
				}
				c.verify(2, "--all")
				return
			}
			if code != exitAborted {
				t.Errorf("exit code %d", code)
			}
			for _, want := range []string{"publisher 2 is gone", "model.embed_tokens.weight rows [", "lost with rank 2"} {
				if !strings.Contains(stderr, want) {
					t.Errorf("%q does not say %q", stderr, want)
				}
			}
			c.verify(1, "--all")
		})
	}
}

// pushEnd is how a push ended.
type pushEnd struct {
	r      map[string]any
	stderr string
	code   int
}

// pushSlowly begins to push version 2, and returns when a trainer writes.
func (c *cluster) pushSlowly(trainer string) (*exec.Cmd, <-chan pushEnd) {
	c.Helper()
	over := make(chan pushEnd, 1)
	cmd, _ := command(c.T, append([]string{"weights", "push", "--json", "-", "--version", "2"}, c.flags...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Start(); err != nil {
		c.Fatal(err)
	}
	go func() {
		_ = cmd.Wait() // its exit code says it
		x := pushEnd{stderr: errs.String(), code: cmd.ProcessState.ExitCode()}
		_ = json.Unmarshal([]byte(out.String()), &x.r)
		over <- x
	}()
	c.await(trainer, "writing version 2", func(s serverState) bool { return s.Version == 2 && s.State == "writing" })
	return cmd, over
}

// A trainer is killed in mid-push. What others have, too, they send, in another epoch of the same version. Else the push aborts: who has a second copy serves the
// version before, who has none says that it has no version, until the next push.
func TestWeightsTrainerKilled(t *testing.T) {
	startsMany(t)
	for _, x := range []struct {
		mesh             string
		replicas, shadow bool
	}{{"dp_replicate=2,fsdp=2", true, false}, {"fsdp=4", false, true}, {"fsdp=4", false, false}} {
		t.Run(fmt.Sprint(x.mesh, " shadow=", x.shadow), func(t *testing.T) {
			c := newCluster(t, x.mesh, "tp=2")
			c.train = []string{"--stage-pause", "100ms"}
			var more []string
			if x.shadow {
				more = append(more, "--shadow")
			}
			c.start(6, more...)
			c.mustPush(1)
			_, over := c.pushSlowly("trainer-2")
			c.members["trainer-2"].kill()
			p := <-over
			if x.replicas {
				if p.code != exitOK || number(t, p.r, "repairs") != 1 {
					t.Errorf("exit code %d, %v: %s", p.code, p.r, p.stderr)
				}
				c.verify(2, "--all")
				return
			}
			if p.code != exitAborted || !strings.Contains(p.stderr, "publisher 2") || !strings.Contains(p.stderr, "lost with rank 2") {
				t.Errorf("exit code %d: %s", p.code, p.stderr)
			}
			for r := range c.ranks {
				name := fmt.Sprint("rank-", r)
				if x.shadow {
					c.await(name, "an abort", func(s serverState) bool {
						return s.State == "committed" && s.Version == 1 && s.Epoch == uint64(number(t, p.r, "epoch"))
					})
				} else {
					c.await(name, "an abort", func(s serverState) bool { return s.State == "failed" })
				}
			}
			if x.shadow {
				c.verify(1, "--all")
			}
			c.trainer(2)
			c.mustPush(2)
			c.verify(2, "--all")
		})
	}
}

// A rank joins when a version is out already, in an instance of its own: it gets it from a rank that serves it, without a trainer.
func TestWeightsRankJoins(t *testing.T) {
	startsMany(t)
	c := newCluster(t, "fsdp=2", "inst=2,tp=1")
	c.control(0, "--copy")
	for r := range c.trainers {
		c.trainer(r)
	}
	c.rank(0)
	c.mustPush(1)
	for r := range c.trainers {
		c.members[fmt.Sprint("trainer-", r)].end(t)
	}
	c.rank(1)
	c.awaitVersion("rank-1", 1)
	c.verify(1, "--all")
}

// Ctrl-C ends the command that ordered a push, not the push: trainers and ranks commit it, and take the next one.
func TestWeightsPushInterrupted(t *testing.T) {
	startsMany(t)
	c := newCluster(t, "fsdp=2", "tp=2")
	c.train = []string{"--stage-pause", "100ms"}
	c.start(4, "--shadow")
	c.mustPush(1)
	cmd, over := c.pushSlowly("trainer-0")
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	p := <-over
	if p.code != exitFailure || !strings.Contains(p.stderr, "interrupted") {
		t.Errorf("exit code %d: %s", p.code, p.stderr)
	}
	for r := range c.ranks { // what was ordered goes on
		c.awaitVersion(fmt.Sprint("rank-", r), 2)
	}
	c.verify(2, "--all")
	c.mustPush(1)
	c.verify(1, "--all")
}
