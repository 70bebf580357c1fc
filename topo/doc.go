// Package topo reads how a machine is built, as far as moving bytes goes: RDMA NICs with their ports and GIDs, GPUs, NUMA nodes, and
// the PCIe bridges between them. From that it plans which NICs serve which GPU.
//
// Everything comes from sysfs and a few files of /proc and /dev; nothing is written, no library is loaded and root is not needed.
// [Read] takes this machine or one that [Capture] has copied into a folder or an archive:
//
//	h, err := topo.Read("") // or "dgx.tar.gz"
//	if err != nil {
//		return err // there is no such folder or archive; what is missing inside is no error
//	}
//	for _, a := range h.Plan().GPUs {
//		fmt.Println(a.For, a.Rails)
//	}
//
// What cannot be seen, as in a container, is left out or unknown, and stands in [Host].Notes. A tree may come from anybody: links
// do not lead out of it, and the number and size of what is read are bounded.
//
// A Host belongs to who read it; nothing in it changes later.
package topo
