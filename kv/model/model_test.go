package model

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var (
	attempts = flag.Int("model.attempts", 1, "attempts of the exhaustive search: 1 takes a second, 2 take half a minute")
	minutes  = flag.Int("model.minutes", 0, "minutes at most for each of the models that are too large to be searched whole")
)

// requiredEnv makes a missing tool a failure.
const requiredEnv = "MODEL_REQUIRED"

// tools skips a test where spin or its C compiler is missing, or fails it where they must be there.
func tools(t *testing.T) {
	t.Helper()
	for _, tool := range []string{"spin", "gcc"} { // spin calls gcc by this name, as preprocessor
		if _, err := exec.LookPath(tool); err == nil {
			continue
		}
		if os.Getenv(requiredEnv) != "" {
			t.Fatalf("the %s command is missing: apt-get install %s", tool, tool)
		}
		t.Skipf("the %s command is missing: apt-get install %s", tool, tool)
	}
}

// search is one run of the checker.
type search struct {
	defines []string // of the model
	compile []string // of the checker
	flags   []string // of its run
}

// exhaustive visits every state, kept whole and compared by all their bytes.
func exhaustive(attempts int, optimize string, defines ...string) search {
	return search{
		defines: append([]string{"-DNSEQ=" + strconv.Itoa(attempts)}, defines...),
		compile: []string{optimize, "-DSAFETY", "-DNOFAIR", "-DNOREDUCE"},
		flags:   []string{"-w20"},
	}
}

// sampled goes on for a time and keeps three bits of each state.
func sampled(minutes int, defines ...string) search {
	return search{
		defines: defines,
		compile: []string{"-O2", "-DSAFETY", "-DNOFAIR", "-DNOREDUCE", "-DBITSTATE"},
		flags:   []string{"-w33", "-k3", "-Q" + strconv.Itoa(minutes)},
	}
}

// fair looks for an endless run, fair to every process, that breaks a claim.
func fair(claim string, defines ...string) search {
	return search{
		defines: append([]string{"-DLIVE", "-DNSEQ=1"}, defines...),
		compile: []string{"-O1", "-DNOREDUCE", "-DNFAIR=4"},
		flags:   []string{"-w20", "-a", "-f", "-N", claim},
	}
}

type result struct {
	states, depth, errors int
	factor                string   // hash factor of a sampled search: above 100 nearly all states were told apart
	said                  string   // what was violated
	unreached             []string // statements of the model; spin does not look inside d_step
	output                string
}

func (r result) String() string {
	text := fmt.Sprintf("%d states, depth %d, %d errors", r.states, r.depth, r.errors)
	if r.factor != "" {
		text += ", hash factor " + r.factor
	}
	return text
}

var (
	reStates    = regexp.MustCompile(`(?m)^\s*(\d+) states, stored`)
	reErrors    = regexp.MustCompile(`depth reached (\d+), errors: (\d+)`)
	reFactor    = regexp.MustCompile(`hash factor: ([\d.]+)`)
	reSaid      = regexp.MustCompile(`(?m)^pan:1: (.*)$`)
	reUnreached = regexp.MustCompile(`(?m)kv\.pml:(\d+), state \d+, (".*)$`)
)

// run generates, compiles and runs the checker in a folder of its own.
func (s search) run(t *testing.T) result {
	t.Helper()
	model, err := filepath.Abs("kv.pml")
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	command := func(name string, args ...string) string {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = folder
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", cmd, err, out)
		}
		return string(out)
	}
	command("spin", append(append([]string{"-a"}, s.defines...), model)...)
	command("gcc", append(s.compile, "-w", "-DMEMLIM=4000", "-o", "pan", "pan.c")...)
	out := command("./pan", append([]string{"-E", "-m20000"}, s.flags...)...) // -E: processes may stop anywhere

	r := result{output: out}
	states, ends := reStates.FindStringSubmatch(out), reErrors.FindStringSubmatch(out)
	if states == nil || ends == nil || strings.Contains(out, "max search depth too small") {
		t.Fatalf("the search ended early:\n%s", out)
	}
	r.states, _ = strconv.Atoi(states[1])
	r.depth, _ = strconv.Atoi(ends[1])
	r.errors, _ = strconv.Atoi(ends[2])
	if m := reFactor.FindStringSubmatch(out); m != nil {
		r.factor = m[1]
	}
	if m := reSaid.FindStringSubmatch(out); m != nil {
		r.said = m[1]
	}
	for _, m := range reUnreached.FindAllStringSubmatch(out, -1) {
		if m[2] != `"-end-"` { // processes do not end
			r.unreached = append(r.unreached, "kv.pml:"+m[1]+" "+m[2])
		}
	}
	return r
}

