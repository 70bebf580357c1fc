package doctor

import (
	"fmt"
	"strings"
)

// Status is what a check found.
type Status string

// The statuses, from the best to the worst.
const (
	OK   Status = "ok"
	Skip Status = "skip" // it does not apply, or cannot be known: Found says which
	Warn Status = "warn" // it works, slower or not everywhere
	Fail Status = "fail" // a network does not work that this machine has
)

// Line is what one check says of one thing.
type Line struct {
	Check  string `json:"check"`           // stable name
	About  string `json:"about,omitempty"` // which NIC, port, library or network
	Status Status `json:"status"`
	Found  string `json:"found"`
	Remedy string `json:"remedy,omitempty"` // of what is not ok
}

// Worst is the worst status: OK if nothing is worse, also when everything was skipped.
func Worst(lines []Line) Status {
	worst := OK
	for _, l := range lines {
		if l.Status == Fail || l.Status == Warn && worst == OK {
			worst = l.Status
		}
	}
	return worst
}

// Widths of the columns of Text; what is longer moves the rest of its line.
const (
	statusWidth = 4
	checkWidth  = 11
)

// Text is lines for people, a remedy below what it is for. What is the same of several things is one line.
func Text(lines []Line) string {
	var b strings.Builder
	for _, l := range merge(lines) {
		subject := ""
		if l.About != "" {
			subject = l.About + ": "
		}
		fmt.Fprintf(&b, "%-*s  %-*s  %s%s\n", statusWidth, l.Status, checkWidth, l.Check, subject, l.Found)
		if l.Remedy != "" {
			fmt.Fprintf(&b, "%*s  -> %s\n", statusWidth+checkWidth+2, "", l.Remedy)
		}
	}
	return b.String()
}

// merge joins lines that say the same of different things.
func merge(lines []Line) []Line {
	var merged []Line
	for i := 0; i < len(lines); {
		l := lines[i]
		all := []string{l.About}
		for i++; i < len(lines); i++ {
			if next := lines[i]; l.About == "" || (Line{next.Check, l.About, next.Status, next.Found, next.Remedy}) != l {
				break
			}
			all = append(all, lines[i].About)
		}
		if l.About = strings.Join(all, ", "); l.Status == OK && len(all) > fewNames {
			l.About = fmt.Sprintf("%s and %d more", strings.Join(all[:fewNames], ", "), len(all)-fewNames)
		}
		merged = append(merged, l)
	}
	return merged
}

// fewNames is how many of the things in which nothing is wrong have their names told.
const fewNames = 4

// checks in the order in which they are told: the machine, then networks from the bottom up.
var checks = []struct {
	name string
	run  func(*Facts) []Line
}{
	{"kernel", checkKernel},
	{"cores", checkCores},
	{"clock", checkClock},
	{"numa", checkNUMA},
	{"memory", checkMemory},
	{"huge pages", checkHuge},
	{"/dev/shm", checkShm},
	{"open files", checkFiles},
	{"ptrace", checkPtrace},
	{"tcp", checkTCP},
	{"library", checkLibraries},
	{"module", checkModules},
	{"device", checkDevices},
	{"driver", checkDrivers},
	{"pcie", checkPCIe},
	{"port", checkPorts},
	{"gid", checkGIDs},
	{"mtu", checkMTU},
	{"subnets", checkSubnets},
	{"memlock", checkMemlock},
	{"gpu memory", checkGPU},
	{"efa", checkEFA},
	{"resources", checkResources},
}

// Check judges facts. Every check says at least one line.
func Check(f *Facts) []Line {
	var all []Line
	for _, c := range checks {
		for _, l := range c.run(f) {
			l.Check = c.name
			all = append(all, l)
		}
	}
	return all
}

func one(s Status, remedy, format string, args ...any) []Line {
	return []Line{{Status: s, Remedy: remedy, Found: fmt.Sprintf(format, args...)}}
}

func ok(format string, args ...any) []Line   { return one(OK, "", format, args...) }
func skip(format string, args ...any) []Line { return one(Skip, "", format, args...) }

// warn and fail take the remedy first: what was found has arguments.
func warn(remedy, format string, args ...any) []Line { return one(Warn, remedy, format, args...) }
func fail(remedy, format string, args ...any) []Line { return one(Fail, remedy, format, args...) }

// about puts a subject before lines.
func about(subject string, lines []Line) []Line {
	for i := range lines {
		lines[i].About = subject
	}
	return lines
}

// unknown is the line of a check whose fact is not there.
func (f *Facts) unknown(what string) []Line {
	if f.Captured {
		return skip("%s: not known of a captured machine", what)
	}
	return skip("%s: cannot be read here", what)
}
