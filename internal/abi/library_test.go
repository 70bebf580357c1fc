//go:build abi

package abi

import "fmt"

// library is a foreign library and where our declarations of it are.
type library struct {
	name    string
	ours    string    // folder of abi.h and shim.h
	include []string  // their headers
	prefix  [2]string // of our types, of theirs
	macro   [2]string // of our constants, of theirs

	types  map[string]string // ours to theirs, where the prefix is not all of the difference; "" is our own
	fields map[string]string // "type.field", ours to theirs
	consts map[string]string // ours to theirs; "" is our own
	size   map[string]relation
	since  map[string]string // condition of the preprocessor under which their headers have a type, "type.field" or constant
	table  string            // our structure of functions that are looked up by name
	named  string            // before the field's name, the name of the function
	hidden map[string]string // fields whose function has another name: the one that users call is inline
}

// relation is how long a structure of ours must be, compared with theirs.
type relation string

const (
	atMost  relation = "<=" // the library allocates it, and may append; the default
	atLeast relation = ">=" // we allocate it, and the library fills it or reads it
	exactly relation = "==" // there are arrays of it
)

var verbs = library{
	name: "libibverbs", ours: "../../provider/verbs", include: []string{"infiniband/verbs.h"},
	prefix: [2]string{"abi_", "ibv_"}, macro: [2]string{"ABI_", "IBV_"},
	consts: map[string]string{"ABI_NAME_MAX": "IBV_SYSFS_NAME_MAX", "ABI_PATH_MAX": "IBV_SYSFS_PATH_MAX", "ABI_GID_ROCE_V2": "IBV_GID_TYPE_ROCE_V2"},
	size: map[string]relation{
		"abi_wc": exactly, "abi_sge": exactly, "abi_send_wr": exactly, "abi_recv_wr": exactly, "abi_context_ops": exactly,
		"abi_gid": exactly, "abi_global_route": exactly, "abi_ah_attr": exactly, "abi_qp_cap": exactly, "abi_srq_attr": exactly,
		"abi_qp_init_attr": atLeast, "abi_qp_attr": atLeast, "abi_srq_init_attr": atLeast, "abi_device_attr": atLeast,
		"abi_port_attr": atLeast, "abi_async_event": atLeast,
	},
	table: "hv_table", named: "ibv_", hidden: map[string]string{"query_gid_table": "_ibv_query_gid_table"},
}

// release is the condition of the preprocessor for libfabric's headers of that release and later ones.
func release(major, minor int) string {
	return fmt.Sprintf("FI_MAJOR_VERSION > %d || FI_MAJOR_VERSION == %d && FI_MINOR_VERSION >= %d", major, major, minor)
}

var libfabric = library{
	name: "libfabric", ours: "../../provider/ofi",
	include: []string{"rdma/fabric.h", "rdma/fi_domain.h", "rdma/fi_endpoint.h", "rdma/fi_cm.h", "rdma/fi_eq.h", "rdma/fi_rma.h", "rdma/fi_errno.h", "rdma/fi_ext.h"},
	prefix:  [2]string{"hf_", "fi_"}, macro: [2]string{"HF_", "FI_"},
	types: map[string]string{
		"hf_fid": "fid", "hf_fabric": "fid_fabric", "hf_domain": "fid_domain", "hf_ep": "fid_ep", "hf_mr": "fid_mr", "hf_av": "fid_av",
		"hf_cq": "fid_cq", "hf_nic": "fid_nic",
		"hf_api": "",
	},
	fields: map[string]string{
		"hf_bus_attr.pci": "attr.pci",
	},
	consts: map[string]string{"HF_SOURCE_FLAG": "FI_SOURCE"},
	size: map[string]relation{
		"hf_cq_data_entry": exactly, "hf_rma_iov": exactly, "hf_context2": exactly,
		"hf_mr_attr": atLeast, "hf_av_attr": atLeast, "hf_cq_attr": atLeast, "hf_cq_err_entry": atLeast, "hf_msg_rma": atLeast,
		"hf_mr_dmabuf": exactly,
	},
	since: map[string]string{
		"HF_OPT_CUDA_API_PERMITTED": release(1, 18), "HF_OPT_EFA_EMULATED_WRITE": release(1, 18),
		"hf_mr_attr.hmem_data": release(1, 19),
		"HF_MR_DMABUF":         release(1, 20), "hf_mr_dmabuf": release(1, 20), "hf_mr_attr.dmabuf": release(1, 20), "hf_cq_err_entry.src_addr": release(1, 20),
		"HF_OPT_SHARED_MEMORY_PERMITTED": release(1, 21),
		"hf_mr_attr.page_size":           release(1, 22),
		"hf_mr_attr.base_mr":             release(2, 0), "hf_mr_attr.sub_mr_cnt": release(2, 0),
	},
	table: "hf_api", named: "fi_",
}
