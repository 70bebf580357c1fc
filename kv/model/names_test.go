package model

import (
	"regexp"
	"strings"
	"testing"
)

// states are those of a machine of the model: prefiller, writer or attempt. p_none and the like, where there is nothing yet, are left out.
func states(t *testing.T, machine string) []string {
	t.Helper()
	list := regexp.MustCompile(`mtype:` + machine + ` = \{ (.*) \}`).FindStringSubmatch(source(t))
	if list == nil {
		t.Fatalf("the model has no machine %q", machine)
	}
	var names []string
	for name := range strings.SplitSeq(list[1], ", ") {
		if _, name, _ = strings.Cut(name, "_"); name != "none" {
			names = append(names, name)
		}
	}
	return names
}

// TestEveryStateIsReached keeps the lists, and what the searches say, honest.
func TestEveryStateIsReached(t *testing.T) {
	tools(t)
	model, number := source(t), 0
	for machine, letter := range map[string]string{"prefiller": "p_", "writer": "w_", "attempt": "a_"} {
		for _, name := range states(t, machine) {
			number++
			if !regexp.MustCompile(`seen\(\wst, ` + letter + name + `\)`).MatchString(model) {
				t.Errorf("%s %s is not looked for", machine, name)
			}
		}
	}
	r := holds(t, "which states are reached", exhaustive(1, "-O0", "-DCOVER", "-o3")) // -o3: no statement becomes part of another
	if len(r.unreached) > 0 {
		t.Errorf("not reached, of the %d states of all machines:\n%s", number, strings.Join(r.unreached, "\n"))
	}
}
