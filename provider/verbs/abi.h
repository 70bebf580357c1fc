// The part of libibverbs' binary interface that this package uses, declared here so that building needs no headers of rdma-core.
//
// struct abi_X has the fields of struct ibv_X in the same places, and ABI_X the value of IBV_X, as of libibverbs.so.1, symbol
// versions IBVERBS_1.1 and later, which has not changed since 2006 but by appending. A test compiles assertions of both against the
// real headers. Enumerations of the library are int here; fields that nobody here reads keep their names for those assertions.
#ifndef HAWSER_VERBS_ABI_H
#define HAWSER_VERBS_ABI_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

enum { ABI_NAME_MAX = 64, ABI_PATH_MAX = 256 };

enum abi_wc_status {
	ABI_WC_SUCCESS = 0,
	ABI_WC_LOC_LEN_ERR = 1,
	ABI_WC_LOC_QP_OP_ERR = 2,
	ABI_WC_LOC_PROT_ERR = 4,
	ABI_WC_WR_FLUSH_ERR = 5,
	ABI_WC_LOC_ACCESS_ERR = 8,
	ABI_WC_REM_INV_REQ_ERR = 9,
	ABI_WC_REM_ACCESS_ERR = 10,
	ABI_WC_REM_OP_ERR = 11,
	ABI_WC_RETRY_EXC_ERR = 12,
	ABI_WC_RNR_RETRY_EXC_ERR = 13,
};

enum abi_wc_opcode { ABI_WC_RECV = 128, ABI_WC_RECV_RDMA_WITH_IMM = 129 };
enum abi_wc_flags { ABI_WC_WITH_IMM = 2 };
enum abi_wr_opcode { ABI_WR_RDMA_WRITE = 0, ABI_WR_RDMA_WRITE_WITH_IMM = 1 };
enum abi_send_flags { ABI_SEND_SIGNALED = 2, ABI_SEND_INLINE = 8 };
enum abi_access_flags { ABI_ACCESS_LOCAL_WRITE = 1, ABI_ACCESS_REMOTE_WRITE = 2, ABI_ACCESS_RELAXED_ORDERING = 1 << 20 };
enum abi_qp_type { ABI_QPT_RC = 2 };
enum abi_qp_state { ABI_QPS_RESET = 0, ABI_QPS_INIT = 1, ABI_QPS_RTR = 2, ABI_QPS_RTS = 3, ABI_QPS_ERR = 6 };
enum abi_mtu { ABI_MTU_256 = 1, ABI_MTU_512 = 2, ABI_MTU_1024 = 3, ABI_MTU_2048 = 4, ABI_MTU_4096 = 5 };
enum abi_port_state { ABI_PORT_ACTIVE = 4 };
enum { ABI_LINK_LAYER_INFINIBAND = 1, ABI_LINK_LAYER_ETHERNET = 2 };
enum { ABI_QPF_GRH_REQUIRED = 1 }; // flags of a port

enum abi_qp_attr_mask {
	ABI_QP_STATE = 1 << 0,
	ABI_QP_ACCESS_FLAGS = 1 << 3,
	ABI_QP_PKEY_INDEX = 1 << 4,
	ABI_QP_PORT = 1 << 5,
	ABI_QP_AV = 1 << 7,
	ABI_QP_PATH_MTU = 1 << 8,
	ABI_QP_TIMEOUT = 1 << 9,
	ABI_QP_RETRY_CNT = 1 << 10,
	ABI_QP_RNR_RETRY = 1 << 11,
	ABI_QP_RQ_PSN = 1 << 12,
	ABI_QP_MAX_QP_RD_ATOMIC = 1 << 13,
	ABI_QP_MIN_RNR_TIMER = 1 << 15,
	ABI_QP_SQ_PSN = 1 << 16,
	ABI_QP_MAX_DEST_RD_ATOMIC = 1 << 17,
	ABI_QP_DEST_QPN = 1 << 20,
};

