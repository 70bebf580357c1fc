package doctor

import (
	"net/netip"

	"github.com/hawser-project/hawser/topo"
)

// Facts are what the checks look at. What is nil, empty or zero is unknown, or not there where zero makes no sense.
type Facts struct {
	Captured bool       `json:"captured,omitempty"` // of another machine or another time
	Need     uint64     `json:"need"`               // bytes of memory that are meant to be registered
	Host     *topo.Host `json:"host"`

	Kernel        string   `json:"kernel"`               // release
	Cores         int      `json:"cores"`                // processors that this process may run on
	Quota         float64  `json:"quota,omitempty"`      // processors' worth of time that the control group allows; 0: no limit
	MemoryMax     uint64   `json:"memory_max,omitempty"` // bytes that the control group allows; 0: no limit
	Nodes         int      `json:"numa_nodes"`
	NUMABalancing *int     `json:"numa_balancing"` // kernel.numa_balancing
	Clock         string   `json:"clock"`          // clock source
	Ptrace        *int     `json:"ptrace_scope"`   // kernel.yama.ptrace_scope; nil: this kernel has no such restriction
	Shm           uint64   `json:"shm_bytes"`      // size of /dev/shm
	Huge          HugePool `json:"huge_pages"`
	ShmemHuge     string   `json:"shmem_huge"` // when shared memory comes in huge pages: "never", "advise", ...

	Process Process `json:"process"`
	TCP     TCP     `json:"tcp"`
	Net     Net     `json:"net"`

	Cards     []Card    `json:"cards"`     // on PCI, of those that need a driver of RDMA
	Files     []Verbs   `json:"files"`     // of /dev/infiniband that NICs need
	Resources []InUse   `json:"resources"` // of NICs
	Libraries []Library `json:"libraries"`
	Static    bool      `json:"static,omitempty"` // this binary loads no libraries
	Drivers   []string  `json:"drivers"`          // of libibverbs that are installed: "mlx5", "rxe"
	NVIDIA    *NVIDIA   `json:"nvidia"`           // nil: that driver is not loaded
}

// HugePool are the huge pages of 2 MiB that are set aside.
type HugePool struct {
	Total uint64 `json:"total"`
	Free  uint64 `json:"free"`
}

// Limit is one of setrlimit. Infinite is no limit.
type Limit struct {
	Soft uint64 `json:"soft"`
	Hard uint64 `json:"hard"`
}

// Infinite is the value of a limit that is none.
const Infinite = ^uint64(0)

// Process is what the kernel allows this process.
type Process struct {
	UID       int    `json:"uid"`
	Memlock   *Limit `json:"memlock"` // bytes
	Files     *Limit `json:"files"`   // descriptors
	Effective uint64 `json:"cap_effective"`
	Bounding  uint64 `json:"cap_bounding"` // what the process could have, if its user or file had it
}

// Bits of capabilities, as in linux/capability.h.
const (
	capIPCLock   = 14
	capSysPtrace = 19
)

func (p Process) has(capability int) bool { return p.Effective>>capability&1 == 1 }

// TCP is how TCP sends.
type TCP struct {
	Congestion string   `json:"congestion"` // control, the default
	Allowed    []string `json:"allowed"`    // controls that any process may choose
}

// Net are the network interfaces of this network namespace.
type Net struct {
	Known      bool        `json:"known"` // false: Interfaces have no addresses because nobody asked
	All        Conf        `json:"all"`   // net.ipv4.conf.all
	Interfaces []Interface `json:"interfaces"`
}

// Interface is a network interface that is up.
type Interface struct {
	Name  string         `json:"name"`
	Addrs []netip.Prefix `json:"addrs"`
	Conf  Conf           `json:"conf"`
}

// Conf are settings of IPv4. The larger one of an interface's and of all counts.
type Conf struct {
	RPFilter    int `json:"rp_filter"`
	ARPIgnore   int `json:"arp_ignore"`
	ARPAnnounce int `json:"arp_announce"`
	ARPFilter   int `json:"arp_filter"` // either of them counts
}

// Card is a network card on PCI that speaks RDMA if its driver does.
type Card struct {
	Slot   string `json:"slot"`
	Module string `json:"module"` // the kernel module that makes an RDMA device of it
}

// Verbs is a file of /dev/infiniband.
type Verbs struct {
	Name   string `json:"name"`             // "uverbs0"
	Reason string `json:"reason,omitempty"` // why this process cannot open it
}

// InUse is how many objects of one NIC exist, of all processes and of the kernel.
type InUse struct {
	NIC      string `json:"nic"`
	Contexts uint64 `json:"contexts"` // open by processes
	PDs      uint64 `json:"pds"`
	CQs      uint64 `json:"cqs"`
	QPs      uint64 `json:"qps"`
	MRs      uint64 `json:"mrs"`
}

// NVIDIA is the driver of GPUs.
type NVIDIA struct {
	Version string `json:"version"` // empty: neither is known
	Open    bool   `json:"open"`    // the open kernel modules, which export memory as dma-bufs
}