// holds fails where the search found something.
func holds(t *testing.T, name string, s search) result {
	t.Helper()
	r := s.run(t)
	fmt.Printf("model: %s: %v\n", name, r)
	if r.errors > 0 {
		t.Errorf("%s: %s\n%s", name, r.said, r.output)
	}
	return r
}

func TestNothingBadHappens(t *testing.T) {
	tools(t)
	optimize := "-O1"
	if *attempts > 1 {
		optimize = "-O2"
	}
	r := holds(t, fmt.Sprintf("attempts: %d", *attempts), exhaustive(*attempts, optimize))
	if len(r.unreached) > 0 { // such as the assertion at the end, where nothing can happen any more
		t.Errorf("not reached:\n%s", strings.Join(r.unreached, "\n"))
	}
	if *minutes > 0 {
		holds(t, "2 prefillers, sampled", sampled(*minutes, "-DNP=2"))
		holds(t, "3 attempts, sampled", sampled(*minutes, "-DNSEQ=3"))
	}
}

func TestCancelIsAnswered(t *testing.T) {
	tools(t)
	holds(t, "cancel is answered", fair("answered"))
	holds(t, "what is cancelled ends", fair("ends"))
}

// guards are what the protocol does so that nothing bad happens, by the macro that takes it away from the model.
var guards = map[string]string{
	"MUT_TOMB_CANCEL": "a tombstone for a Cancel that came before its Dispatch",
	"MUT_TOMB_REJECT": "a tombstone for a Reject",
	"MUT_GATE":        "no write is posted behind the gate",
	"MUT_NEXT":        "what was posted before a preemption is not posted again",
	"MUT_SETTLE":      "what P says it posted is waited for",
	"MUT_EXACT":       "after a write error the link is fenced, whatever was posted",
	"MUT_FENCE":       "a fence before anything is reused",
	"MUT_STUCK":       "a fence without proof frees nothing",
	"MUT_RECHECK":     "the count is looked at again after the fence",
	"MUT_BYE":         "P says Bye only when D reports nothing live",
	"MUT_EPOCH":       "a message of another epoch is dropped",
	"MUT_HELLO":       "an epoch that ended is not opened again by its own Hello",
	"MUT_LOWWATER":    "a message below lowWater is dropped",
	"MUT_HOLDER":      "a page has a second holder",
	"MUT_PUBLISH":     "pages are published only when they are whole",
	"MUT_READY":       "an attempt that was stopped does not become ready",
	"MUT_REPEAT":      "Cancel is repeated until it is answered",
}

func TestGuardsAreNeeded(t *testing.T) {
	tools(t)
	model := source(t)
	var inModel []string
	for _, m := range regexp.MustCompile(`MUT_[A-Z_]+`).FindAllString(model, -1) {
		if !slices.Contains(inModel, m) {
			inModel = append(inModel, m)
		}
	}
	slices.Sort(inModel)
	if want := slices.Sorted(maps.Keys(guards)); !slices.Equal(inModel, want) {
		t.Fatalf("guards in the model: got %v, want %v", inModel, want)
	}
	for _, macro := range inModel {
		t.Run(macro, func(t *testing.T) {
			t.Parallel()
			s := exhaustive(1, "-O0", "-D"+macro)
			if macro == "MUT_REPEAT" {
				s = fair("answered", "-D"+macro)
			}
			r := s.run(t)
			if r.errors == 0 {
				t.Fatalf("without it nothing bad is found: %s\n%s", guards[macro], r.output)
			}
			fmt.Printf("model: without %q: %s, after %d states\n", guards[macro], r.said, r.states)
		})
	}
}

func source(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("kv.pml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