enum abi_event_type {
	ABI_EVENT_CQ_ERR = 0,
	ABI_EVENT_QP_FATAL = 1,
	ABI_EVENT_QP_REQ_ERR = 2,
	ABI_EVENT_QP_ACCESS_ERR = 3,
	ABI_EVENT_COMM_EST = 4,
	ABI_EVENT_SQ_DRAINED = 5,
	ABI_EVENT_PATH_MIG = 6,
	ABI_EVENT_PATH_MIG_ERR = 7,
	ABI_EVENT_DEVICE_FATAL = 8,
	ABI_EVENT_PORT_ACTIVE = 9,
	ABI_EVENT_PORT_ERR = 10,
	ABI_EVENT_LID_CHANGE = 11,
	ABI_EVENT_SRQ_ERR = 14,
	ABI_EVENT_QP_LAST_WQE_REACHED = 16,
	ABI_EVENT_CLIENT_REREGISTER = 17,
	ABI_EVENT_GID_CHANGE = 18,
};

struct abi_device {
	void *_ops[2];
	int node_type;
	int transport_type;
	char name[ABI_NAME_MAX];
	char dev_name[ABI_NAME_MAX];
	char dev_path[ABI_PATH_MAX];
	char ibdev_path[ABI_PATH_MAX];
};

struct abi_context;
struct abi_cq;
struct abi_qp;
struct abi_srq;
struct abi_wc;
struct abi_send_wr;
struct abi_recv_wr;

struct abi_context_ops {
	void *_before_poll_cq[11];
	int (*poll_cq)(struct abi_cq *, int, struct abi_wc *);
	int (*req_notify_cq)(struct abi_cq *, int);
	void *_before_post_srq_recv[7];
	int (*post_srq_recv)(struct abi_srq *, struct abi_recv_wr *, struct abi_recv_wr **);
	void *_before_post_send[4];
	int (*post_send)(struct abi_qp *, struct abi_send_wr *, struct abi_send_wr **);
	int (*post_recv)(struct abi_qp *, struct abi_recv_wr *, struct abi_recv_wr **);
	void *_after_post_recv[5];
};

struct abi_context {
	struct abi_device *device;
	struct abi_context_ops ops;
	int cmd_fd;
	int async_fd;
	int num_comp_vectors;
	pthread_mutex_t mutex;
	void *abi_compat;
};

struct abi_pd {
	struct abi_context *context;
	uint32_t handle;
};

struct abi_mr {
	struct abi_context *context;
	struct abi_pd *pd;
	void *addr;
	size_t length;
	uint32_t handle;
	uint32_t lkey;
	uint32_t rkey;
};

struct abi_comp_channel {
	struct abi_context *context;
	int fd;
	int refcnt;
};

struct abi_cq {
	struct abi_context *context;
	struct abi_comp_channel *channel;
	void *cq_context;
	uint32_t handle;
	int cqe;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t comp_events_completed;
	uint32_t async_events_completed;
};

