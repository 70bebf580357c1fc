package main

// What the image is made of. Its key in the cache is made from these lists; the version covers what else decides about it.
const (
	recipeVersion = 1
	release       = "bookworm" // the names below are this release's of Debian
	kernelPackage = "linux-image-amd64"
)

// packages are unpacked into the image; their scripts do not run. missingLibraries finds what is not listed.
var packages = []string{
	"libc6", "libgcc-s1", "zlib1g", // what Go's programs with cgo and the race detector need
	"busybox-static", "dash",
	"iproute2", "libxtables12", "libselinux1", "libpcre2-8-0", "libmnl0", "libbsd0", "libmd0", "libcap2", "libelf1", "libbpf1",
	"libibverbs1", "ibverbs-providers", "ibverbs-utils", "librdmacm1", "libnl-3-200", "libnl-route-3-200",
	"perftest", "libibumad3", "libpci3", "libudev1",
}

// modules are loaded in this order, each after what it depends on. None asks for another at run time: there is no modprobe.
var modules = []string{
	"virtio_pci", "virtio_console", "virtio_net", "9p", "9pnet_virtio",
	"crc32_generic", "crc32c_generic", // rxe asks for the first by name
	"veth", "sch_netem", "sch_tbf",
	"ib_uverbs", "rdma_ucm", "rdma_rxe",
}

// moduleFolders are where the modules lie, below kernel/.
var moduleFolders = []string{
	"crypto", "drivers/char", "drivers/infiniband/core", "drivers/infiniband/sw/rxe", "drivers/net", "drivers/virtio",
	"fs/9p", "fs/configfs", "fs/fscache", "fs/netfs", "lib", "net/9p", "net/core", "net/ipv4", "net/ipv6", "net/sched",
}

// left is what programs in the VM do not need of the packages.
var left = []string{
	"usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bash-completion/", "usr/share/bug/",
	"usr/lib/x86_64-linux-gnu/gconv/", "var/", "etc/init.d/", "etc/default/",
	"usr/sbin/arpd", "usr/bin/ss", "usr/lib/tc/q_atm.so", "usr/lib/x86_64-linux-gnu/tc/q_atm.so", // of iproute2, with libraries of their own
}
