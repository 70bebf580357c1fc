package main

import (
	"debug/elf"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/hawser-project/hawser/internal/doctor"
)

// revision is set by the Makefile.
var revision string

type versionCmd struct{}

type versionResult struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`

	linkage
	Libraries []doctor.Library `json:"libraries,omitempty"` // those of networks, and where they were found
}

// linkage is what a binary needs of the machine that it runs on.
type linkage struct {
	Linking string `json:"linking"`         // "static": nothing, and it loads no libraries; "dynamic"
	Glibc   string `json:"glibc,omitempty"` // the oldest that has all that a dynamic one uses, such as 2.34
}

// Run prints the version.
func (versionCmd) Run(u *ui) error {
	v := thisVersion()
	need := v.Linking
	if v.Glibc != "" {
		need += ", needs glibc " + v.Glibc
	}
	u.printf("hawser %s (revision %s, %s, %s, %s)\n", v.Version, v.Revision, v.Go, v.Platform, need)
	if u.json != nil { // loading them takes time
		v.Libraries = doctor.Libraries()
	}
	return u.result(v)
}

func thisVersion() versionResult {
	v := versionResult{Version: "devel", Revision: revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	v.linkage = linkageOf("/proc/self/exe")
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		v.Version = info.Main.Version
	}
	dirty := ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && v.Revision == "":
			v.Revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true" && revision == "":
			dirty = "-dirty"
		}
	}
	if v.Revision == "" {
		v.Revision = "unknown"
	}
	v.Revision += dirty
	return v
}

// linkageOf reads a binary; what cannot be read is unknown.
func linkageOf(path string) linkage {
	f, err := elf.Open(path)
	if err != nil {
		return linkage{Linking: "unknown"}
	}
	defer func() { _ = f.Close() }()
	symbols, err := f.ImportedSymbols() // an error: there is no table of them
	if err != nil || len(symbols) == 0 {
		return linkage{Linking: "static"}
	}
	l := linkage{Linking: "dynamic"}
	for _, s := range symbols {
		if v, ok := strings.CutPrefix(s.Version, "GLIBC_"); ok && older(l.Glibc, v) {
			l.Glibc = v
		}
	}
	return l
}

// older compares versions such as 2.2.5 and 2.34; none is older than any.
func older(a, b string) bool {
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		m, _ := strconv.Atoi(as[i]) // not a number: 0
		n, _ := strconv.Atoi(bs[i])
		if m != n {
			return m < n
		}
	}
	return len(as) < len(bs)
}
