package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A small push is simulated in every setting that is asked for, and the fixed fields say what came of it.
func TestWeightsSimulate(t *testing.T) {
	trace := filepath.Join(t.TempDir(), "trace.json")
	out, stderr, code := tool(t, "weights", "simulate", "--model", "Qwen3-0.6B", "--window", "1,2", "--order", "rotated,same", "--trace", trace, "--json", "-")
	if code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	r := decodeJSON(t, out)
	floor, expected := r["floor_ms"].(float64), r["expected_ms"].(float64)
	if r["schema"] != weightsSchema || r["command"] != "simulate" || r["simulation"] != true || floor <= 0 || expected < floor || expected > 2*floor {
		t.Errorf("%v", r)
	}
	if n := len(r["runs"].([]any)); n != 4 {
		t.Errorf("%d runs, want 4", n)
	}
	egress, ingress := r["egress"].(map[string]any), r["ingress"].(map[string]any)
	if egress["max_over_avg"].(float64) < 1 || egress["max_bytes"].(float64) <= 0 || ingress["max_bytes"].(float64) != 596115456 {
		t.Errorf("egress %v, ingress %v", egress, ingress)
	}
	b, err := os.ReadFile(trace)
	if err != nil || !json.Valid(b) || !strings.Contains(string(b), "train-3") {
		t.Errorf("trace: %v, %.100s", err, b)
	}
	if !strings.Contains(stderr, "SIMULATION") || !strings.Contains(stderr, "Assumed:") {
		t.Errorf("%s", stderr)
	}
}

// What goes wrong is part of the result.
func TestWeightsSimulateFaults(t *testing.T) {
	_, stderr, code := tool(t, "weights", "simulate", "--model", "Qwen3-0.6B", "--rails", "4", "--fail", "infer-0/nic2@30%", "--fail", "train-1=0.5")
	if code != exitOK || strings.Contains(stderr, "panic") {
		t.Errorf("exit %d: %s", code, stderr)
	}
}

func TestWeightsSimulateUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--case=none":              `no case "none"`,
		"--model=none":             "none",
		"--window=0":               "--window: 0",
		"--per-dest=0":             "--per-dest: 0",
		"--rails=17":               "--rails: 17",
		"--nic=efa --rails=2":      "--rails",
		"--src=x.json":             "without --model",
		"--plan=x.json":            "--plan goes without",
		"--nic=fast":               "--nic fast: want a rate",
		"--nic=0g":                 "--nic 0g",
		"--order=best":             "order",
		"--fail=train-1":           "--fail train-1: want HOST@50%",
		"--fail=train-1@150%":      "--fail train-1@150%",
		"--fail=train-1=2":         "a speed above 0",
		"--fail=train-1@soon":      "--fail train-1@soon",
		"--trace=/none/trace.json": "--trace",
	} {
		_, stderr, code := tool(t, append([]string{"weights", "simulate", "--model=Qwen3-0.6B"}, strings.Fields(args)...)...)
		if code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, %s, want %q", args, code, stderr, want)
		}
	}
	_, stderr, code := tool(t, "weights", "simulate", "--model=Qwen3-0.6B", "--fail=train-9@10%")
	if code != exitFailure || !strings.Contains(stderr, "there is no such host") {
		t.Errorf("no such host: exit %d, %s", code, stderr)
	}
}

// A plan from a file is played as the layouts that it was made from.
func TestWeightsSimulatePlanFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "plan")
	if _, stderr, code := tool(t, "weights", "plan", "--model=Qwen3-0.6B", "-o", file); code != exitOK {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	var took []any
	for _, from := range []string{"--model=Qwen3-0.6B", "--plan=" + file} {
		out, stderr, code := tool(t, "weights", "simulate", from, "--json", "-")
		if code != exitOK {
			t.Fatalf("%s: exit %d: %s", from, code, stderr)
		}
		r := decodeJSON(t, out)
		took = append(took, r["plan"], r["expected_ms"])
	}
	if took[0] != took[2] || took[1] != took[3] {
		t.Errorf("plan and time %v", took)
	}
}
