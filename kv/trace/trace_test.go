package trace

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestReadNamesLineAndFault(t *testing.T) {
	good := `{"timestamp": 3000, "input_length": 513, "output_length": 5, "hash_ids": [0, 7]}`
	for _, c := range []struct{ name, bad, want string }{
		{"unknown field", `{"timestamp": 0, "input_length": 1, "output_length": 5, "hash_ids": [0], "x": 1}`, `unknown field "x"`},
		{"missing timestamp", `{"input_length": 1, "output_length": 5, "hash_ids": [0]}`, "field timestamp is missing"},
		{"missing output", `{"timestamp": 3000, "input_length": 1, "hash_ids": [0]}`, "field output_length is missing"},
		{"missing hashes", `{"timestamp": 3000, "input_length": 1, "output_length": 5}`, "field hash_ids is missing"},
		{"negative time", `{"timestamp": -1, "input_length": 1, "output_length": 5, "hash_ids": [0]}`, "timestamp is -1, want 0 .."},
		{"negative output", `{"timestamp": 3000, "input_length": 1, "output_length": -5, "hash_ids": [0]}`, "output_length is -5"},
		{"negative hash", `{"timestamp": 3000, "input_length": 1, "output_length": 5, "hash_ids": [-3]}`, "-3"},
		{"empty prompt", `{"timestamp": 3000, "input_length": 0, "output_length": 5, "hash_ids": []}`, "input_length is 0, want 1 .."},
		{"huge prompt", `{"timestamp": 3000, "input_length": 99999999999, "output_length": 5, "hash_ids": []}`, "want 1 .. 16777216"},
		{"too few hashes", `{"timestamp": 3000, "input_length": 1025, "output_length": 5, "hash_ids": [0, 1]}`, "has 2 ids, want 3"},
		{"too many hashes", `{"timestamp": 3000, "input_length": 512, "output_length": 5, "hash_ids": [0, 1]}`, "has 2 ids, want 1"},
		{"back in time", `{"timestamp": 2999, "input_length": 1, "output_length": 5, "hash_ids": [0]}`, "timestamp is 2999, want at least 3000"},
		{"two objects", good + good, "more data after the object"},
		{"not JSON", `hello`, "not a request"},
		{"a float", `{"timestamp": 3000.5, "input_length": 1, "output_length": 5, "hash_ids": [0]}`, "3000.5"},
		{"huge line", strings.Repeat(" ", maxLine+1), "longer than 1048576 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Read(strings.NewReader(good+"\n\n"+c.bad+"\n"), "some.jsonl", 0)
			var line *LineError
			if !errors.As(err, &line) || line.Line != 3 || line.File != "some.jsonl" {
				t.Fatalf("got %v, want an error at some.jsonl:3", err)
			}
			if !strings.HasPrefix(err.Error(), "some.jsonl:3: ") || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got %q, want it to contain %q", err, c.want)
			}
			if got, err := Read(strings.NewReader(good+"\n\n"+c.bad+"\n"), "some.jsonl", 1); err != nil || len(got) != 1 {
				t.Fatalf("with limit 1: got %d requests, %v; want 1, because the bad line is not read", len(got), err)
			}
		})
	}
}

func TestReadRefusesEmptyTrace(t *testing.T) {
	if _, err := Read(strings.NewReader("\n\n"), "none.jsonl", 0); err == nil || !strings.Contains(err.Error(), "none.jsonl: no request") {
		t.Fatalf("got %v, want an error that names the file", err)
	}
	if _, err := Open(filepath.Join(t.TempDir(), "missing"), 0); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("got %v, want ErrNotExist", err)
	}
}

func TestWriteIsReadBack(t *testing.T) {
	want := Generate(Config{Seed: 5, Requests: 300})
	var buf bytes.Buffer
	if err := Write(&buf, want); err != nil {
		t.Fatal(err)
	}
	got, err := Read(&buf, "buf", 0)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatal("requests differ after Write and Read")
	}
}

