// What Go calls. Every call but hv_load's use of the table goes to one card, which one goroutine owns; what may be called from
// another one beside says so.
#ifndef HAWSER_VERBS_SHIM_H
#define HAWSER_VERBS_SHIM_H

#include "abi.h"

#include <sys/types.h>

// The functions of libibverbs, in the order of the names in library.go. The optional ones are NULL where the library lacks them.
struct hv_table {
	struct abi_device **(*get_device_list)(int *);
	void (*free_device_list)(struct abi_device **);
	struct abi_context *(*open_device)(struct abi_device *);
	int (*close_device)(struct abi_context *);
	int (*query_device)(struct abi_context *, struct abi_device_attr *);
	int (*query_port)(struct abi_context *, uint8_t, struct abi_port_attr *);
	int (*query_gid)(struct abi_context *, uint8_t, int, union abi_gid *);
	struct abi_pd *(*alloc_pd)(struct abi_context *);
	int (*dealloc_pd)(struct abi_pd *);
	struct abi_mr *(*reg_mr)(struct abi_pd *, void *, size_t, int);
	int (*dereg_mr)(struct abi_mr *);
	struct abi_comp_channel *(*create_comp_channel)(struct abi_context *);
	int (*destroy_comp_channel)(struct abi_comp_channel *);
	struct abi_cq *(*create_cq)(struct abi_context *, int, void *, struct abi_comp_channel *, int);
	int (*destroy_cq)(struct abi_cq *);
	int (*get_cq_event)(struct abi_comp_channel *, struct abi_cq **, void **);
	void (*ack_cq_events)(struct abi_cq *, unsigned int);
	struct abi_srq *(*create_srq)(struct abi_pd *, struct abi_srq_init_attr *);
	int (*destroy_srq)(struct abi_srq *);
	struct abi_qp *(*create_qp)(struct abi_pd *, struct abi_qp_init_attr *);
	int (*modify_qp)(struct abi_qp *, struct abi_qp_attr *, int);
	int (*destroy_qp)(struct abi_qp *);
	int (*get_async_event)(struct abi_context *, struct abi_async_event *);
	void (*ack_async_event)(struct abi_async_event *);
	// optional
	struct abi_mr *(*reg_mr_iova2)(struct abi_pd *, void *, size_t, uint64_t, unsigned int);
	struct abi_mr *(*reg_dmabuf_mr)(struct abi_pd *, uint64_t, size_t, uint64_t, int, int);
	ssize_t (*query_gid_table)(struct abi_context *, struct abi_gid_entry *, size_t, uint32_t, size_t);
};

// One opened device and port with its queues.
struct hv_card {
	struct hv_table *lib;
	struct abi_context *ctx;
	struct abi_pd *pd;
	struct abi_comp_channel *channel;
	struct abi_cq *sends, *recvs;
	struct abi_srq *srq;
	struct abi_device_attr device;
	int fault; // of hv_poll, -errno: returned once what had come was
};

// A write as Go prepares it; Go's sendWR.
struct hv_send {
	uint64_t id;
	uint64_t qp; // struct abi_qp *
	uint64_t local;
	uint64_t remote;
	uint32_t len;
	uint32_t lkey;
	uint32_t rkey;
	uint32_t imm; // host byte order
	uint32_t flags;
	uint32_t _room;
};

enum { HV_IMM = 1, HV_SIGNALED = 2, HV_MOST_CHAIN = 64 };

// A completion as Go reads it; Go's workDone.
struct hv_done {
	uint64_t id; // 0 for a receive
	uint32_t qpn;
	uint32_t status;
	uint32_t len;
	uint32_t imm; // host byte order
	uint32_t vendor;
	uint32_t flags;
};

enum { HV_RECV = 1, HV_WITH_IMM = 2 };

// What to connect a queue pair to; Go's route.
struct hv_route {
	uint8_t gid[16];
	uint32_t qpn;
	uint32_t rq_psn, sq_psn;
	uint16_t lid;
	uint16_t pkey_index;
	uint8_t global, sgid_index, hop_limit, traffic_class;
	uint8_t sl, port, mtu, timeout, retries, rnr_retries, _room[2];
};

// The name of the i-th device in out, of ABI_NAME_MAX bytes. Returns the number of devices, or -errno.
int hv_device(struct hv_table *lib, int i, char *out);

// Opens the device of that name, or returns NULL with errno set.
struct hv_card *hv_open(struct hv_table *lib, const char *name);
int hv_query_port(struct hv_card *c, int port, struct abi_port_attr *out);
int hv_query_gid(struct hv_card *c, int port, int index, uint8_t *out);

// Takes the entries of all ports' tables that are in use. Returns their number, or -errno; -ENOSYS where library or kernel are too old.
int hv_query_gids(struct hv_card *c, struct abi_gid_entry *out, int max);

// Makes the queues and posts depth receives of no bytes. Returns errno; *what names the call that failed.
int hv_start(struct hv_card *c, int sends, int recvs, int depth, const char **what);

// Frees everything; *what names the first call that failed. c is gone also when it fails.
int hv_close(struct hv_card *c, const char **what);

struct abi_qp *hv_qp(struct hv_card *c, int depth); // in state RESET, or NULL with errno set
uint32_t hv_qpn(struct abi_qp *qp);
int hv_qp_destroy(struct hv_card *c, struct abi_qp *qp);
int hv_qp_init(struct hv_card *c, struct abi_qp *qp, int port, int pkey_index, int access); // access of the peer
int hv_qp_reset(struct hv_card *c, struct abi_qp *qp);
int hv_qp_fail(struct hv_card *c, struct abi_qp *qp);
// These two may be called from any thread, for a queue pair that no other call uses meanwhile; the first may wait for the network.
int hv_qp_ready_to_receive(struct hv_card *c, struct abi_qp *qp, const struct hv_route *to);
int hv_qp_ready_to_send(struct hv_card *c, struct abi_qp *qp, const struct hv_route *to);

struct abi_mr *hv_register(struct hv_card *c, void *addr, size_t len, int access, int relaxed);
struct abi_mr *hv_register_dmabuf(struct hv_card *c, uint64_t offset, size_t len, uint64_t iova, int fd, int access, int relaxed);
int hv_deregister(struct hv_card *c, struct abi_mr *mr);

// Posts n writes: neighbours to one queue pair as a chain with one doorbell. *posted is how many were taken; returns errno.
int hv_post(struct hv_send *sends, int n, int *posted, int *doorbells);

// Takes at most max completions, received ones first, and posts a receive for each that was used. Returns their number, or -errno
// when it can take no more, now or in a call before.
int hv_poll(struct hv_card *c, struct hv_done *out, int max);

int hv_arm(struct hv_card *c);    // has the channel tell of the next completion; returns errno
int hv_events(struct hv_card *c); // takes what the channel told; returns the number of events

// Takes an asynchronous event: its type, or -1 when there is none. *subject is the number of its queue pair or port.
int hv_async(struct hv_card *c, uint32_t *subject);

#endif
