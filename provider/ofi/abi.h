// What this package uses of libfabric's binary interface, in our own words: the same layouts and numbers from release 1.17 to 2.x. A
// structure that the library allocates may be longer than here, one that we allocate (an attribute) is as long as the longest.
// Pointers that are not used are void *.
#ifndef HAWSER_OFI_ABI_H
#define HAWSER_OFI_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

#define HF_VERSION(major, minor) (((major) << 16) | (minor))

// Capabilities and flags of operations.
#define HF_MSG (1ULL << 1)
#define HF_RMA (1ULL << 2)
#define HF_WRITE (1ULL << 9)
#define HF_RECV (1ULL << 10)
#define HF_SEND (1ULL << 11)
#define HF_REMOTE_WRITE (1ULL << 13)
#define HF_REMOTE_CQ_DATA (1ULL << 17)
#define HF_MORE (1ULL << 18)
#define HF_COMPLETION (1ULL << 24)
#define HF_DELIVERY_COMPLETE (1ULL << 28)
#define HF_MR_DMABUF (1ULL << 40) // since 1.20
#define HF_HMEM (1ULL << 47)
#define HF_SOURCE (1ULL << 57)
#define HF_SELECTIVE_COMPLETION (1ULL << 59) // of binding a queue
#define HF_SOURCE_FLAG (1ULL << 57) // of fi_getinfo
#define HF_CONTEXT (1ULL << 59)     // modes
#define HF_CONTEXT2 (1ULL << 52)
#define HF_RX_CQ_DATA (1ULL << 56)
#define HF_ORDER_WAW (1ULL << 4)

// Memory registration.
#define HF_MR_LOCAL (1 << 2)
#define HF_MR_VIRT_ADDR (1 << 4)
#define HF_MR_ALLOCATED (1 << 5)
#define HF_MR_PROV_KEY (1 << 6)
#define HF_MR_ENDPOINT (1 << 9)
#define HF_MR_HMEM (1 << 10)

enum { HF_EP_RDM = 3 };
enum { HF_THREAD_DOMAIN = 3 };
enum { HF_PROGRESS_MANUAL = 2 };
enum { HF_RM_ENABLED = 2 };
enum { HF_AV_TABLE = 2 };
enum { HF_WAIT_NONE = 0, HF_WAIT_FD = 3 };
enum { HF_CQ_FORMAT_DATA = 3 };
enum { HF_GETWAIT = 5, HF_ENABLE = 6 }; // fi_control
enum { HF_EAVAIL = 259 };
enum { HF_BUS_PCI = 1 };
enum { HF_OPT_ENDPOINT = 0 };
enum { HF_OPT_CUDA_API_PERMITTED = 10, HF_OPT_SHARED_MEMORY_PERMITTED = 11 };
enum { HF_OPT_EFA_EMULATED_WRITE = -(0xefa << 16) + 2 };
enum { HF_HMEM_SYSTEM = 0, HF_HMEM_CUDA = 1 };

typedef uint64_t hf_addr_t;
#define HF_ADDR_UNSPEC ((hf_addr_t)-1)

struct hf_ops;
struct hf_ops_fabric;
struct hf_ops_domain;
struct hf_ops_mr;
struct hf_ops_av;
struct hf_ops_cq;
struct hf_ops_ep;
struct hf_ops_cm;
struct hf_ops_msg;
struct hf_ops_rma;
struct hf_fabric;
struct hf_domain;
struct hf_av;
struct hf_av_attr;
struct hf_cq;
struct hf_cq_attr;
struct hf_ep;
struct hf_nic;

struct hf_fid {
	size_t fclass;
	void *context;
	struct hf_ops *ops;
};

struct hf_ops {
	size_t size;
	int (*close)(struct hf_fid *);
	int (*bind)(struct hf_fid *, struct hf_fid *, uint64_t flags);
	int (*control)(struct hf_fid *, int command, void *arg);
	void *ops_open;
};