func TestGeneratePrefixAndSeed(t *testing.T) {
	all := Generate(Config{Seed: 9})
	if head := Generate(Config{Seed: 9, Requests: 500}); !reflect.DeepEqual(head, all[:500]) {
		t.Error("500 requests are not the first 500 of all")
	}
	if other := Generate(Config{Seed: 10, Requests: 500}); reflect.DeepEqual(other, all[:500]) {
		t.Error("two seeds give one trace")
	}
}

type statistics struct{ requests, mean, p50, p90, p99, output, distinct float64 }

func measure(requests []Request) statistics {
	var s statistics
	inputs := make([]int, 0, len(requests))
	seen := map[uint64]bool{}
	references := 0
	for _, r := range requests {
		inputs = append(inputs, r.Input)
		s.mean += float64(r.Input) / float64(len(requests))
		s.output += float64(r.Output) / float64(len(requests))
		references += len(r.Hashes)
		for _, h := range r.Hashes {
			seen[h] = true
		}
	}
	slices.Sort(inputs)
	at := func(q float64) float64 { return float64(inputs[int(q*float64(len(inputs)-1))]) }
	s.requests, s.p50, s.p90, s.p99 = float64(len(requests)), at(.5), at(.9), at(.99)
	s.distinct = float64(len(seen)) / float64(references)
	return s
}

// reference are the published trace's values.
var reference = statistics{requests: 12031, mean: 12035, p50: 6909, p90: 27367, p99: 85401, output: 343, distinct: 182790. / 288500}

func compare(t *testing.T, got statistics, tolerance float64) {
	t.Helper()
	g, w := reflect.ValueOf(got), reflect.ValueOf(reference)
	for i := range g.NumField() {
		have, want := g.Field(i).Float(), w.Field(i).Float()
		t.Logf("%-9s %10.3f, reference %10.3f: %+.1f%%", g.Type().Field(i).Name, have, want, 100*(have/want-1))
		if have < want*(1-tolerance) || have > want*(1+tolerance) {
			t.Errorf("%s is %.3f, want %.3f within %.0f%%", g.Type().Field(i).Name, have, want, 100*tolerance)
		}
	}
}

func TestGenerateHasReferenceStatistics(t *testing.T) {
	for seed := range uint64(3) {
		requests := Generate(Config{Seed: seed})
		t.Logf("seed %d", seed)
		compare(t, measure(requests), 0.12)
		for i, r := range requests {
			if len(r.Hashes) != blocks(r.Input) || r.Hashes[0] != 0 || r.Input > longestPrompt || r.Arrival%arrivalStep != 0 || r.Output < 1 {
				t.Fatalf("seed %d: request %d is malformed: %+v", seed, i, r)
			}
			if i > 0 && r.Arrival < requests[i-1].Arrival {
				t.Fatalf("seed %d: request %d arrives before the one before it", seed, i)
			}
		}
	}
}

// TestReadRealTrace wants a directory with conversation_trace.jsonl, which the project does not ship.
func TestReadRealTrace(t *testing.T) {
	dir := os.Getenv("HAWSER_TRACES")
	if dir == "" {
		t.Skip("HAWSER_TRACES is not set: no directory with the published traces")
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil || len(files) == 0 {
		t.Fatalf("HAWSER_TRACES=%s: no *.jsonl in it (%v)", dir, err)
	}
	for _, f := range files {
		requests, err := Open(f, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Logf("%s: %d requests", f, len(requests))
		if filepath.Base(f) == "conversation_trace.jsonl" {
			compare(t, measure(requests), 0.002)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"timestamp": 3000, "input_length": 513, "output_length": 5, "hash_ids": [0, 7]}`))
	f.Add([]byte(`{"timestamp": 1e9, "input_length": null}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		requests, err := Read(bytes.NewReader(b), "fuzz", 0)
		if err != nil {
			return
		}
		for _, r := range requests {
			if r.Input < 1 || r.Output < 0 || r.Arrival < 0 || len(r.Hashes) != blocks(r.Input) {
				t.Fatalf("accepted %+v", r)
			}
		}
	})
}
