package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-project/hawser/reshard"
	"github.com/hawser-project/hawser/weights"
)

// pair writes a checkpoint and two layouts of it.
func pair(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, dir: t.TempDir()}
	c.mustRun("checkpoint", "gen", "-o", c.file("v1"))
	c.trainers = c.layout("train", "fsdp=4", "src.json")
	c.ranks = c.layout("infer", "tp=2", "dst.json", "--preset", "vllm")
	return c
}

// rewrite makes a file of another one with a text replaced everywhere.
func (c *cluster) rewrite(from, to, text, by string) string {
	c.Helper()
	b, err := os.ReadFile(c.file(from))
	if err == nil && !bytes.Contains(b, []byte(text)) {
		err = fmt.Errorf("%s has no %q", from, text)
	}
	if err == nil {
		err = os.WriteFile(c.file(to), bytes.ReplaceAll(b, []byte(text), []byte(by)), 0o600)
	}
	if err != nil {
		c.Fatal(err)
	}
	return c.file(to)
}

func TestWeightsInspect(t *testing.T) {
	c := pair(t)
	for _, path := range []string{c.file("v1"), filepath.Join(c.file("v1"), "model.safetensors.index.json")} {
		r := decodeJSON(t, c.mustRun("inspect", path, "--json", "-"))
		if r["kind"] != "checkpoint" || number(t, r, "count") != 63 || number(t, r, "bytes") != 54146816 || len(r["problems"].([]any)) != 0 {
			t.Errorf("%s: %v, %v, %v, %v", path, r["kind"], r["count"], r["bytes"], r["problems"])
		}
	}
	r := decodeJSON(t, c.mustRun("inspect", c.file("dst.json"), "--json", "-"))
	if r["kind"] != "layout of infer" || number(t, r, "count") != 63 || len(r["ranks"].([]any)) != 2 {
		t.Errorf("%v, %v, %v", r["kind"], r["count"], r["ranks"])
	}
	if err := os.Truncate(filepath.Join(c.file("v1"), "model-00002-of-00002.safetensors"), 5000); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{c.file("v1"): "model-00002-of-00002.safetensors", c.file("nothing"): "no such file"} {
		if _, stderr, code := c.run("inspect", path); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit code %d: %s", path, code, stderr)
		}
	}
}