struct hf_tx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t inject_size, size, iov_limit, rma_iov_limit;
	uint32_t tclass;
};

struct hf_rx_attr {
	uint64_t caps, mode, op_flags, msg_order, comp_order;
	size_t total_buffered_recv, size, iov_limit;
};

struct hf_ep_attr {
	int type;
	uint32_t protocol, protocol_version;
	size_t max_msg_size, msg_prefix_size, max_order_raw_size, max_order_war_size, max_order_waw_size;
	uint64_t mem_tag_format;
	size_t tx_ctx_cnt, rx_ctx_cnt, auth_key_size;
	uint8_t *auth_key;
};

struct hf_domain_attr {
	struct hf_domain *domain;
	char *name;
	int threading, control_progress, data_progress, resource_mgmt, av_type, mr_mode;
	size_t mr_key_size, cq_data_size, cq_cnt, ep_cnt;
	size_t tx_ctx_cnt, rx_ctx_cnt, max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx;
	size_t cntr_cnt, mr_iov_limit;
	uint64_t caps, mode;
	uint8_t *auth_key;
	size_t auth_key_size, max_err_data, mr_cnt;
	uint32_t tclass;
};

struct hf_fabric_attr {
	struct hf_fabric *fabric;
	char *name, *prov_name;
	uint32_t prov_version, api_version;
};

struct hf_info {
	struct hf_info *next;
	uint64_t caps, mode;
	uint32_t addr_format;
	size_t src_addrlen, dest_addrlen;
	void *src_addr, *dest_addr;
	struct hf_fid *handle;
	struct hf_tx_attr *tx_attr;
	struct hf_rx_attr *rx_attr;
	struct hf_ep_attr *ep_attr;
	struct hf_domain_attr *domain_attr;
	struct hf_fabric_attr *fabric_attr;
	struct hf_nic *nic;
};

struct hf_bus_attr {
	int bus_type;
	struct {
		uint16_t domain_id;
		uint8_t bus_id, device_id, function_id;
	} pci;
};

struct hf_link_attr {
	char *address;
	size_t mtu, speed;
	int state;
	char *network_type;
};

struct hf_nic {
	struct hf_fid fid;
	void *device_attr;
	struct hf_bus_attr *bus_attr;
	struct hf_link_attr *link_attr;
	void *prov_attr;
};

struct hf_fabric {
	struct hf_fid fid;
	struct hf_ops_fabric *ops;
	uint32_t api_version;
};

struct hf_ops_fabric {
	size_t size;
	int (*domain)(struct hf_fabric *, struct hf_info *, struct hf_domain **, void *context);
	void *passive_ep, *eq_open, *wait_open;
	int (*trywait)(struct hf_fabric *, struct hf_fid **, int count);
};

struct hf_domain {
	struct hf_fid fid;
	struct hf_ops_domain *ops;
	struct hf_ops_mr *mr;
};

struct hf_ops_domain {
	size_t size;
	int (*av_open)(struct hf_domain *, struct hf_av_attr *, struct hf_av **, void *context);
	int (*cq_open)(struct hf_domain *, struct hf_cq_attr *, struct hf_cq **, void *context);
	int (*endpoint)(struct hf_domain *, struct hf_info *, struct hf_ep **, void *context);
};

struct hf_mr {
	struct hf_fid fid;
	void *mem_desc;
	uint64_t key;
};

struct hf_mr_dmabuf {
	int fd;
	uint64_t offset;
	size_t len;
	void *base_addr;
};

struct hf_mr_attr {
	union {
		const struct iovec *mr_iov;
		const struct hf_mr_dmabuf *dmabuf; // with HF_MR_DMABUF
	};
	size_t iov_count;
	uint64_t access, offset, requested_key;
	void *context;
	size_t auth_key_size;
	uint8_t *auth_key;
	int iface;
	uint64_t device;
	void *hmem_data;
	size_t page_size;
	const void *base_mr;
	size_t sub_mr_cnt;
};

