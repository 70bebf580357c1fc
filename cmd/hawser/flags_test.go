package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/hawser-project/hawser/kv/simllm"
)

func TestSizeIsParsed(t *testing.T) {
	for text, want := range map[string]size{
		"0": 0, "4096": 4096, "1KiB": 1 << 10, "64kib": 64 << 10, "1.5 GiB": 3 << 29, "2GB": 2e9, "10TiB": 10 << 40, "7b": 7, "3M": 3 << 20,
	} {
		var got size
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %d (%v), want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "-1", "GiB", "1XiB", "1e30", "nan", "inf", "4096 4096", "99999999999TiB"} {
		var got size
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

func TestSizeGoesRound(t *testing.T) {
	for _, want := range []size{0, 1, 1000, 1 << 10, 1<<10 + 1, 1 << 30, 10 << 40} {
		for _, text := range []string{want.String(), want.arg()} {
			var got size
			if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
				t.Errorf("%q: got %d (%v), want %d", text, got, err, want)
			}
		}
	}
}

func TestPercentIsParsed(t *testing.T) {
	for text, want := range map[string]percent{"0": 0, "5%": 0.05, "100%": 1, "0.3": 0.3, "1": 1} {
		var got percent
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %v (%v), want %v", text, got, err, want)
		}
		if err := got.UnmarshalText([]byte(want.arg())); err != nil || got != want {
			t.Errorf("%q does not go round: got %v (%v)", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "101%", "-1", "2", "NaN"} {
		var got percent
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestRailsAreParsed(t *testing.T) {
	for text, want := range map[string]railPair{"1,1": {1, 1}, "2,3": {2, 3}, "4": {4, 4}, " 1 , 2 ": {1, 2}} {
		var got railPair
		if err := got.UnmarshalText([]byte(text)); err != nil || got != want {
			t.Errorf("%q: got %v (%v), want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0,1", "1,", "1,2,3", "65,1", "a,b"} {
		var got railPair
		if err := got.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestReportIsOneLineAndHasItsExitCode(t *testing.T) {
	for _, tc := range []struct {
		name string
		err  error
		code int
		want string
	}{
		{"nothing", nil, exitOK, ""},
		{"a failure", errors.New("boom"), exitFailure, "hawser: boom\n"},
		{"two failures", errors.Join(errors.New("a"), errors.New("b")), exitFailure, "hawser: a; b\n"},
		{"usage", fmt.Errorf("x: %w", &usageError{errors.New("bad flag")}), exitUsage, "hawser: x: bad flag\n"},
		{
			"too many files", fmt.Errorf("listen: %w", syscall.EMFILE), exitFailure,
			"hawser: listen: too many open files: raise the limit with ulimit -n\n",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var out strings.Builder
			if code := report(&out, tc.err); code != tc.code || out.String() != tc.want {
				t.Errorf("got %d %q, want %d %q", code, out.String(), tc.code, tc.want)
			}
		})
	}
}

func TestOnlyASignalIsAnInterruption(t *testing.T) {
	stop, leak := errors.New("signal"), errors.New("3 pages leaked")
	running := context.Background()
	ended, cancel := context.WithCancelCause(running)
	cancel(stop)
	for _, tc := range []struct {
		ctx  context.Context
		err  error
		want string
	}{
		{running, leak, "3 pages leaked"},
		{ended, fmt.Errorf("wait: %w", stop), "interrupted"},
		{ended, leak, "interrupted: 3 pages leaked"},
	} {
		if got := interrupted(tc.ctx, tc.err); got.Error() != tc.want {
			t.Errorf("got %v, want %s", got, tc.want)
		}
	}
	if err := interrupted(ended, nil); err != nil {
		t.Errorf("got %v for a command that ended well", err)
	}
}

func TestVerdictNamesWhatIsWrong(t *testing.T) {
	good := simllm.Report{Verify: "all", Requests: 10, VerifiedRequests: 7, Failed: 2, Cancelled: 1, Causes: map[string]int{"peer down": 2}}
	for _, tc := range []struct {
		name  string
		fault bool
		spoil func(*simllm.Report)
		want  string // "" for no fault
	}{
		{"failures after a fault", true, func(*simllm.Report) {}, ""},
		{"failures without one", false, func(*simllm.Report) {}, "2 of 10 requests failed (2: peer down)"},
		{"nothing to do", false, func(r *simllm.Report) { *r = simllm.Report{} }, "no request arrived"},
		{"corrupt", true, func(r *simllm.Report) { r.CorruptBytes = 3 }, "3 corrupt bytes"},
		{"leak", true, func(r *simllm.Report) { r.LeakedPages = 4 }, "4 leaked pages"},
		{"quarantine", true, func(r *simllm.Report) { r.QuarantinedPages = 5 }, "5 pages still quarantined"},
		{"a request that vanished", true, func(r *simllm.Report) { r.VerifiedRequests-- }, "1 requests are neither"},
		{"not verified on purpose", true, func(r *simllm.Report) { r.Verify, r.VerifiedRequests = "off", 0 }, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := replayReport{Report: good}
			tc.spoil(&r.Report)
			if tc.fault {
				r.Faults = []injected{{Kind: killFault}}
			}
			err := r.verdict()
			if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}
