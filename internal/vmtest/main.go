package main

import (
	"flag"
	"fmt"
	"os"
	"time"
)

// aloneTime bounds an "exec" that boots its own VMs.
const aloneTime = 10 * time.Minute

// initName is what the kernel of a VM calls process 1; process 1 of a container has another name.
const initName = "/init"

func main() {
	if os.Getpid() == 1 && os.Args[0] == initName {
		boot() // does not return
	}
	if len(os.Args) < 2 {
		usage()
	}
	switch verb, args := os.Args[1], os.Args[2:]; verb {
	case agentArg:
		agent()
	case "missing":
		list := lacking()
		for _, l := range list {
			fmt.Println(l)
		}
		if len(list) > 0 {
			os.Exit(exitMissing)
		}
	case "image":
		if _, err := openImage(); err != nil {
			say("%v", err)
			os.Exit(exitBroken)
		}
	case "up":
		flags := flag.NewFlagSet("up", flag.ExitOnError)
		l := layoutFlags(flags)
		limit := flags.Duration("t", 5*time.Minute, "end everything after this time")
		_ = flags.Parse(args) // it exits
		l.complete()
		if flags.NArg() == 0 {
			usage()
		}
		os.Exit(up(*l, *limit, flags.Args()))
	case "exec":
		flags := flag.NewFlagSet("exec", flag.ExitOnError)
		l := layoutFlags(flags)
		vm := flags.Int("vm", 0, "run in the VM of this number")
		all := flags.Bool("all", false, "run in all VMs at once; the output of the others comes in lines on standard error")
		_ = flags.Parse(args) // as above
		l.complete()
		if flags.NArg() == 0 {
			usage()
		}
		socket := os.Getenv(sessionEnv)
		if socket == "" {
			os.Exit(alone(*l, flags.Args(), args[:len(args)-flags.NArg()]))
		}
		ranks := []int{*vm}
		if *all {
			ranks = []int{0, 1}
		}
		os.Exit(execute(socket, ranks, flags.Args()))
	default:
		usage()
	}
}

// layoutFlags are of use where VMs are booted; "exec" in a session ignores them.
func layoutFlags(f *flag.FlagSet) *layout {
	l := &layout{}
	f.IntVar(&l.vms, "vms", 1, "VMs: 1 or 2")
	f.IntVar(&l.pairs, "pairs", 2, "cables within the first VM, with a device on each end: 0 to 16")
	f.IntVar(&l.links, "links", 0, "cables between two VMs, with a device on each end: 0 to 8")
	f.IntVar(&l.cpus, "cpus", 2, "processors of each VM")
	f.IntVar(&l.memory, "memory", 2048, "MiB of each VM")
	f.IntVar(&l.mtu, "mtu", 4500, "of the cables, bytes")
	return l
}

func (l *layout) complete() {
	if l.vms < 1 || l.vms > 2 || l.pairs < 0 || l.pairs > 16 || l.links < 0 || l.links > 8 || l.links > 0 && l.vms < 2 {
		say("no VMs of that kind: see vmtest up -help")
		os.Exit(2)
	}
	dir, err := os.Getwd()
	if err != nil {
		say("%v", err)
		os.Exit(exitBroken)
	}
	l.path = moduleRoot(dir)
}

func usage() {
	fmt.Fprintln(os.Stderr, "vmtest missing | image | up [flags] -- COMMAND... | exec [flags] PROGRAM ARGS...; go doc ./internal/vmtest tells more")
	os.Exit(2)
}

func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "vmtest: "+format+"\n", args...) }