struct abi_srq {
	struct abi_context *context;
	void *srq_context;
	struct abi_pd *pd;
	uint32_t handle;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct abi_qp {
	struct abi_context *context;
	void *qp_context;
	struct abi_pd *pd;
	struct abi_cq *send_cq;
	struct abi_cq *recv_cq;
	struct abi_srq *srq;
	uint32_t handle;
	uint32_t qp_num;
	int state;
	int qp_type;
	pthread_mutex_t mutex;
	pthread_cond_t cond;
	uint32_t events_completed;
};

struct abi_wc {
	uint64_t wr_id;
	int status;
	int opcode;
	uint32_t vendor_err;
	uint32_t byte_len;
	uint32_t imm_data; // network byte order
	uint32_t qp_num;
	uint32_t src_qp;
	unsigned int wc_flags;
	uint16_t pkey_index;
	uint16_t slid;
	uint8_t sl;
	uint8_t dlid_path_bits;
};

struct abi_sge {
	uint64_t addr;
	uint32_t length;
	uint32_t lkey;
};

struct abi_send_wr {
	uint64_t wr_id;
	struct abi_send_wr *next;
	struct abi_sge *sg_list;
	int num_sge;
	int opcode;
	unsigned int send_flags;
	uint32_t imm_data; // network byte order
	union {
		struct {
			uint64_t remote_addr;
			uint32_t rkey;
		} rdma;
		uint64_t _room[4];
	} wr;
	uint64_t _qp_type;
	uint64_t _bind_mw[6];
};

struct abi_recv_wr {
	uint64_t wr_id;
	struct abi_recv_wr *next;
	struct abi_sge *sg_list;
	int num_sge;
};

union abi_gid {
	uint8_t raw[16];
	uint64_t _align[2];
};

struct abi_gid_entry {
	union abi_gid gid;
	uint32_t gid_index;
	uint32_t port_num;
	uint32_t gid_type;
	uint32_t ndev_ifindex;
};

enum { ABI_GID_ROCE_V2 = 2 };

struct abi_global_route {
	union abi_gid dgid;
	uint32_t flow_label;
	uint8_t sgid_index;
	uint8_t hop_limit;
	uint8_t traffic_class;
};

struct abi_ah_attr {
	struct abi_global_route grh;
	uint16_t dlid;
	uint8_t sl;
	uint8_t src_path_bits;
	uint8_t static_rate;
	uint8_t is_global;
	uint8_t port_num;
};

struct abi_qp_cap {
	uint32_t max_send_wr;
	uint32_t max_recv_wr;
	uint32_t max_send_sge;
	uint32_t max_recv_sge;
	uint32_t max_inline_data;
};

struct abi_qp_init_attr {
	void *qp_context;
	struct abi_cq *send_cq;
	struct abi_cq *recv_cq;
	struct abi_srq *srq;
	struct abi_qp_cap cap;
	int qp_type;
	int sq_sig_all;
};

struct abi_qp_attr {
	int qp_state;
	int cur_qp_state;
	int path_mtu;
	int path_mig_state;
	uint32_t qkey;
	uint32_t rq_psn;
	uint32_t sq_psn;
	uint32_t dest_qp_num;
	unsigned int qp_access_flags;
	struct abi_qp_cap cap;
	struct abi_ah_attr ah_attr;
	struct abi_ah_attr alt_ah_attr;
	uint16_t pkey_index;
	uint16_t alt_pkey_index;
	uint8_t en_sqd_async_notify;
	uint8_t sq_draining;
	uint8_t max_rd_atomic;
	uint8_t max_dest_rd_atomic;
	uint8_t min_rnr_timer;
	uint8_t port_num;
	uint8_t timeout;
	uint8_t retry_cnt;
	uint8_t rnr_retry;
	uint8_t alt_port_num;
	uint8_t alt_timeout;
	uint32_t rate_limit;
};

struct abi_srq_attr {
	uint32_t max_wr;
	uint32_t max_sge;
	uint32_t srq_limit;
};

struct abi_srq_init_attr {
	void *srq_context;
	struct abi_srq_attr attr;
};

struct abi_device_attr {
	char fw_ver[64];
	uint64_t node_guid;
	uint64_t sys_image_guid;
	uint64_t max_mr_size;
	uint64_t page_size_cap;
	uint32_t vendor_id;
	uint32_t vendor_part_id;
	uint32_t hw_ver;
	int max_qp;
	int max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge;
	int max_sge_rd;
	int max_cq;
	int max_cqe;
	int max_mr;
	int max_pd;
	int max_qp_rd_atom;
	int max_ee_rd_atom;
	int max_res_rd_atom;
	int max_qp_init_rd_atom;
	int max_ee_init_rd_atom;
	int atomic_cap;
	int max_ee;
	int max_rdd;
	int max_mw;
	int max_raw_ipv6_qp;
	int max_raw_ethy_qp;
	int max_mcast_grp;
	int max_mcast_qp_attach;
	int max_total_mcast_qp_attach;
	int max_ah;
	int max_fmr;
	int max_map_per_fmr;
	int max_srq;
	int max_srq_wr;
	int max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay;
	uint8_t phys_port_cnt;
};

// The symbol ibv_query_port writes the fields up to link_layer, or up to flags; the rest stays as the caller left it.
struct abi_port_attr {
	int state;
	int max_mtu;
	int active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags;
	uint32_t max_msg_sz;
	uint32_t bad_pkey_cntr;
	uint32_t qkey_viol_cntr;
	uint16_t pkey_tbl_len;
	uint16_t lid;
	uint16_t sm_lid;
	uint8_t lmc;
	uint8_t max_vl_num;
	uint8_t sm_sl;
	uint8_t subnet_timeout;
	uint8_t init_type_reply;
	uint8_t active_width;
	uint8_t active_speed;
	uint8_t phys_state;
	uint8_t link_layer;
	uint8_t flags;
	uint16_t port_cap_flags2;
};

struct abi_async_event {
	union {
		struct abi_cq *cq;
		struct abi_qp *qp;
		struct abi_srq *srq;
		int port_num;
	} element;
	int event_type;
};

#endif
