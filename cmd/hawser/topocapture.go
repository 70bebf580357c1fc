package main

import (
	"strings"

	"github.com/hawser-project/hawser/topo"
)

type topoCaptureCmd struct {
	To        string `arg:"" placeholder:"DIR|FILE.tar.gz" help:"A folder that is empty or not there, or an archive that is not there."`
	Anonymise bool   `help:"Replace GUIDs, GIDs and UUIDs of GPUs: equal ones by equal ones."`
	Sysfs     string `placeholder:"DIR|FILE" help:"Copy from another capture instead of from this machine."`
}

type captureResult struct {
	To         string `json:"to"`
	Anonymised bool   `json:"anonymised"`
	*topo.Contents
}

// Run makes a capture and says what is in it.
func (c *topoCaptureCmd) Run(u *ui) error {
	contents, err := topo.Capture(c.Sysfs, c.To, c.Anonymise)
	if err != nil {
		return err
	}
	u.printf("%s: %d files and %d links, %d KiB\n", c.To, contents.Files, contents.Links, (contents.Bytes+1023)/1024)
	secret := false
	for _, a := range contents.Secrets {
		if len(a.Values) == 0 {
			continue
		}
		secret = true
		u.printf("%s, %d: %s\n", a.Kind, len(a.Values), strings.Join(a.Values, " "))
	}
	if secret && !c.Anonymise {
		u.printf("These tell machines apart; --anonymise replaces them.\n")
	}
	for _, note := range contents.Hidden {
		u.printf("not in it: %s\n", note)
	}
	return u.result(captureResult{c.To, c.Anonymise, contents})
}
