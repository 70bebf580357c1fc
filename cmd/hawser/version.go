package main

import (
	"runtime"
	"runtime/debug"
)

// revision is set by the Makefile.
var revision string

type versionCmd struct{}

type versionResult struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Run prints the version.
func (versionCmd) Run(u *ui) error {
	v := thisVersion()
	u.printf("hawser %s (revision %s, %s, %s)\n", v.Version, v.Revision, v.Go, v.Platform)
	return u.result(v)
}

func thisVersion() versionResult {
	v := versionResult{Version: "devel", Revision: revision, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
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