func TestWeightsLayoutGen(t *testing.T) {
	c := pair(t)
	text := c.mustRun("layout", "gen", "--model", "tiny", "--side", "infer", "--mesh", "inst=2,tp=2", "-o", "-")
	l, _, err := reshard.ParseLayout(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(l.Topo.Instance, []int{0, 0, 1, 1}) || len(l.Buffers) != 4 {
		t.Errorf("instances %v of %d ranks", l.Topo.Instance, len(l.Buffers))
	}
	out := c.file("x.json")
	for want, args := range map[string][]string{
		"does not divide by mesh dimension tp=3": {"--model", "tiny", "--mesh", "tp=3"},
		"mesh":                                   {"--model", "tiny", "--mesh", "tp"},
		"nobody":                                 {"--model", "nobody", "--mesh", "tp=2"},
	} {
		if _, stderr, code := c.run(append([]string{"layout", "gen", "--side", "infer", "-o", out}, args...)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%v: exit code %d: %s", args, code, stderr)
		}
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("a layout that failed has left a file")
	}
}

func TestWeightsPlan(t *testing.T) {
	c := pair(t)
	args := []string{"plan", "--src", c.file("src.json"), "--dst", c.file("dst.json")}
	r := decodeJSON(t, c.mustRun(append(args, "--json", "-", "--explain", "model.layers.0.self_attn.q_proj.weight[300,0]", "-o", c.file("a.plan"))...))
	if number(t, r, "sources") != 4 || number(t, r, "destinations") != 2 || number(t, r, "uncovered_bytes") != 0 || number(t, r, "bytes") != 54160896 {
		t.Errorf("%v", r)
	}
	list := r["explained"].([]any)
	if len(list) != 1 {
		t.Fatalf("explained: %v", list)
	}
	if x := list[0].(map[string]any); number(t, x, "rank") != 1 || number(t, x, "source_rank") != 2 || x["stage"] != "layer-0" {
		t.Errorf("row 300 of 512 is of the third of four sources, and goes to the second of two destinations: %v", x)
	}
	if info, err := os.Stat(c.file("a.plan")); err != nil || info.Size() == 0 {
		t.Errorf("-o: %v", err)
	}
	if x := decodeJSON(t, c.mustRun("inspect", c.file("a.plan"), "--json", "-")); !strings.HasSuffix(x["kind"].(string), ", from 4 ranks") || x["bytes"] != r["bytes"] || len(x["ranks"].([]any)) != 2 {
		t.Errorf("inspect of the plan: %v", x)
	}
	again := decodeJSON(t, c.mustRun(append(args, "--json", "-")...))
	if again["plan"] != r["plan"] || r["plan"] == "" {
		t.Errorf("plans %v and %v of the same layouts", r["plan"], again["plan"])
	}
	bad := c.rewrite("dst.json", "bad.json", "model.embed_tokens.weight", "model.nowhere.weight")
	worse := c.rewrite("dst.json", "worse.json", `"side"`, `"edge"`)
	gap := c.rewrite("src.json", "gap.json", `"model.norm.weight","shape":[512]`, `"model.norm.weight","shape":[256]`)
	for _, x := range []struct {
		src, dst, want string
		code           int
	}{
		{c.file("src.json"), bad, "model.nowhere.weight: the destination needs it", exitCoverage},
		{gap, c.file("dst.json"), "model.norm.weight", exitCoverage},
		{c.file("src.json"), worse, "edge", exitUsage},
		{c.file("src.json"), c.file("none.json"), "none.json", exitUsage},
	} {
		_, stderr, code := c.run("plan", "--src", x.src, "--dst", x.dst)
		if code != x.code || !strings.Contains(stderr, x.want) {
			t.Errorf("%s to %s: exit code %d, want %d with %q: %s", x.src, x.dst, code, x.code, x.want, stderr)
		}
	}
	for _, more := range [][]string{{"--explain", "model.nowhere[0]"}, {"--explain", "model.norm.weight[512]"}, {"--explain", "model.norm.weight[0"}} {
		if _, stderr, code := c.run(append(args, more...)...); code == exitOK || stderr == "" {
			t.Errorf("%v: exit code %d: %s", more, code, stderr)
		}
	}
}

func TestWeightsExitCodes(t *testing.T) {
	for want, kinds := range map[int][]error{
		exitCoverage: {weights.ErrCoverage, weights.ErrLayout, reshard.ErrLimit}, exitAborted: {weights.ErrAborted, weights.ErrNoReplica},
		exitDigest: {weights.ErrDigest, errors.Join(weights.ErrAborted, weights.ErrDigest)}, exitInDoubt: {weights.ErrInDoubt, errors.Join(weights.ErrAborted, weights.ErrInDoubt)},
		exitUsage: {reshard.ErrFormat}, 0: {errors.New("anything else")},
	} {
		for _, err := range kinds {
			if got := weightsCode(fmt.Errorf("push v1: %w", err)); got != want {
				t.Errorf("%v: exit code %d, want %d", err, got, want)
			}
		}
	}
}

// The controller is killed in mid-push: who ordered it does not know how it ends. While it runs, status says what is missing from whom.
func TestWeightsInDoubt(t *testing.T) {
	startsMany(t)
	c := newCluster(t, "fsdp=2", "tp=2")
	c.train = []string{"--stage-pause", "300ms"}
	c.start(4, "--shadow")
	c.mustPush(1)
	_, over := c.pushSlowly("trainer-0")
	for end := time.Now().Add(hang); ; {
		s := decodeJSON(t, c.mustRun(append([]string{"status", "--json", "-"}, c.flags...)...))
		if text := missingOf(s); text != "" {
			t.Log(text)
			break
		}
		if time.Now().After(end) {
			t.Fatalf("nothing is missing: %v", s)
		}
	}
	c.members["controller"].kill()
	if p := <-over; p.code != exitInDoubt || !strings.Contains(p.stderr, "not known") && !strings.Contains(p.stderr, "may go on") {
		t.Errorf("exit code %d: %s", p.code, p.stderr)
	}
}

// missingOf is what the first receiver that waits for something waits for.
func missingOf(s map[string]any) string {
	for _, m := range s["members"].([]any) {
		m := m.(map[string]any)
		w, ok := m["waiting"].(map[string]any)
		if !ok || m["of_bytes"].(float64) == 0 || len(w["missing"].([]any)) == 0 {
			continue
		}
		first := w["missing"].([]any)[0].(map[string]any)
		return fmt.Sprintf("receiver %v has %v of %v bytes, and waits for %v of publisher %v", m["rank"], m["arrived_bytes"], m["of_bytes"], w["stage"], first["publisher"])
	}
	return ""
}

// A trace has a process for each rank, and an arrow ends where one begins; the costs of a push are known when all members have said theirs.
func TestWeightsPushTrace(t *testing.T) {
	c := newCluster(t, "fsdp=2", "tp=2")
	c.start(4)
	r := c.mustPush(1, "--trace", c.file("trace.json"))
	for _, name := range []string{"skew", "grants", "cpu_seconds", "retries", "stale_immediates"} {
		if _, ok := r[name].(float64); !ok {
			t.Errorf("%s is %v", name, r[name])
		}
	}
	if r["mode"] != "in place" || r["plan"] == nil || r["provider"] == nil || number(t, r, "grants") != 4 || r["wrong_bytes"] != nil {
		t.Errorf("report %v", r)
	}
	data, err := os.ReadFile(c.file("trace.json"))
	if err != nil {
		t.Fatal(err)
	}
	var trace struct{ TraceEvents []spanEvent }
	if err := json.Unmarshal(data, &trace); err != nil {
		t.Fatal(err)
	}
	names, arrows, bars := map[string]bool{}, map[string]int{}, 0
	for _, e := range trace.TraceEvents {
		switch e.Phase {
		case "M":
			names[e.Args["name"]] = true
		case "s":
			arrows[e.ID]++
		case "f":
			arrows[e.ID] += 2
		case "X":
			bars++
		}
	}
	for _, want := range []string{"publisher 0", "publisher 1", "receiver 0", "receiver 1", "write", "receive", "flip"} {
		if !names[want] {
			t.Errorf("no track is called %q", want)
		}
	}
	for id, n := range arrows {
		if n != 3 {
			t.Errorf("arrow %s has not one begin and one end", id)
		}
	}
	if len(arrows) == 0 || bars == 0 {
		t.Errorf("%d arrows, %d bars", len(arrows), bars)
	}
}

// Of a rank whose memory differs in one byte, the bytes of one cell are wrong.
func TestWeightsWrongBytes(t *testing.T) {
	c := pair(t)
	l, _, err := readLayout(c.file("dst.json"))
	if err != nil {
		t.Fatal(err)
	}
	n, err := newNaive(c.file("v1"), 1, l)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	s, err := n.shard(1)
	if err != nil {
		t.Fatal(err)
	}
	x := weights.Content{Rank: 1, Root: s.root}
	for _, cell := range s.cells {
		x.Cells = binary.LittleEndian.AppendUint64(x.Cells, cell.sum)
	}
	if bytes, _, err := n.wrong(&x); err != nil || bytes != 0 {
		t.Errorf("%d wrong bytes in what is equal: %v", bytes, err)
	}
	x.Root, x.Cells[8*3] = "other", x.Cells[8*3]^1
	if bytes, root, err := n.wrong(&x); err != nil || bytes != int64(s.cells[3].n) || root != s.root {
		t.Errorf("%d wrong bytes, want %d: %v", bytes, s.cells[3].n, err)
	}
	x.Cells = x.Cells[:8*2]
	if bytes, _, _ := n.wrong(&x); bytes <= int64(s.cells[3].n) {
		t.Errorf("%d wrong bytes where only two cells are", bytes)
	}
}

func TestPushBar(t *testing.T) {
	s := &weights.Cluster{Epoch: 3, Members: []weights.MemberStatus{
		{Role: "receiver", Rank: 0, Arrived: weights.Arrived{Bytes: 1e9, Of: 4e9}, Waiting: &weights.Waiting{Stage: "layer-1"}},
		{Role: "receiver", Rank: 7, Arrived: weights.Arrived{Bytes: 5e8, Of: 4e9}, Waiting: &weights.Waiting{
			Stage: "layer-0", Missing: []weights.Missing{{Publisher: 5, Have: 1, Want: 4}, {Publisher: 9, Want: 2, Down: true}},
		}},
	}}
	var b pushBar
	now := time.Now()
	b.text(s, now)
	s.Members[0].Arrived.Bytes += 1e9
	phase, text := b.text(s, now.Add(time.Second))
	if want := "epoch 3, 2.50 GB of 8.00 GB, 1.00 GB/s, 5.5s to go; receiver 7 waits for layer-0, publisher 5 (3), publisher 9 (2), which is down"; text != want || phase != "writing" {
		t.Errorf("%s: %q, want %q", phase, text, want)
	}
	s.Members[0].Waiting, s.Members[1].Waiting = nil, nil
	if phase, text := b.text(s, now.Add(2*time.Second)); phase != "verifying" || !strings.Contains(text, "all has come") {
		t.Errorf("%s: %q", phase, text)
	}
	if _, text := b.text(&weights.Cluster{Waits: "publisher 2 is not there, of 4"}, now); text != "epoch 0; waits: publisher 2 is not there, of 4" {
		t.Errorf("%q", text)
	}
}