struct hf_ops_mr {
	size_t size;
	int (*reg)(struct hf_fid *, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t requested_key, uint64_t flags,
	           struct hf_mr **, void *context);
	void *regv;
	int (*regattr)(struct hf_fid *, const struct hf_mr_attr *, uint64_t flags, struct hf_mr **);
};

struct hf_av_attr {
	int type, rx_ctx_bits;
	size_t count, ep_per_node;
	const char *name;
	void *map_addr;
	uint64_t flags;
};

struct hf_av {
	struct hf_fid fid;
	struct hf_ops_av *ops;
};

struct hf_ops_av {
	size_t size;
	int (*insert)(struct hf_av *, const void *addr, size_t count, hf_addr_t *, uint64_t flags, void *context);
	void *insertsvc, *insertsym;
	int (*remove)(struct hf_av *, hf_addr_t *, size_t count, uint64_t flags);
};

struct hf_cq_attr {
	size_t size;
	uint64_t flags;
	int format, wait_obj, signaling_vector, wait_cond;
	void *wait_set;
};

struct hf_cq {
	struct hf_fid fid;
	struct hf_ops_cq *ops;
};

struct hf_cq_data_entry {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data;
};

struct hf_cq_err_entry {
	void *op_context;
	uint64_t flags;
	size_t len;
	void *buf;
	uint64_t data, tag;
	size_t olen;
	int err, prov_errno;
	void *err_data;
	size_t err_data_size;
	hf_addr_t src_addr; // since 1.20
};

struct hf_ops_cq {
	size_t size;
	ssize_t (*read)(struct hf_cq *, void *buf, size_t count);
	ssize_t (*readfrom)(struct hf_cq *, void *buf, size_t count, hf_addr_t *src);
	ssize_t (*readerr)(struct hf_cq *, struct hf_cq_err_entry *, uint64_t flags);
};

struct hf_ep {
	struct hf_fid fid;
	struct hf_ops_ep *ops;
	struct hf_ops_cm *cm;
	struct hf_ops_msg *msg;
	struct hf_ops_rma *rma;
};

struct hf_ops_ep {
	size_t size;
	void *cancel;
	int (*getopt)(struct hf_fid *, int level, int name, void *value, size_t *len);
	int (*setopt)(struct hf_fid *, int level, int name, const void *value, size_t len);
};

struct hf_ops_cm {
	size_t size;
	void *setname;
	int (*getname)(struct hf_fid *, void *addr, size_t *len);
};

struct hf_ops_msg {
	size_t size;
	ssize_t (*recv)(struct hf_ep *, void *buf, size_t len, void *desc, hf_addr_t src, void *context);
	void *recvv, *recvmsg;
	ssize_t (*send)(struct hf_ep *, const void *buf, size_t len, void *desc, hf_addr_t dest, void *context);
};

struct hf_rma_iov {
	uint64_t addr;
	size_t len;
	uint64_t key;
};

struct hf_msg_rma {
	const struct iovec *msg_iov;
	void **desc;
	size_t iov_count;
	hf_addr_t addr;
	const struct hf_rma_iov *rma_iov;
	size_t rma_iov_count;
	void *context;
	uint64_t data;
};

struct hf_ops_rma {
	size_t size;
	void *read, *readv, *readmsg, *write, *writev;
	ssize_t (*writemsg)(struct hf_ep *, const struct hf_msg_rma *, uint64_t flags);
};

struct hf_context2 {
	void *internal[8];
};

// The functions that are looked up by name, in the order of the names in lib.go.
struct hf_api {
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct hf_info *hints, struct hf_info **);
	void (*freeinfo)(struct hf_info *);
	struct hf_info *(*dupinfo)(const struct hf_info *);
	int (*fabric)(struct hf_fabric_attr *, struct hf_fabric **, void *context);
	const char *(*strerror)(int);
	uint32_t (*version)(void);
	char *(*tostr)(const void *, int type);
};

#endif
